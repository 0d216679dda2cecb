#!/usr/bin/env python3
"""tools/fetch_shards.py copies whole shards, in the order of a run, and names what stalls or is cut off.

Run by CTest. Exits with 77 (skipped) where fsspec or aiohttp is not installed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from array import array
from pathlib import Path
from unittest import mock

try:
    import aiohttp  # noqa: F401
    import fsspec  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED: the test of fetched shards needs the Python packages fsspec and aiohttp ({missing})")
    sys.exit(77)

import fetch_shards
import remote_files
from corpus_errors import CorpusError
from file_server_test_support import FileServer
from pair_files import write_index

COUNT = 6
NAMES = [f"web-{number:05d}-of-{COUNT:05d}" for number in range(COUNT)]


class FetchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.to, self.run_dir = self.folder / "data", self.folder / "run"
        self.to.mkdir()
        self.run_dir.mkdir()
        self.server = FileServer()
        self.addCleanup(self.server.stop)
        patched = mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
        patched.start()
        self.addCleanup(patched.stop)
        for number, name in enumerate(NAMES):
            lengths = array("i", [10 + number, 3])
            write_index(self.folder / "index", "H", lengths)
            self.server.files[f"/{name}.idx"] = (self.folder / "index").read_bytes()
            self.server.files[f"/{name}.bin"] = bytes([number]) * (2 * sum(lengths))
        self.url = self.server.url(f"/web-*-of-{COUNT:05d}")

    def fetcher(self, deadline=60):
        return fetch_shards.Fetcher(fetch_shards.names_of(self.url)[0], self.to, deadline)

    def assert_whole(self, names):
        self.assertEqual({path.name for path in self.to.glob("*.bin")}, {f"{name}.bin" for name in names})
        for name in names:
            self.assertEqual((self.to / f"{name}.bin").read_bytes(), self.server.files[f"/{name}.bin"])

    def list_shards(self, names):
        (self.run_dir / "shards.txt").write_text("".join(f"somewhere/{name}\n" for name in names))

    def complete(self):
        (self.run_dir / "summary.json").write_text(json.dumps({"ended": "done"}))

    def call(self, *arguments):
        return subprocess.run([sys.executable, fetch_shards.__file__, *arguments], capture_output=True, text=True,
                              timeout=120)

    def test_keeps_all_shards_of_the_next_step_even_beyond_ahead(self):
        names = [f"web-{number:05d}-of-00009" for number in range(9)]
        self.run_dir.mkdir(exist_ok=True)
        text = "".join(f"data/{name}\n" for name in names)
        (self.run_dir / "shards.txt").write_text("# The next step needs the first 6.\n" + text)
        self.assertEqual(fetch_shards.wanted(self.run_dir, set(names), 4), names[:6])
        self.assertEqual(fetch_shards.wanted(self.run_dir, set(names), 8), names[:8])
        (self.run_dir / "shards.txt").write_text(text)
        self.assertEqual(fetch_shards.wanted(self.run_dir, set(names[1:]), 3), names[1:3])

    def test_all_shards(self):
        self.assertEqual(self.call(self.url, "--to", str(self.to)).returncode, 0)
        self.assert_whole(NAMES)
        self.assertEqual(self.partial_files(), [])

    def test_follows_the_list_of_the_run(self):
        order = [NAMES[3], NAMES[0], NAMES[5], NAMES[1], NAMES[2], NAMES[4]]
        self.list_shards(order)
        follower = self.follow(parallel=1)
        self.wait_for(order[:4])
        sent = [path.removeprefix("/").removesuffix(".bin") for path in self.server.sent if path.endswith(".bin")]
        self.assertEqual(list(dict.fromkeys(sent)), order[:4])
        self.list_shards([*order[2:], *order[:2]])
        self.wait_for(order[2:])
        self.complete()
        self.assert_ends(follower)
        self.assert_whole(order[2:])

    def follow(self, parallel):
        follower = threading.Thread(target=fetch_shards.follow, daemon=True, args=(
            self.fetcher(), NAMES, self.run_dir, 4, True, fetch_shards.Transfers(parallel)))
        follower.start()
        return follower

    def assert_ends(self, follower):
        follower.join(30)
        self.assertFalse(follower.is_alive())

    def test_follows_a_complete_run_that_is_resumed_to_train_longer(self):
        self.list_shards(NAMES[:4])
        self.complete()
        follower = self.follow(parallel=4)
        follower.join(1)
        self.assertTrue(follower.is_alive(), "waits for the run to be resumed")
        self.assert_whole([])
        self.list_shards(NAMES[2:])
        self.wait_for(NAMES[2:])
        self.assertTrue(follower.is_alive(), "the summary is older than the list")
        self.assertIsNone(fetch_shards.completion(self.run_dir))
        self.complete()
        self.assert_ends(follower)

    def test_a_complete_run_that_is_not_resumed_is_not_followed(self):
        self.fetcher().tokens(NAMES[5])
        self.list_shards(NAMES[:4])
        self.complete()
        result = self.call(self.url, "--to", str(self.to), "--run-dir", str(self.run_dir), "--ahead", "4",
                           "--delete-passed", "--deadline", "5")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"the run in {self.run_dir} is complete and was not resumed", result.stderr)
        self.assert_whole([NAMES[5]])

    def test_copies_several_files_at_a_time(self):
        for number in range(4):
            self.fetcher().index(NAMES[number])
        self.server.gate = threading.Barrier(4, timeout=30)
        fetch_shards.Transfers(4).run_all(NAMES[:4], self.fetcher().tokens)
        self.assert_whole(NAMES[:4])
        self.assertFalse(self.server.gate.broken)

    def test_copies_no_more_files_at_a_time_than_it_may(self):
        running, most = set(), []

        def call(name):
            running.add(name)
            most.append(len(running))
            time.sleep(0.02)
            running.discard(name)

        fetch_shards.Transfers(2).run_all(NAMES, call)
        self.assertEqual(len(most), COUNT)
        self.assertLessEqual(max(most), 2)

    def test_a_large_file_may_take_longer_than_the_deadline(self):
        self.fetcher().index(NAMES[0])
        self.server.pause = 0.05
        begin = time.monotonic()
        self.fetcher(deadline=0.5).tokens(NAMES[0])
        self.assertGreater(time.monotonic() - begin, 0.5)
        self.assert_whole(NAMES[:1])

    def wait_for(self, names):
        deadline = time.monotonic() + 60
        while {path.stem for path in self.to.glob("*.bin")} != set(names):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_what_is_cut_off_is_fetched_again(self):
        self.fetcher().index(NAMES[0])
        (self.to / f"{NAMES[0]}.bin").write_bytes(b"12")
        self.fetcher().tokens(NAMES[0])
        self.assert_whole(NAMES[:1])

    def test_names_a_server_that_cuts_files_off(self):
        self.fetcher().index(NAMES[0])
        for sends_sizes in (True, False):
            self.server.sends_sizes, self.server.ends_after = sends_sizes, 8
            with self.assertRaisesRegex(CorpusError, rf"{NAMES[0]}\.bin: could not be fetched: it got no farther for "
                                        r"0.5 s .*attempts"):
                self.fetcher(deadline=0.5).tokens(NAMES[0])
            self.assert_whole([])

    def test_names_a_server_that_stalls(self):
        self.fetcher().index(NAMES[0])
        self.server.stalls, self.server.ends_after = True, 8
        with mock.patch.object(remote_files, "STALL_SECONDS", 0.2):
            with self.assertRaisesRegex(CorpusError, rf"{NAMES[0]}\.bin.*no data came within 0.2 s"):
                self.fetcher(deadline=0.5).tokens(NAMES[0])

    def test_stops_without_leaving_partial_files(self):
        self.fetcher().index(NAMES[0])
        self.server.stalls, self.server.ends_after = True, 8
        for number in (signal.SIGTERM, signal.SIGINT):
            fetcher = subprocess.Popen([sys.executable, fetch_shards.__file__, self.url, "--to", str(self.to)],
                                       stderr=subprocess.PIPE, text=True)
            self.addCleanup(fetcher.kill)
            deadline = time.monotonic() + 60
            while not self.partial_files():
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            fetcher.send_signal(number)
            _, errors = fetcher.communicate(timeout=60)
            self.assertEqual(fetcher.returncode, 128 + number, errors)
            self.assertEqual(self.partial_files(), [])

    def test_removes_the_partial_files_of_an_earlier_call(self):
        stale = [f".{NAMES[0]}.bin.partial", f".{NAMES[4]}.idx.partial"]
        others = [".web-00000-of-00009.bin.partial", ".books-00000-of-00006.bin.partial", f"{NAMES[0]}.partial"]
        for name in stale + others:
            (self.to / name).write_bytes(b"12")
        self.assertEqual(self.call(self.url, "--to", str(self.to), "--indices").returncode, 0)
        self.assertEqual(self.partial_files(), sorted(others))

    def partial_files(self):
        return sorted(path.name for path in self.to.iterdir() if "partial" in path.name)

    def test_a_server_that_recovers(self):
        self.fetcher().index(NAMES[0])
        self.server.ends_after = 8
        threading.Timer(0.5, lambda: setattr(self.server, "ends_after", None)).start()
        self.fetcher().tokens(NAMES[0])
        self.assert_whole(NAMES[:1])

    def test_names_mistakes(self):
        for arguments, words in (
                (["https://example.org/web.bin", "--to", "x"], "expected the address of all shards"),
                ([self.url, "--to", str(self.to), "--ahead", "3"], "--ahead: expected 4 or more"),
                ([self.url, "--to", str(self.to), "--delete-passed"], "needs --run-dir"),
                ([self.server.url("/no-*-of-00002"), "--to", str(self.to), "--deadline", "0.1", "--parallel", "1"],
                 "no-00000-of-00002.idx: could not be fetched: it got no farther for 0.1 s"),
                ([self.url, "--to", str(self.to), "--parallel", "0"], "--parallel: expected 1 or more")):
            result = self.call(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
