#!/usr/bin/env python3
"""tools/tokenize_corpus.py writes the same pair of files behind URLs as of local ones, and resumes broken transfers.

Run by CTest with the path of the program print_documents, as tokenize_corpus_test.py. Exits with 77 (skipped) where
fsspec or aiohttp is not installed.
"""

import concurrent.futures
import gzip
import json
import os
import re
import sys
import threading
import time
from unittest import mock

try:
    import aiohttp  # noqa: F401
    import fsspec
except ImportError as missing:
    print(f"SKIPPED: the test of files behind URLs needs the Python packages fsspec and aiohttp ({missing})")
    sys.exit(77)

import corpus_parts
import corpus_readers
import corpus_workers
import remote_files
from corpus_errors import CorpusError, TransferError
from file_server_test_support import FileServer
from tokenize_test_support import DOCUMENTS, TokenizeTest, program_after, run_tests

SMALL_PIECES = """
import corpus_readers, remote_files, tokenize_corpus
corpus_readers.READ_BYTES = remote_files.BUFFER_BYTES = 4096
tokenize_corpus.PIECE_CHARACTERS = 100_000
"""
SOON = 10  # seconds, for what is meant to stall; what is not meant to needs far less


class RemoteTest(TokenizeTest):
    def setUp(self):
        super().setUp()
        self.server = FileServer()
        self.addCleanup(self.server.stop)
        patched = mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
        patched.start()
        self.addCleanup(patched.stop)

    def serve(self, name, content):
        """Puts a file into the folder and onto the server; returns its path and its URL."""
        path = self.write(name, content)
        self.server.files[f"/{name}"] = path.read_bytes()
        return path, self.server.url(f"/{name}")

    def looked_up(self, url):
        file = remote_files.corpus_input(url)
        file.look_up()
        return file


