#!/usr/bin/env python3
"""Tests what scripts/lib.sh shows of a build, with a program instead of CMake that prints ninja's output."""

import contextlib
import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

LIB = pathlib.Path(__file__).resolve().with_name("lib.sh")
NINJA = """\
[0/2] Re-checking globbed directories...
[1/3] Building CXX object one.o
[2/3] Building CXX object two.o
{two}[3/3] Linking CXX executable program
"""
FAILURE = "FAILED: two.o\ng++ -c two.cpp\ntwo.cpp:1:1: error: nonsense\n"
CMAKE = """#!/usr/bin/env bash
[[ "$1" == --build ]] || { echo "$*" >"${0%/*}/configured" && exit 0; }
cat "${0%/*}/output"
exit "$(<"${0%/*}/code")"
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "cmake").write_text(CMAKE)
        (self.folder / "cmake").chmod(0o755)
        self.cmake_says(NINJA.format(two=""))

    def cmake_says(self, text, code=0):
        (self.folder / "output").write_text(text)
        (self.folder / "code").write_text(str(code))

    def build(self, before="", terminal=None):
        command = f"source '{LIB}'; {before} configure_and_build '{self.folder}/build' program"
        environment = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", TERM="xterm")
        return subprocess.run(["bash", "-c", command], env=environment, text=True, stderr=subprocess.PIPE,
                              stdout=subprocess.PIPE if terminal is None else terminal)

    def test_on_a_terminal_one_line_is_written_over(self):
        ours, theirs = pty.openpty()
        result = self.build(terminal=theirs)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # at the end, when the other side is closed
            while part := os.read(ours, 1 << 16):
                shown += part
        shown = shown.decode()
        os.close(ours)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("\n", shown)
        frames = shown.split("\r\033[K")
        self.assertRegex(frames[-2], r"^    3 of 3 steps, \d+ s$")
        self.assertEqual(frames[-1], "")

    def test_a_pipe_has_a_line_now_and_then(self):
        self.assertEqual(self.build().stdout, "")
        lines = self.build(before="progress_seconds=0;").stdout.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertRegex(lines[-1], r"^    3 of 3 steps, \d+ s$")

    def test_the_log_has_all_that_was_said(self):
        self.build()
        self.assertEqual((self.folder / "build" / "build.log").read_text(), NINJA.format(two=""))

    def test_a_libtorch_that_is_gone_is_forgotten(self):
        (self.folder / "build").mkdir()
        cache = self.folder / "build" / "CMakeCache.txt"
        for place, is_gone in ((self.folder / "gone", True), (self.folder, False)):
            cache.write_text(f"//Folder with TorchConfig.cmake\nTorch_DIR:PATH={place}\nTorch_DIR_OF:PATH=x\n")
            self.assertEqual(self.build().returncode, 0)
            self.assertEqual("-UTorch_DIR" in (self.folder / "configured").read_text(), is_gone)

    def test_a_failure_shows_what_failed_and_names_the_log(self):
        self.cmake_says(NINJA.format(two=FAILURE), code=1)
        result = self.build()
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr.startswith(FAILURE), result.stderr)
        self.assertNotIn("Linking", result.stderr)
        self.assertIn(f"all that was said is in {self.folder}/build/build.log", result.stderr)

    def test_a_failure_before_the_first_step_shows_its_message(self):
        self.cmake_says("ninja: error: unknown target 'program'\n", code=1)
        result = self.build()
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr.startswith("ninja: error: unknown target 'program'\n"), result.stderr)

    def test_no_file_gets_the_number_of_a_standard_descriptor_that_is_closed(self):
        for closed in ("1>&-", "2>&-", "0<&- 1>&- 2>&-"):
            code = f"source '{LIB}'; python3 -c 'import os; assert os.open(\"/\", os.O_RDONLY) > 2'; echo said"
            result = subprocess.run(["bash", "-c", f'bash -c "$1" {closed}', "bash", code], stderr=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 0, closed)


if __name__ == "__main__":
    unittest.main()
