#!/usr/bin/env python3
"""Copies the shards of a corpus to this machine in the order in which a run reads them, a few ahead of the run.

    tools/fetch_shards.py 'https://example.org/web-*-of-02000' --to data --indices
    tools/fetch_shards.py 'https://example.org/web-*-of-02000' --to data --run-dir runs/a --ahead 16 --delete-passed

The shards are those that tools/tokenize_corpus.py --shard-tokens writes, behind a URL that fsspec reads: https://,
s3://, gs:// and others. The first call copies the indices of all shards, which are small and which a run with
data.shuffle_shards = true needs at its start. The second call follows the run: it reads the list of the next shards in
the run directory (shards.txt) and keeps the first --ahead of them here, until the run is complete. With --delete-passed
it deletes the tokens of the other shards. If the run is complete at the start, the program waits up to --deadline for
the run to be resumed; until then it neither copies nor deletes tokens. Without --run-dir it copies all shards. Up to
--parallel files are copied at a time.

A shard gets its final name only when it is complete, with the size that its index gives. A transfer that fails or ends
early is repeated. If a file makes no progress for --deadline, the program names the file and exits with code 2. Ctrl-C
and SIGTERM stop it, with exit codes 130 and 143. It removes the partial files of earlier calls, so for each corpus and
folder only one call may run at a time.
"""

import argparse
import json
import os
import queue
import re
import signal
import struct
import sys
import threading
import time
from array import array
from pathlib import Path

import remote_files
from corpus_errors import CorpusError, SetupError, printable
from standard_streams import open_standard_descriptors, tell

PATTERN = re.compile(r"(.*/)([^/]*)-\*-of-(\d{5,9})")
ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}  # by the dtype of an index
HEADER = struct.Struct("<9sQBQQ")
NEEDED = re.compile(r"# The next step needs the first (\d+)\.\n")  # the first line of shards.txt
COPY_BYTES = 1 << 20
BETWEEN_LOOKS = 0.2  # seconds
LEAST_AHEAD = 4  # ShardOrder::window in copus/data/shard_order.h


def names_of(pattern):
    """The address of the shards' folder, and the names of all shards."""
    found = PATTERN.fullmatch(pattern)
    if not found:
        raise CorpusError(f"{pattern}: expected the address of all shards, such as https://example.org/web-*-of-02000")
    folder, stem, digits = found.groups()
    return folder, [f"{stem}-{number:05d}-of-{digits}" for number in range(int(digits))]


def token_bytes(index):
    """The size of the .bin according to its index. Raises CorpusError if it is damaged."""
    data = index.read_bytes()
    if len(data) < HEADER.size or not data.startswith(b"MMIDIDX\0\0"):
        raise CorpusError(f"{index}: is no Megatron index; delete it, and it is fetched again")
    _, _, dtype, sequences, documents = HEADER.unpack_from(data)
    if dtype not in ITEM_BYTES or len(data) != HEADER.size + 12 * sequences + 8 * documents:
        raise CorpusError(f"{index}: is damaged: its size or the type of its tokens is wrong; delete it, and it is "
                          "fetched again")
    lengths = array("i")
    lengths.frombytes(data[HEADER.size:HEADER.size + 4 * sequences])
    return sum(lengths) * ITEM_BYTES[dtype]


class Transfers:
    """Up to `most` calls at a time, each in a thread that does not keep the program alive."""

    def __init__(self, most):
        self._most, self._done = most, queue.SimpleQueue()
        self.running = set()

    def has_room(self):
        return len(self.running) < self._most

    def start(self, name, call):
        """Calls call(name)."""
        def work():
            try:
                call(name)
                self._done.put((name, None))
            except BaseException as error:
                self._done.put((name, error))

        self.running.add(name)
        threading.Thread(target=work, daemon=True).start()

    def take(self):
        """Returns the name of a call that has ended, or raises its exception. Returns None if no call ends soon: an
        unlimited wait might miss a signal that arrives as it begins."""
        try:
            name, error = self._done.get(timeout=BETWEEN_LOOKS)
        except queue.Empty:
            return None
        self.running.discard(name)
        if error is not None:
            raise error
        return name

    def run_all(self, names, call):
        """Calls call(name) for every name, and returns when all calls have ended."""
        for name in names:
            while not self.has_room():
                self.take()
            self.start(name, call)
        while self.running:
            self.take()