class EqualResults(RemoteTest):
    def equal(self, local, remote, *options):
        self.tokenize(*local, *options, *self.json_tokenizer())
        expected = self.pair()
        self.remove_output()
        result = self.run_tool(*remote, *options, *self.json_tokenizer())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.pair(), expected)
        self.remove_output()
        return result

    def test_a_url_gives_the_pair_of_the_file(self):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS * 3000)
        self.assertGreater(len(lines), remote_files.BUFFER_BYTES)
        text, text_url = self.serve("a.txt", "|".join(DOCUMENTS * 3))
        packed, packed_url = self.serve("b.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
        plain, plain_url = self.serve("C.JSONL", lines)
        result = self.equal([text, packed, plain], [text_url, f"{packed_url}?download=true", plain_url],
                            "--document-separator", "|")
        self.assertIn("100 %", result.stderr)
        self.equal([text, packed], [text, packed_url], "--document-separator", "|")

    def test_what_servers_say_of_encodings_and_sizes_changes_nothing(self):
        packed, url = self.serve("a.txt.gz", gzip.compress(" ".join(DOCUMENTS).encode(), mtime=0))
        self.server.headers = {"Content-Encoding": "gzip"}
        self.equal([packed], [url])
        self.server.headers, self.server.sends_sizes = {}, False
        self.assertIn("  0 %", self.equal([packed], [url]).stderr)  # of an unknown size no share is known
        self.server.sends_sizes, self.server.sends_ranges = True, True
        self.equal([packed], [url])

    def test_what_cannot_be_noticed_without_a_size_or_a_version_is_noted(self):
        text, url = self.serve("a.txt", " ".join(DOCUMENTS))
        size = f"note: {url}: the server does not say how long the file is, so a transfer that ends early goes unnoticed"
        version = f"note: {url}: the server names no version of the file"
        self.assertNotIn("note:", self.equal([text], [url]).stderr)
        self.server.sends_sizes = False
        says = self.equal([text], [url]).stderr
        self.assertIn(size, says)
        self.assertNotIn(version, says)
        self.server.sends_sizes, self.server.sends_versions = True, False
        says = self.equal([text], [url]).stderr
        self.assertNotIn(size, says)
        self.assertIn(version, says)
        self.server.sends_sizes, self.server.ends_after = False, 9
        beginning = self.write("beginning.txt", text.read_bytes()[:9])
        self.assertIn(size, self.equal([beginning], [url]).stderr)

    def test_other_file_systems_are_read_too(self):
        text, _ = self.serve("a.txt", " ".join(DOCUMENTS))
        self.equal([text], [f"file://{text}"])


class Interruptions(RemoteTest):
    def setUp(self):
        super().setUp()
        self.lines, self.url = self.serve("a.jsonl", "".join(json.dumps({"text": f"{i} " + " ".join(DOCUMENTS)}) + "\n"
                                                             for i in range(10_000)))
        self.size = self.lines.stat().st_size
        self.assertGreater(self.size, 3 << 20)  # aiohttp drops what it holds of a broken transfer, up to 512 KiB
        self.options = [*self.json_tokenizer(), "--processes", 1]
        self.assertEqual(self.run_tool(self.lines, *self.options, output="local").returncode, 0)

    def parts(self):
        """The parts by name, each with what tells whether it was written again."""
        return {path.name: path.stat().st_ino for path in (self.folder / "out.parts").glob("0*")}

    def tokenize_remote(self, code=SMALL_PIECES):
        return self.run_tool(self.url, *self.options, program=program_after(code))

    def interrupted(self, code=SMALL_PIECES):
        """A call that fails to read the file; returns its message and the parts that it leaves."""
        result = self.tokenize_remote(code)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual([path.name for path in self.folder.glob("out*")], ["out.parts"])
        parts = self.parts()
        self.assertTrue(all(name.isdigit() for name in parts), parts)
        return result.stderr, parts

    def check_resumes(self):
        result = self.tokenize_remote()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.pair(), self.pair("local"))
        self.assertEqual(sorted(path.name for path in self.folder.glob("out*")),
                         ["out.bin", "out.idx", "out.tokenizer"])

    def test_a_transfer_that_ends_early_is_resumed(self):
        self.server.ends_after = self.size // 3
        message, few = self.interrupted()
        self.assertTrue(few)
        self.assertRegex(message, rf"{self.url}: the transfer stopped when [\d,]+ of {self.size:,} bytes were read: .*"
                                  "the same command resumes from what is done")
        self.server.ends_after = 2 * self.size // 3
        _, more = self.interrupted()
        self.assertGreater(len(more), len(few))
        self.assertEqual(few, {name: more[name] for name in few})  # none was written again
        self.server.ends_after = None
        self.check_resumes()

    def test_a_transfer_that_stalls_is_resumed(self):
        self.server.ends_after, self.server.stalls = self.size // 2, True
        message, parts = self.interrupted(f"{SMALL_PIECES}remote_files.STALL_SECONDS = {SOON}")
        self.assertTrue(parts)
        self.assertIn(f"of {self.size:,} bytes were read: no data came within {SOON} s", message)
        self.server.ends_after, self.server.stalls = None, False
        self.check_resumes()

    def test_a_file_that_has_changed_is_not_resumed(self):
        self.server.ends_after = self.size // 2
        self.interrupted()
        self.server.ends_after = None
        self.server.files["/a.jsonl"] = self.lines.read_bytes().replace(b"quick", b"slick")
        result = self.tokenize_remote()
        self.assertEqual(result.returncode, 2)
        self.assertIn("was begun with other input", result.stderr)

    def test_a_parquet_file_without_ranges_is_refused_before_there_is_work_to_lose(self):
        _, parquet_url = self.serve("b.parquet", os.urandom(1000))
        command = [self.url, parquet_url, *self.options]
        says = f"{parquet_url}: this format is read at several places"
        self.assertIn(says, self.refused_again(command, []))
        self.server.sends_ranges = True
        self.server.ends_after = self.size // 2
        result = self.run_tool(*command, program=program_after(SMALL_PIECES))
        self.assertEqual(result.returncode, 2)
        self.assertIn("the transfer stopped", result.stderr)
        parts = self.parts()
        self.assertTrue(parts)
        self.server.sends_ranges = False
        self.assertIn(says, self.refused_again(command, ["out.parts"]))
        self.assertEqual(self.parts(), parts)

    def refused_again(self, command, left):
        result = self.run_tool(*command, program=program_after(SMALL_PIECES))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual([path.name for path in self.folder.glob("out*")], left)
        return result.stderr

    def test_a_compressed_file_that_ends_early_is_no_damaged_one(self):
        content = gzip.compress(os.urandom(100_000))
        _, url = self.serve("a.txt.gz", content)
        self.server.ends_after = len(content) // 2
        file = self.looked_up(url)
        with self.assertRaisesRegex(TransferError, f"of {len(content):,} bytes"):
            list(corpus_readers.read_blocks(file, lambda count: None))
        self.server.sends_sizes = False
        file = self.looked_up(url)
        with self.assertRaisesRegex(TransferError, f"{url}: its compressed data do not end; the same command resumes"):
            list(corpus_readers.read_blocks(file, lambda count: None))


