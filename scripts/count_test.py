"""Tests scripts/count on a small tree.

Usage: count_test.py [unittest options].
"""

import importlib.machinery
import importlib.util
import pathlib
import tempfile
import unittest

from check_layers import APART_FROM_TRAINING

LOADER = importlib.machinery.SourceFileLoader("count", str(pathlib.Path(__file__).with_name("count")))
count = importlib.util.module_from_spec(importlib.util.spec_from_loader("count", LOADER))
LOADER.exec_module(count)

HEADER = """// A class.
#pragma once

class Trainer : public Base {
 public:
  Trainer(int a, std::function<void(int)> b = {});
  int sum() const { return a_ + b_; }  // inline

 private:
  struct Inner {
    int not_counted = 0;
  };
  std::map<int, std::function<void()>> callbacks_;
  int a_ = f(1), b_ = 2;
};
"""


class CountTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("copus/train/trainer/trainer.h", HEADER)
        self.write("copus/orchestrator/controller/controller.h", "\nclass Controller {\n  int a;\n};\n")
        self.write("copus/train/trainer/trainer.cpp",
                   '#include "copus/base/error.h"\n#include "copus/train/trainer/trainer.h"\n')
        self.write("copus/base/error.h", 'const char* text = "// no comment";\n/* one\n\n   comment */ int x;\n')
        self.write("copus/cli/commands.h", "void train();\n")
        self.write("copus/cli/other_command.cpp", '#include "copus/cli/commands.h"\nint other;\n')
        self.write("copus/cli/train_command.cpp",
                   '#include "copus/cli/commands.h"\n#include "copus/train/trainer/trainer.h"\n\n// why\nint y;\n')
        self.write("copus/cli/train_test.cpp", "int data_parallel, tensor_parallel, pipeline_parallel;\n")
        self.write("copus/cli/testing/support.h", "int a;\n")

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def test_lines_are_those_of_production_without_comments(self):
        measured = count.measure(self.root)
        self.assertEqual(measured["lines by room"], {"base": 2, "cli": 6, "orchestrator": 3, "train": 14})
        self.assertEqual(measured["files by folder"]["copus/cli"], 3)

    def test_tests_do_not_enumerate(self):
        enumerations = lambda: count.measure(self.root)["files that enumerate"]["the three axes by name"]
        self.assertEqual(enumerations(), 0)
        self.write("copus/base/axes.h", "int data_parallel, tensor_parallel, pipeline_parallel;\n")
        self.assertEqual(enumerations(), 1)

    def test_members(self):
        members = count.measure(self.root)["members"]
        self.assertEqual(members, {"Trainer": {"functions": 2, "variables": 3}, "Controller": {"variables": 1}})

    def test_what_training_includes(self):
        measured = count.measure(self.root)
        self.assertEqual(measured["what train_command.cpp includes"]["files"], 3)
        self.assertEqual(measured["the same with the sources of these headers"]["lines by room"],
                         {"base": 2, "cli": 4, "train": 14})


class TrainingTest(unittest.TestCase):
    def test_no_research_is_in_what_training_includes(self):
        """Checks the whole tree, also the sources of the headers that `copus train` includes."""
        code = count.read_code(pathlib.Path(__file__).resolve().parents[1])
        apart = tuple(f"copus/{room}/" for room in APART_FROM_TRAINING + ["train/experiments", "workshop"])
        closure = count.closure_of(code, count.TRAINING, with_sources=True)
        self.assertGreater(len(closure), 400)
        self.assertEqual([name for name in closure if name.startswith(apart)], [])


if __name__ == "__main__":
    unittest.main()
