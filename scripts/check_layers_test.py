#!/usr/bin/env python3
"""Shows that check_layers.py finds each kind of violation, planted in a small tree, and accepts what is allowed."""

import pathlib
import tempfile
import unittest

from check_layers import Tree

CLEAN_TREE = {
    "copus/base/error.h": "#include <string>",
    "copus/description/mesh.cpp": '#include "copus/base/error.h"',
    "copus/description/mesh_test.cpp": "#include <fstream>",
    "copus/report/CMakeLists.txt": "copus_room(NAME report) # no TORCH",
    "copus/report/log.cpp": "#include <nlohmann/json.hpp>\n#include <chrono>",
    "copus/model/CMakeLists.txt": "copus_room(NAME model TORCH)",
    "copus/model/layers/decoder.h": "#include <ATen/core/Tensor.h>",
    "copus/model/layers/decoder_test.cpp": '#include "copus/model/layers/decoder.h"\n#include <torch/torch.h>',
    "copus/comm/CMakeLists.txt": "copus_room(NAME comm)",
    "copus/comm/job/meeting/tcp_store.cpp": "#include <torch/csrc/distributed/c10d/TCPStore.hpp>",
    "copus/comm/world.h": "",
    "copus/comm/health/watchdog.cpp": '#include "copus/comm/world.h"',
    "copus/comm/job/start/launcher.cpp": '#include "copus/comm/health/watchdog.h"',
    "copus/comm/world_test.cpp": '#include "copus/comm/job/start/launcher.h"',
    "copus/comm/testing/test_worlds.cpp": '#include "copus/comm/messages/tcp_world.h"\n#include <thread>',
    "copus/description/testing/a.h": "#include <fstream>",
    "copus/workshop/bench/decide.cpp": '#include "copus/comm/testing/test_worlds.h"',
    "copus/train/run/run_output.cpp": "const auto when = std::chrono::system_clock::now();",
    "copus/comm/world.cpp": "using std::chrono::steady_clock;  // not a system_clock\nrelayout_time(nullptr_or);",
    "apps/copus/main.cpp": '#include "copus/cli/cli.h"',
}


class CheckLayersTest(unittest.TestCase):
    def violations_with(self, planted: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in (CLEAN_TREE | planted).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text + "\n", encoding="utf-8")
            return list(Tree(root).violations())

    def assert_one_violation(self, planted: dict[str, str], *words: str) -> None:
        violations = self.violations_with(planted)
        self.assertEqual(len(violations), 1, violations)
        for word in words:
            self.assertIn(word, violations[0])

    def test_accepts_a_clean_tree(self):
        self.assertEqual(self.violations_with({}), [])

    def test_finds_an_include_of_a_lower_room(self):
        planted = {"copus/base/error.cpp": '// why\n#include "copus/description/mesh.h"'}
        self.assert_one_violation(planted, "copus/base/error.cpp:2:", "copus/description/mesh.h")

    def test_finds_an_include_of_a_lower_room_in_a_test(self):
        self.assert_one_violation({"copus/model/a_test.cpp": '#include "copus/train/trainer/trainer.h"'}, "train")

    def test_finds_research_and_drawing_in_training(self):
        for header in ["copus/simulate/law.h", "copus/plan/plan.h", "copus/report/drawn/html_report.h",
                       "copus/orchestrator/baselines/rule.h"]:
            planted = {"copus/train/run/run.cpp": f'#include "{header}"'}
            self.assert_one_violation(planted, "training does without", header)
        planted = {"copus/train/run/run.cpp": '#include "copus/report/logs/run_log.h"'}
        self.assertEqual(self.violations_with(planted), [])

    def test_finds_research_in_training_through_other_headers(self):
        planted = {"copus/report/curve.h": '#include "copus/statistics/compared/loss_curve.h"',
                   "copus/train/run/run.cpp": '#include "copus/report/curve.h"'}
        self.assert_one_violation(planted, "training does without statistics/compared", "copus/report/curve.h ->")
        planted["copus/train/experiments/run.cpp"] = planted.pop("copus/train/run/run.cpp")
        self.assertEqual(self.violations_with(planted), [])

    def test_finds_a_smaller_room_in_what_it_stands_upon(self):
        self.assert_one_violation({"copus/report/log.h": '#include "copus/report/drawn/html_report.h"'}, "report/drawn")

    def test_finds_the_wall_clock_in_what_waits_or_measures(self):
        for line in ["auto now = std::chrono::system_clock::now();", "clock_gettime(CLOCK_REALTIME, &now);",
                     "const time_t now = time(nullptr);", "const auto now = std::time(nullptr);"]:
            self.assert_one_violation({"copus/comm/health/rank_monitor.cpp": "//\n" + line},
                                      "copus/comm/health/rank_monitor.cpp:2:", "steady_clock")

    def test_finds_an_include_of_a_smaller_room_that_comes_later(self):
        planted = {"copus/comm/health/watchdog.cpp": '#include "copus/comm/job/start/launcher.h"'}
        self.assert_one_violation(planted, "comm/health may not include", "comm/job is no room before it")

    def test_finds_an_include_of_a_smaller_room_by_the_top_of_its_room(self):
        planted = {"copus/comm/world.cpp": '#include "copus/comm/job/start/launcher.h"'}
        self.assert_one_violation(planted, "comm may not include")

    def test_finds_test_support_outside_tests(self):
        planted = {"copus/train/run/run.cpp": '#include "copus/comm/testing/test_worlds.h"'}
        self.assert_one_violation(planted, "for tests alone")

    def test_finds_an_impure_header_in_a_pure_smaller_room(self):
        self.assert_one_violation({"copus/workshop/published/runs.cpp": "#include <fstream>"}, "workshop/published", "pure")

    def test_finds_an_unknown_room(self):
        self.assert_one_violation({"copus/misc/a.cpp": ""}, "'misc' is not a room")

    def test_finds_impure_headers_in_a_pure_room(self):
        for header in ("thread", "fstream", "filesystem", "chrono"):
            with self.subTest(header):
                self.assert_one_violation({"copus/description/mesh.cpp": f"#include <{header}>"}, "pure", header)

    def test_finds_torch_in_a_pure_room_even_if_declared(self):
        planted = {
            "copus/placement/CMakeLists.txt": "copus_room(NAME placement TORCH)",
            "copus/placement/plan.cpp": "# include <c10/core/Device.h>",
        }
        self.assert_one_violation(planted, "copus/placement/plan.cpp:1:", "c10/core/Device.h")

    def test_finds_torch_in_a_room_that_does_not_declare_it(self):
        self.assert_one_violation({"copus/report/a.h": '#include "ATen/ATen.h"'}, "report", "ATen/ATen.h")

    def test_finds_torch_beside_json_through_our_headers(self):
        planted = {
            "copus/base/json.h": "#include <nlohmann/json.hpp>",
            "copus/model/layers/a.cpp": '#include "copus/base/json.h"\n#include "copus/model/layers/decoder.h"',
        }
        self.assert_one_violation(planted, "copus/base/json.h -> nlohmann/json.hpp", "ATen/core/Tensor.h")

    def test_finds_the_whole_of_torch_outside_tests(self):
        self.assert_one_violation({"copus/model/a.cpp": "#include <torch/torch.h>"}, "for tests alone")


if __name__ == "__main__":
    unittest.main()