class Readers(RemoteTest):
    def memory_file(self, content):
        fsspec.filesystem("memory").pipe("/folder/a.txt", content)
        return self.looked_up("memory://folder/a.txt")

    def test_a_store_that_sends_less_or_more_than_announced_is_named(self):
        file = self.memory_file(b"0123456789")
        fsspec.filesystem("memory").pipe("/folder/a.txt", b"0123")
        with self.assertRaisesRegex(TransferError, "stopped when 4 of 10 bytes were read: the data end there"):
            file.open().read(10)
        fsspec.filesystem("memory").pipe("/folder/a.txt", b"0123456789ab")
        with self.assertRaisesRegex(CorpusError, "has more than the 10 bytes that were announced"):
            file.open().read()

    def test_versions_tell_changed_files(self):
        before = corpus_readers.identity_of(self.memory_file(b"0123456789"))
        self.assertEqual(before, corpus_readers.identity_of(self.looked_up("memory://folder/a.txt")))
        self.assertNotEqual(before, corpus_readers.identity_of(self.memory_file(b"9876543210")))
        _, url = self.serve("a.txt", "text")
        identity = corpus_readers.identity_of(self.looked_up(url))
        self.assertEqual(identity[:2], [url, 4])
        self.assertEqual(len(identity[2]), 64)  # the ETag

    def test_files_are_read_at_any_place_where_the_server_sends_ranges(self):
        content = os.urandom(3 << 20)
        _, url = self.serve("a.parquet", content)
        with self.assertRaisesRegex(CorpusError, f"{url}: this format is read at several places.*download the file"):
            self.looked_up(url).check_is_seekable()
        self.server.sends_sizes = False
        with self.assertRaisesRegex(CorpusError, "does not say how long the file is"):
            self.looked_up(url).check_is_seekable()
        self.server.sends_sizes = self.server.sends_ranges = True
        remote = self.looked_up(url)
        remote.check_is_seekable()
        with remote.open_seekable() as file:
            for place in (len(content) - 8, 0, 2 << 20, 5):
                file.seek(place)
                self.assertEqual(file.read(100_000), content[place:place + 100_000])
        remote = self.looked_up(self.serve("b.parquet", os.urandom(2 * remote_files.BLOCK_BYTES))[1])
        with remote.open_seekable() as file:
            self.server.sends_ranges = False
            file.seek(-8, os.SEEK_END)
            with self.assertRaisesRegex(TransferError, "the same command resumes"):
                file.read(8)
        with remote.open_seekable() as file, self.assertRaisesRegex(TransferError, "the same command resumes"):
            file.seek(-8, os.SEEK_END)
            file.read(8)

    def test_a_call_without_an_answer_ends_at_the_deadline(self):
        answers = threading.Event()
        self.addCleanup(answers.set)
        with mock.patch.object(remote_files, "STALL_SECONDS", 0.1):
            with self.assertRaisesRegex(remote_files.Stalled, "0.1 s"):
                remote_files.within_deadline(answers.wait)


class Workers(RemoteTest):
    def test_workers_are_forked_before_a_thread_starts(self):
        _, url = self.serve("a.txt", "text")
        program = program_after("import os, threading\n"
                                "os.register_at_fork(before=lambda: print('threads:', threading.active_count()))")
        result = self.run_tool(url, *self.json_tokenizer(), "--processes", 3, program=program)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(re.findall(r"threads: (\d+)", result.stdout), 3 * ["1"])

    def test_pieces_that_were_read_are_tokenized_when_a_transfer_breaks(self):
        def pieces():
            yield from 3 * [(["text"], 4)]
            raise TransferError

        def work(number, documents):
            time.sleep(0.05)  # seconds, so that pieces are queued
            return number

        progress = mock.Mock()
        with mock.patch.object(corpus_workers, "tokenize_piece", work, create=True), \
                concurrent.futures.ThreadPoolExecutor(1) as pool:
            with self.assertRaises(TransferError):
                corpus_workers.tokenize_pieces(pieces(), pool, corpus_parts.Parts(self.folder / "out", 300), 3, progress)
        progress.add.assert_has_calls([mock.call(4, number, is_new=True) for number in range(3)], any_order=True)


class BadInput(RemoteTest):
    def test_urls_without_a_file_are_refused(self):
        _, url = self.serve("a.txt", "text")
        closed = FileServer()
        closed.stop()
        for bad, says in [(self.server.url("/none.txt"), "none.txt: cannot be opened: 404"),
                          (closed.url("/a.txt"), "cannot be opened: Cannot connect"),
                          (f"file://{self.folder}", "is a folder; name the files in it"),
                          (f"file://{self.folder}/none", "no such file"),
                          ("nothing://a.txt", "Protocol not known: nothing"), ("http://[a.txt", "invalid")]:
            self.assertIn(says, self.refused(url, bad, *self.json_tokenizer()))

    def test_bad_records_are_named_by_url_and_line(self):
        _, url = self.serve("a.jsonl", '{"text": "a"}\n{\n')
        self.assertIn(f"{url}:2: is not JSON", self.refused(url, *self.json_tokenizer()))

    def test_a_url_is_no_output(self):
        text, _ = self.serve("a.txt", "text")
        result = self.run_tool(text, *self.json_tokenizer(), "--output", "s3://bucket/out")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--output: expected a path on this machine", result.stderr)

    def test_missing_packages_are_named_and_local_files_need_none(self):
        for missing, url, says in [("fsspec", "https://host/a.txt",
                                    "packages fsspec and aiohttp (pip install fsspec aiohttp)"),
                                   ("fsspec", "memory://a.txt", "package fsspec (pip install fsspec)"),
                                   ("aiohttp", "https://host/a.txt", "package aiohttp (pip install aiohttp)"),
                                   ("s3fs", "s3://bucket/a.txt", "package s3fs (pip install s3fs)"),
                                   ("gcsfs", "gs://bucket/a.txt", "package gcsfs (pip install gcsfs)")]:
            program = program_after(f"import sys; sys.modules[{missing!r}] = None")
            result = self.run_tool(url, *self.json_tokenizer(), program=program)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"{url} needs the Python {says}", result.stderr)
            result = self.run_tool(self.write("a.txt", "text"), *self.json_tokenizer(), program=program)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.remove_output()


if __name__ == "__main__":
    run_tests()
