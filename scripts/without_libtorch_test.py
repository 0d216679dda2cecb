#!/usr/bin/env python3
"""Checks that Copus builds without libtorch, using a build with libtorch so that nothing is compiled twice.

Usage: without_libtorch_test.py PROGRAM_WITHOUT_LIBTORCH CMAKE BUILD_FOLDER. The program must need no library of
libtorch. A configuration with COPUS_WITH_TORCH=OFF must succeed, and each of its compile commands must be identical to
one of the build with libtorch: then the objects are the same, and so is the linked program.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def compile_commands(folder: pathlib.Path) -> set[str]:
    entries = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    return {entry["command"].replace(str(folder), "BUILD") for entry in entries}


class WithoutLibtorchTest(unittest.TestCase):
    def test_the_program_needs_no_library_of_libtorch(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.check_output(["readelf", "-d", PROGRAM], text=True))
        self.assertIn("libc.so.6", needed)
        self.assertFalse([name for name in needed if re.match(r"lib(torch|c10|gomp)", name)], needed)

    def test_a_configuration_without_libtorch_compiles_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder).resolve()
            subprocess.run([CMAKE, "-S", SOURCE, "-B", folder, "-G", "Ninja", "-DCOPUS_WITH_TORCH=OFF",
                            "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=subprocess.DEVNULL)
            commands = compile_commands(folder)
            self.assertTrue(commands)
            self.assertEqual(commands - compile_commands(BUILD), set())


if __name__ == "__main__":
    PROGRAM, CMAKE, BUILD = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
    unittest.main(argv=sys.argv[:1])
