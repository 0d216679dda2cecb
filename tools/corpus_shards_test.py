#!/usr/bin/env python3
"""Shards that tools/tokenize_corpus.py writes hold the documents of the single pair, also after an interruption.

Run by CTest with the path of the program print_documents, as tokenize_corpus_test.py.
"""

import json
import random
import re
import shutil
import signal
import unittest
from array import array

import corpus_shards
from tokenize_test_support import DOCUMENTS, TokenizeTest, program_after, run_tests

# Kills the tool before the rename of a file of a shard, when so many files of shards have their names.
DIES_AT_RENAME = """
import os, pathlib, signal
rename, renamed = pathlib.Path.rename, []
def rename_or_die(source, target):
    if source.name.startswith("out-"):
        if len(renamed) == {place}:
            os.kill(os.getpid(), signal.SIGKILL)
        renamed.append(source)
    return rename(source, target)
pathlib.Path.rename = rename_or_die
"""

FAILS_AT_LAST_INDEX = """
import corpus_shards, errno
write_index = corpus_shards.write_index
def write_or_fail(path, *arguments):
    if "-00004-of-" in path.name:
        with corpus_shards.writing(path):
            raise {error}
    write_index(path, *arguments)
corpus_shards.write_index = write_or_fail
"""


class ShardsOf(unittest.TestCase):
    def lengths_of(self, lengths, most):
        shards = corpus_shards.shards_of("p", array("i", lengths), most)
        self.assertEqual([shard.prefix for shard in shards],
                         [f"p-{number:05d}-of-{len(shards):05d}" for number in range(len(shards))])
        return [lengths[shard.begin:shard.end] for shard in shards]

    def test_a_shard_takes_the_documents_that_fit(self):
        self.assertEqual(self.lengths_of([3, 3, 4, 1, 9, 10], 10), [[3, 3, 4], [1, 9], [10]])
        self.assertEqual(self.lengths_of([5], 10), [[5]])
        self.assertEqual(self.lengths_of([1, 1, 1], 1), [[1], [1], [1]])

    def test_a_longer_document_is_alone(self):
        self.assertEqual(self.lengths_of([1, 11, 1], 10), [[1], [11], [1]])
        self.assertEqual(self.lengths_of([11, 12], 10), [[11], [12]])

    def test_shards_are_the_whole_and_no_two_neighbours_fit_into_one(self):
        draw = random.Random(1)
        for _ in range(300):
            lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 50))]
            most = draw.randint(1, 60)
            shards = self.lengths_of(lengths, most)
            self.assertEqual(sum(shards, []), lengths)
            for shard, following in zip(shards, [*shards[1:], [most]]):
                self.assertTrue(sum(shard) <= most or len(shard) == 1)
                self.assertGreater(sum(shard) + following[0], most)

    def test_without_a_limit_there_is_one_pair_with_the_plain_name(self):
        self.assertEqual(corpus_shards.shards_of("p", array("i", [1, 2]), None), [("p", 0, 2)])


