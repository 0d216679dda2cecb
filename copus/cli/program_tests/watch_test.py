"""Tests `copus watch` as a process: one frame as text, a live view on a terminal that changes its size, and runs that
end, are killed or do not exist.

Usage: watch_test.py PATH_TO_COPUS [unittest options].
"""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import unittest

from program_test_support import COPUS, TIMEOUT, ProgramTest

FRAME = re.compile(r"\x1b\[H(.*?)\x1b\[J", re.DOTALL)


class Terminal:
    """A terminal with this many columns, and all text written to it."""

    def __init__(self, columns):
        self.own, self.other = pty.openpty()
        self.resize(columns)
        self.text = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def resize(self, columns):
        fcntl.ioctl(self.other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def read(self):
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while piece := os.read(self.own, 65536):
                self.text += decoder.decode(piece)
        except OSError:  # all its users have closed it
            pass

    def close(self):
        os.close(self.other)
        self.reader.join(TIMEOUT)
        os.close(self.own)

    def frames(self):
        # The terminal turns "\n" into "\r\n", and the view may write "\r\n" itself.
        return [frame.replace("\x1b[K", "").replace("\r", "").split("\n") for frame in FRAME.findall(self.text)]


class Watch(ProgramTest):
    def begin(self, *settings):
        self.write_run("long.toml", steps=100_000)
        # Nobody reads its output, so it must not print much.
        run = self.start("train", "long.toml", "--run-dir", "r", "--set", "log.interval=1000000", "--set",
                         "evaluate.interval=0", *settings)
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        return run

    def wait_until(self, condition, process):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.02)

    def test_one_frame_of_a_run_that_has_ended(self):
        self.assert_done("train", "run.toml", "--run-dir", "r")
        for columns in [40, 80, 140]:
            frame = self.assert_done_at(columns, "watch", "r", "--once")
            self.assertNotIn("\x1b", frame)
            lines = frame.splitlines()
            self.assertEqual(lines[0], "r  ended: done")
            self.assertIn("step 20", lines[1])
            self.assertRegex(frame, r"\nbatch     B=8, b=4 ")
            self.assertRegex(frame, r"\nlayout    d=1,t=1,p=1\n")
            self.assertLessEqual(max(map(len, lines)), columns)
        self.assertEqual(self.assert_done("watch", "r").stdout, self.assert_done("watch", "r", "--once").stdout,
                         "a run that has ended is shown once")

    def assert_done_at(self, columns, *arguments):
        result = self.copus(*arguments, env=os.environ | {"COLUMNS": str(columns)})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_a_live_view_follows_the_terminal_and_ends_with_the_run(self):
        terminal = Terminal(80)
        run = self.begin()
        watch = self.start_on(terminal, "watch", "r", "--wait", "1m", "--interval", "0.05s")
        self.wait_until(lambda: len(terminal.frames()) > 3 and "step " in terminal.frames()[-1][1], watch)
        self.assertLessEqual(max(len(line) for frame in terminal.frames() for line in frame), 80)
        terminal.resize(50)
        watch.send_signal(signal.SIGWINCH)
        seen = len(terminal.frames())
        self.wait_until(lambda: len(terminal.frames()) > seen + 2, watch)
        self.assertLessEqual(max(len(line) for line in terminal.frames()[-1]), 50)
        run.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(TIMEOUT), 0)
        terminal.close()
        self.assertIn("r  ended: interrupted", terminal.text.split("\x1b[?1049l")[1], "the last frame stays")

    def test_ctrl_c_ends_the_view_and_not_the_run(self):
        terminal = Terminal(80)
        run = self.begin()
        self.wait_for_steps("r", 2, run)
        watch = self.start_on(terminal, "watch", "r", "--interval", "1m")
        self.wait_until(terminal.frames, watch)
        watch.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(TIMEOUT), 0)
        terminal.close()
        self.assertIn("\x1b[?1049l", terminal.text)
        self.assertIsNone(run.poll())

    def start_on(self, terminal, *arguments):
        process = subprocess.Popen([COPUS, *arguments], cwd=self.folder, env=os.environ | {"TERM": "xterm"},
                                   stdout=terminal.other)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_a_killed_run_is_said_to_be_dead(self):
        run = self.begin()
        self.wait_for_steps("r", 2, run)
        self.assertIn("r  running", self.assert_done("watch", "r", "--once").stdout)
        run.kill()
        run.wait(TIMEOUT)
        self.assertIn("r  not running, and has not ended", self.assert_done("watch", "r", "--once").stdout)

    def test_a_summary_of_an_earlier_end_is_not_shown(self):
        self.assert_done("train", "run.toml", "--run-dir", "r")
        summary = self.folder / "r" / "summary.json"
        # As if the run had ended after step 10, had been resumed and had been killed after step 20.
        summary.write_text(summary.read_text().replace('"steps": 20', '"steps": 10'))
        self.assertIn("r  not running, and has not ended", self.assert_done("watch", "r", "--once").stdout)
        refused = self.assert_refused("ctl", "r", "status", says=["the run in r is not running"], leaves_run_dir=True)
        self.assertNotIn("it has ended", refused.stderr)

    def test_mistakes(self):
        self.assert_refused("watch", says=["RUN_DIR"])
        self.assert_refused("watch", "r", says=["there is no run in r", "--wait"])
        self.assert_refused("watch", "r", "--wait", "0.1s", says=["there is no run in r", "after 0.1s"])
        self.assert_refused("watch", "r", "--interval", "soon", says=["--interval soon", "expected a time"])


if __name__ == "__main__":
    unittest.main(argv=[__file__, *sys.argv[2:]])
