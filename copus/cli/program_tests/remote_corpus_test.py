"""Tests of a corpus whose shards arrive while a run trains: from a server, by tools/fetch_shards.py, or too late.

Usage: remote_corpus_test.py PATH_TO_COPUS [unittest options].
"""

import functools
import http.server
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest
from array import array

from program_test_support import ROOT, TIMEOUT, WITH_TORCH, ProgramTest
from rank_processes import ranks_of

SHARDS = 12
NAMES = [f"web-{number:05d}-of-{SHARDS:05d}" for number in range(SHARDS)]
FETCH = str(ROOT / "tools" / "fetch_shards.py")
HAS_FSSPEC = subprocess.run([sys.executable, "-c", "import fsspec, aiohttp"], capture_output=True).returncode == 0


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def write_pair(prefix, documents):
    lengths = array("i", map(len, documents))
    prefix.with_name(f"{prefix.name}.bin").write_bytes(array("H", sum(documents, [])).tobytes())
    pointers = [0]
    for length in lengths:
        pointers.append(pointers[-1] + 2 * length)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + lengths.tobytes() +
        array("q", pointers[:-1]).tobytes() + array("q", range(len(lengths) + 1)).tobytes())


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class RemoteCorpus(ProgramTest):
    def setUp(self):
        super().setUp()
        self.remote, self.data = self.folder / "remote", self.folder / "data"
        self.remote.mkdir()
        self.data.mkdir()
        numbers = random.Random(7)
        for name in NAMES:
            write_pair(self.remote / name, [[numbers.randrange(256) for _ in range(numbers.randrange(20, 90))]
                                            for _ in range(20)])
        write_pair(self.folder / "valid", [[numbers.randrange(256) for _ in range(400)]])
        self.write_run("run.toml", steps=40, checkpoint_interval=5)
        text = (self.folder / "run.toml").read_text()
        self.write("run.toml", text.replace('train = "corpus.txt"\nheld_out_fraction = 0.1', (
            f'train = "data/web-*-of-{SHARDS:05d}"\nheld_out = "valid"\nshuffle_shards = true')))

    def bring(self, name):
        shutil.copy(self.remote / f"{name}.bin", self.data / f".{name}")
        (self.data / f".{name}").rename(self.data / f"{name}.bin")

    def bring_next(self):
        """Brings what the run waits for: a step reads one window of four shards, or two."""
        for name in self.listed()[:8]:
            if not (self.data / f"{name}.bin").exists():
                self.bring(name)

    def bring_indices(self):
        for name in NAMES:
            shutil.copy(self.remote / f"{name}.idx", self.data)

    def expected(self):
        """The losses of a run whose shards were all there."""
        here, self.data = self.data, self.folder / "all"
        shutil.copytree(self.remote, self.data)
        try:
            self.assert_done("train", "run.toml", "--run-dir", "expected", "--set",
                             f"data.train=all/web-*-of-{SHARDS:05d}")
        finally:
            self.data = here
        return self.losses("expected")

    def listed(self, run="r"):
        deadline = time.monotonic() + TIMEOUT
        while not (self.folder / run / "shards.txt").exists():
            self.assertLess(time.monotonic(), deadline, "the run lists no shards")
            time.sleep(0.01)
        _, *lines = (self.folder / run / "shards.txt").read_text().splitlines()
        return [line.removeprefix("data/") for line in lines]

    def wait_for_words(self, process, words):
        """Reads the run's output until a line has these words."""
        lines = []
        for line in process.stdout:
            lines.append(line)
            if words in line:
                return line
        self.fail(f"the run does not say {words!r}: {''.join(lines)} {process.stderr.read()}")

    def serve(self):
        handler = functools.partial(QuietHandler, directory=str(self.remote))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}/web-*-of-{SHARDS:05d}"

    def fetcher(self, *arguments):
        process = subprocess.Popen([sys.executable, FETCH, *arguments], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.kill_left_over, process)
        return process

    def test_shards_arrive_while_the_run_trains(self):
        """Each shard comes when the run waits for it; the losses equal those with all shards present. The first wait is
        longer than the time that a rank has for a message, and is in no step's time."""
        wait_limit = 4
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                for folder in ("r", "expected", "all", "data"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                self.data.mkdir()
                self.bring_indices()
                run = self.start("train", "run.toml", "--run-dir", "r", "--set", f"parallel.data_parallel={ranks}",
                                 "--set", f"parallel.wait_limit={wait_limit}", "--set", "heal.enabled=false")
                waits = 0
                for line in run.stdout:
                    self.assertLess(waits, 20)
                    if "waits for the data" not in line:
                        continue
                    waits += 1
                    if waits == 1:
                        time.sleep(wait_limit + 2)
                    missing = next(name for name in NAMES if f"{name}.bin is missing" in line)
                    self.assertIn(missing, self.listed()[:8], "a step reads one window or two")
                    self.bring_next()
                self.assertEqual(run.wait(TIMEOUT), 0, run.stderr.read())
                self.assertGreaterEqual(waits, 2, "the windows of an epoch")
                arrived, expected = self.losses("r"), self.expected()
                self.assertEqual(len(arrived), 40)
                if ranks == 1:
                    self.assertEqual(arrived, expected)
                for line in (self.folder / "r" / "run.jsonl").read_text().splitlines():
                    self.assertLess(json.loads(line)["step_seconds"], wait_limit)
                summary = json.loads((self.folder / "r" / "summary.json").read_text())
                self.assertLess(summary["train_seconds"], wait_limit)

    def test_a_rank_that_fails_during_the_wait_is_replaced(self):
        self.bring_indices()
        run = self.start("train", "run.toml", "--run-dir", "r", "--set", "parallel.data_parallel=2")
        self.wait_for_words(run, "waits for the data")
        self.bring_next()
        self.wait_for_words(run, "waits for the data")
        ranks = ranks_of(run.pid, 2, lambda: run.poll() is None)
        os.kill(ranks[1], signal.SIGKILL)
        self.wait_for_words(run, "waits for the data")
        for name in NAMES:
            self.bring(name)
        output, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0, output + errors)
        healed, expected = self.losses("r"), self.expected()
        self.assertEqual(healed.keys(), expected.keys())
        for step, (loss, *_) in expected.items():
            self.assertAlmostEqual(float(healed[step][0]), float(loss), delta=1e-3 * float(loss))

    def test_a_fetcher_keeps_ahead_of_the_run(self):
        if not HAS_FSSPEC:
            self.skipTest("needs the Python packages fsspec and aiohttp")
        url = self.serve()
        self.assertEqual(self.fetcher(url, "--to", "data", "--indices").wait(TIMEOUT), 0)
        self.assertEqual(sorted(path.name for path in self.data.iterdir()), [f"{name}.idx" for name in NAMES])
        fetcher = self.fetcher(url, "--to", "data", "--run-dir", "r", "--ahead", "8", "--delete-passed")
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assertEqual(fetcher.wait(TIMEOUT), 0, fetcher.stderr.read())
        self.assertEqual(self.losses("r"), self.expected())
        self.assertLessEqual(len(list(self.data.glob("*.bin"))), 8)

    def test_a_shard_that_does_not_come_is_named_and_the_run_resumes(self):
        self.bring_indices()
        run = self.start("train", "run.toml", "--run-dir", "r")
        line = self.wait_for_words(run, "waits for the data")
        self.assertIn("step 0:", line)
        self.bring_next()
        self.wait_for_words(run, "waits for the data")
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 75)
        steps = len(self.losses("r"))
        self.assertGreater(steps, 0)

        next_shard = next(name for name in self.listed() if not (self.data / f"{name}.bin").exists())
        shutil.copy(self.remote / f"{next_shard}.bin", self.data)
        with open(self.data / f"{next_shard}.bin", "r+b") as file:
            file.truncate(100)
        self.bring_next()
        result = self.assert_refused("train", "--resume", "--run-dir", "r", "--set", "data.shard_timeout=1s",
                                     leaves_run_dir=True,
                                     says=[f"{next_shard}.bin has 100 of the", "data.shard_timeout", "fetch_shards.py",
                                           "--resume"])
        self.assertIn(f"step {steps + 1}", result.stderr)
        for name in NAMES:
            self.bring(name)
        with open(self.data / f"{next_shard}.bin", "ab") as file:
            file.write(b"12")
        self.assert_refused("train", "--resume", "--run-dir", "r", leaves_run_dir=True,
                            says=[f"{next_shard}.bin: disagrees with its .idx"])
        self.bring(next_shard)
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assertEqual(self.losses("r"), self.expected())

    def test_bytes_that_come_again_after_a_shard_vanished_are_progress(self):
        """A transfer that begins anew may take longer than data.shard_timeout to get as far as the one before."""
        self.bring_indices()
        run = self.start("train", "run.toml", "--run-dir", "r", "--set", "data.shard_timeout=2s")
        self.wait_for_words(run, "waits for the data")
        name = self.listed()[0]
        tokens, partial = (self.remote / f"{name}.bin").read_bytes(), self.data / f"{name}.bin"
        partial.write_bytes(tokens[:-2])
        time.sleep(1)
        partial.unlink()
        for size in range(2, 14, 2):
            partial.write_bytes(tokens[:size])
            time.sleep(0.6)
        self.assertIsNone(run.poll(), "bytes arrived all the time")
        for shard in NAMES:
            self.bring(shard)
        output, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0, output + errors)

    def test_a_shard_that_is_too_long_is_named_even_if_others_are_missing(self):
        self.bring_indices()
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                shutil.rmtree(self.folder / "r", ignore_errors=True)
                run = self.start("train", "run.toml", "--run-dir", "r", "--set", f"parallel.data_parallel={ranks}")
                self.wait_for_words(run, "waits for the data")
                wrong = max(self.listed()[:4])  # the first one is missing too, and is looked at before
                with open(self.data / f".{wrong}", "wb") as file:
                    file.write((self.remote / f"{wrong}.bin").read_bytes() + b"12")
                (self.data / f".{wrong}").rename(self.data / f"{wrong}.bin")
                _, errors = run.communicate(timeout=TIMEOUT)
                self.assertEqual(run.returncode, 2, errors)
                self.assertIn(f"{wrong}.bin: disagrees with its .idx", errors)
                (self.data / f"{wrong}.bin").unlink()

    def test_documents_stay_apart_by_default(self):
        shutil.copytree(self.remote, self.data, dirs_exist_ok=True)
        for mask, expected in ((None, "true"), ("false", "false")):
            shutil.rmtree(self.folder / "r", ignore_errors=True)
            more = ["--set", f"data.mask_across_documents={mask}"] if mask else []
            begun = self.assert_done("train", "run.toml", "--run-dir", "r", *more)
            self.assertEqual("documents  attend to each other" in begun.stdout, expected == "false", begun.stdout)
            self.assertIn(f"mask_across_documents = {expected}\n", (self.folder / "r" / "config.toml").read_text())
            # The configuration of a resumed run may leave it out, and cannot change it.
            self.assert_done("train", "run.toml", "--resume", "--run-dir", "r", "--set", "train.max_steps=44")
            other = "false" if expected == "true" else "true"
            self.assert_refused("train", "--resume", "--run-dir", "r", "--set", f"data.mask_across_documents={other}",
                                leaves_run_dir=True, says=[f"data.mask_across_documents was {expected}"])

    def test_a_missing_index_is_named_at_the_start(self):
        self.bring_indices()
        (self.data / f"{NAMES[5]}.idx").unlink()
        self.assert_refused("train", "run.toml", "--run-dir", "r",
                            says=[f"{NAMES[5]}.idx is missing", "fetch_shards.py"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