class ShardsTest(TokenizeTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("a.txt", "|".join(DOCUMENTS * 40))
        self.options = [self.text, "--document-separator", "|", *self.json_tokenizer()]

    def shard_names(self):
        return sorted(path.stem for path in self.folder.glob("out-*.idx"))

    def test_shards_are_the_single_pair_cut_between_documents(self):
        self.tokenize(*self.options)
        # Parts that end inside of shards, and shards that end inside of parts.
        program = program_after("import tokenize_corpus; tokenize_corpus.PIECE_CHARACTERS = 900")
        result = self.run_tool(*self.options, "--shard-tokens", "1e3", output="out-of-many/out", program=program)
        self.assertEqual(result.returncode, 0, result.stderr)
        folder = self.folder / "out-of-many"
        names = sorted(path.stem for path in folder.glob("*.idx"))
        self.assertGreater(len(names), 2)
        self.assertEqual(names, [f"out-{i:05d}-of-{len(names):05d}" for i in range(len(names))])
        self.assertEqual(sorted(path.name for path in folder.iterdir()), sorted(
            [f"{name}{suffix}" for name in names for suffix in (".bin", ".idx")] + [f"{names[0]}.tokenizer"]))
        self.assertEqual(b"".join((folder / f"{name}.bin").read_bytes() for name in names), self.pair()[0])
        shards = [self.read_back(300, f"out-of-many/{name}") for name in names]
        self.assertEqual(sum(shards, []), self.read_back(300))
        self.assertLessEqual(max(sum(map(len, shard)) for shard in shards), 1000)
        self.assertIn(f"{folder}/{names[0]}.bin/.idx to {folder}/{names[-1]}.bin/.idx: 360 documents", result.stdout)
        train = re.search(r"data.train = (.*), model.vocab_size = 300", result.stdout)
        self.assertEqual(json.loads(train[1]), f"{folder}/out-*-of-{len(names):05d}")
        self.assertNotIn("shards:", result.stdout)

    def test_documents_that_are_too_long_are_counted(self):
        result = self.run_tool(*self.options, "--shard-tokens", 8)
        longer = sum(len(ids) > 8 for ids in self.expected) * 40
        self.assertIn(f"shards: {longer} documents have more than 8 tokens; each is a shard of its own", result.stdout)
        self.assertEqual([self.read_back(300, name) for name in self.shard_names()[:9]],
                         [[ids] for ids in self.expected])

    def test_one_shard_has_a_number_too(self):
        self.tokenize(*self.options, "--shard-tokens", "1e9")
        self.assertEqual(self.shard_names(), ["out-00000-of-00001"])
        self.assertEqual(self.read_back(300, "out-00000-of-00001"), self.expected * 40)

    def test_a_kill_between_renames_changes_no_byte(self):
        options = [*self.options, "--shard-tokens", 1000]
        self.tokenize(*options)
        expected = {path: path.read_bytes() for path in self.folder.glob("out-*.*") if path.is_file()}
        last = self.folder / f"{self.shard_names()[-1]}.idx"
        for place in (0, 1, len(expected) // 2, len(expected) - 1):
            shutil.rmtree(self.folder / "out-00000-of-00005.tokenizer")
            for path in expected:
                path.unlink()
            killed = self.run_tool(*options, program=program_after(DIES_AT_RENAME.format(place=place)))
            self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr)
            self.assertFalse(last.exists())
            self.assertIn("was begun with other", self.run_tool(*options[:-1], 999).stderr)
            self.tokenize(*options)
            self.assertEqual({path: path.read_bytes() for path in self.folder.glob("out*") if path.is_file()}, expected)
            self.assertFalse((self.folder / "out.parts").exists())

    def test_a_failure_leaves_no_part_of_a_shard(self):
        options = [*self.options, "--shard-tokens", 1000]
        self.tokenize(*options)
        names = sorted(path.name for path in self.folder.glob("out-*"))
        expected = {path: path.read_bytes() for path in self.folder.glob("out-*.*") if path.is_file()}
        for error, code, says in [("OSError(errno.ENOSPC, 'No space left on device')", 2, "make room, and the same command"),
                                  ("KeyboardInterrupt", 130, "stopped; the same command resumes from what is done")]:
            shutil.rmtree(self.folder / "out-00000-of-00005.tokenizer")
            for path in expected:
                path.unlink()
            failed = self.run_tool(*options, program=program_after(FAILS_AT_LAST_INDEX.format(error=error)))
            self.assertEqual(failed.returncode, code, failed.stderr)
            self.assertIn(says, failed.stderr)
            self.assertEqual(sorted(path.name for path in self.folder.glob("out*")),
                             ["out-00000-of-00005.tokenizer", "out.parts"])
            self.tokenize(*options)
            self.assertEqual(sorted(path.name for path in self.folder.glob("out*")), names)
            self.assertEqual({path: path.read_bytes() for path in expected}, expected)

    def test_shards_that_are_there_are_kept(self):
        options = [*self.options, "--shard-tokens", 1000]
        self.tokenize(*options)
        self.assertIn("exists already; remove the shards", self.run_tool(*options).stderr)
        (self.folder / "out.parts").mkdir()  # as of a call that was killed when it deleted its parts
        self.assertIn("-00004-of-00005.idx: exists already", self.run_tool(*options).stderr)
        (self.folder / "out.parts").rmdir()
        self.tokenize(*self.options)  # the single pair has another name

    def test_counts_that_are_none_are_refused(self):
        for count in ("0", "-1", "1.5", "many", "inf", "nan"):
            says = self.refused(*self.options, f"--shard-tokens={count}")
            self.assertIn("--shard-tokens: ", says)


if __name__ == "__main__":
    run_tests()