class Progress:
    """Of a file, over all attempts: how far one of them came, and when."""

    def __init__(self):
        self._most, self._at = -1, time.monotonic()

    def reach(self, size):
        if size > self._most:
            self._most, self._at = size, time.monotonic()

    def seconds_ago(self):
        return time.monotonic() - self._at


class Fetcher:
    def __init__(self, folder_url, to, deadline):
        self.folder_url, self.to, self.deadline = folder_url, to, deadline
        self._opening, self._has_ended = threading.Lock(), False

    def end(self, names):
        """Removes the partial files of these shards. Transfers that still run make no new ones."""
        with self._opening:
            self._has_ended = True
        remove_partial_files(self.to, names)

    def index(self, name):
        """Copies an index, unless it is here."""
        path = self.to / f"{name}.idx"
        if not path.exists():
            self._fetch(path, lambda partial: token_bytes(partial))
        return path

    def has_tokens(self, name):
        """Whether the tokens of a shard are here, all of them."""
        path = self.to / f"{name}.bin"
        return path.exists() and path.stat().st_size == token_bytes(self.index(name))

    def tokens(self, name):
        """Copies the tokens of a shard, unless they are here."""
        path, expected = self.to / f"{name}.bin", token_bytes(self.index(name))

        def check(partial):
            size = partial.stat().st_size
            if size != expected:
                raise CorpusError(f"{self.folder_url}{path.name}: has {size:,} bytes, and its index says {expected:,}")

        if path.exists() and path.stat().st_size != expected:
            tell(f"note: {path} has {path.stat().st_size:,} of {expected:,} bytes; it is copied again")
            path.unlink()
        if not path.exists():
            self._fetch(path, check)

    def _fetch(self, path, check):
        """Copies to a temporary name, and gives the file its own when it has been checked."""
        progress, attempts = Progress(), 0
        partial = partial_of(path)
        while True:
            attempts += 1
            try:
                self._copy(f"{self.folder_url}{path.name}", partial, progress)
                check(partial)
                partial.rename(path)
                return
            except CorpusError as error:
                if self._has_ended or isinstance(error, SetupError):
                    raise
                left = self.deadline - progress.seconds_ago()
                if left <= 0:
                    raise CorpusError(f"{path}: could not be fetched: it got no farther for {self.deadline:g} s "
                                      f"({attempts} attempts): {error}") from error
                tell(f"note: attempt {attempts}: {error}")
                time.sleep(min(left, 2.0 ** min(attempts, 5) / 4))
            finally:
                partial.unlink(missing_ok=True)

    def _open(self, partial):
        with self._opening:
            if self._has_ended:
                raise CorpusError(f"{partial}: the program ends")
            return open(partial, "wb")

    def _copy(self, url, partial, progress):
        file = remote_files.RemoteFile(url)
        file.look_up()
        with file.open() as source, self._open(partial) as target:
            while block := source.read1(COPY_BYTES):  # what has arrived
                target.write(block)
                progress.reach(target.tell())
            target.flush()
            os.fsync(target.fileno())


def partial_of(path):
    return path.with_name(f".{path.name}.partial")


def remove_partial_files(folder, names):
    """Removes what transfers of these shards have left, and no other file."""
    for name in names:
        for end in ("idx", "bin"):
            partial_of(folder / f"{name}.{end}").unlink(missing_ok=True)


def completion(run_dir):
    """When the run wrote that it is complete; None if it is not."""
    summary, shards = run_dir / "summary.json", run_dir / "shards.txt"
    try:
        if json.loads(summary.read_text())["ended"] != "done":
            return None
        written = summary.stat().st_mtime_ns
        # A run that is resumed to train longer lists its shards anew, and keeps its old summary until it ends again.
        return None if shards.exists() and shards.stat().st_mtime_ns > written else written
    except (FileNotFoundError, ValueError, KeyError):
        return None


def wanted(run_dir, names, ahead):
    """Returns the names of the run's next shards that belong to this corpus, in the order in which the run needs them.
    The next shards are the first `ahead` of all corpora, and all that the next step needs."""
    try:
        text = (run_dir / "shards.txt").read_text()
    except FileNotFoundError:
        return []  # the run has not begun
    needed = NEEDED.match(text)
    count = max(ahead, int(needed[1]) if needed else 0)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [name for name in (Path(line).name for line in lines[:count]) if name in names]


def is_to_be_followed(run_dir, seconds):
    """Whether the run is not complete, or is resumed within some seconds. Its list is stale until then."""
    before, until = completion(run_dir), time.monotonic() + seconds
    if before is None:
        return True
    tell(f"note: the run in {run_dir} is complete; waiting up to {seconds:g} s for it to be resumed")
    while completion(run_dir) == before:
        if time.monotonic() >= until:
            return False
        time.sleep(BETWEEN_LOOKS)
    return True


def follow(fetcher, names, run_dir, ahead, delete_passed, transfers):
    """Keeps the run's next shards here until it is complete."""
    if not is_to_be_followed(run_dir, fetcher.deadline):
        tell(f"the run in {run_dir} is complete and was not resumed")
        return
    known = set(names)
    while completion(run_dir) is None:
        keep = wanted(run_dir, known, ahead)
        if delete_passed and keep:
            for name in names:
                if name not in keep:
                    (fetcher.to / f"{name}.bin").unlink(missing_ok=True)
        for name in keep:
            if not transfers.has_room():
                break
            if name not in transfers.running and not fetcher.has_tokens(name):
                transfers.start(name, fetcher.tokens)
        if fetched := transfers.take():
            tell(f"fetched {fetched}")
    tell(f"the run in {run_dir} is complete")


def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)  # so that a second one does not interrupt the end
    raise SystemExit(128 + number)


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, and not {text!r}")
    return value


def main():
    open_standard_descriptors()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", metavar="URL", help="the address of all shards: https://example.org/web-*-of-02000")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the folder to copy them to")
    parser.add_argument("--indices", action="store_true", help="copy the indices and nothing else")
    parser.add_argument("--run-dir", type=Path, metavar="RUN", help="the run to follow, which may begin later")
    parser.add_argument("--ahead", type=int, default=16, metavar="COUNT",
                        help="how many of the run's next shards to keep here; default: 16. A run reads four at a time "
                        "of each weighted corpus, and needs the next four at once")
    parser.add_argument("--delete-passed", action="store_true",
                        help="delete the tokens of all shards of this corpus that are not among them")
    parser.add_argument("--deadline", type=positive, default=600, metavar="SECONDS",
                        help="how long a file may get no farther, over all attempts, and a complete run may wait to be "
                        "resumed; default: 600")
    parser.add_argument("--parallel", type=int, default=4, metavar="COUNT", help="files copied at a time; default: 4")
    arguments = parser.parse_args()
    if arguments.ahead < LEAST_AHEAD:
        parser.error(f"--ahead: expected {LEAST_AHEAD} or more, which is what a run reads at a time")
    if arguments.delete_passed and not arguments.run_dir:
        parser.error("--delete-passed: needs --run-dir, the run that says which shards it has passed")
    if arguments.parallel < 1:
        parser.error("--parallel: expected 1 or more")
    remote_files.STALL_SECONDS = min(remote_files.STALL_SECONDS, arguments.deadline)
    transfers, fetcher = Transfers(arguments.parallel), None
    signal.signal(signal.SIGTERM, stop)
    try:
        folder_url, names = names_of(arguments.shards)
        arguments.to.mkdir(parents=True, exist_ok=True)
        remove_partial_files(arguments.to, names)
        fetcher = Fetcher(folder_url, arguments.to, arguments.deadline)
        transfers.run_all(names, fetcher.index)
        tell(f"indices of {len(names)} shards are in {arguments.to}")
        if arguments.run_dir and not arguments.indices:
            follow(fetcher, names, arguments.run_dir, arguments.ahead, arguments.delete_passed, transfers)
        elif not arguments.indices:
            transfers.run_all(names, fetcher.tokens)
    except CorpusError as error:
        parser.error(printable(error))  # exit code 2
    except OSError as error:
        parser.error(printable(f"{error.filename}: {error.strerror}" if error.filename else error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if fetcher:
            fetcher.end(transfers.running)
    return 0


if __name__ == "__main__":
    sys.exit(main())
