#!/usr/bin/env python3
"""Round trip: text -> tools/tokenize_corpus.py -> .bin/.idx -> the C++ reader -> the ids that the tokenizer gives.

Run by CTest with the path of the program print_documents, which prints a document's token ids per line. Exits with 77
(skipped) where transformers is not installed.
"""

import errno
import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import unittest
from pathlib import Path
from unittest import mock

try:
    from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
except ImportError as missing:
    print(f"SKIPPED: the tokenizer test needs the Python packages transformers and tokenizers ({missing})")
    sys.exit(77)

import corpus_parts
import corpus_readers
import corpus_tokenizer
import token_windows
from tokenize_test_support import DOCUMENTS, EOS, TokenizeTest, run_tests


class TokenizeCorpusTest(TokenizeTest):
    def test_text_with_separator(self):
        text = self.write("a.txt", "\n\n\n".join(DOCUMENTS) + "\n\n\n\n\n\n")
        self.tokenize(text, "--document-separator", r"\n\n\n", *self.json_tokenizer())
        self.assertEqual(self.read_back(300), self.expected)
        self.assertEqual((self.folder / "out.bin").stat().st_size, 2 * sum(map(len, self.expected)))
        self.assertEqual(self.tokenizer.decode(self.read_back(300)[1]), DOCUMENTS[1])

    def test_separators_across_read_blocks(self):
        # The separator has many bytes, and there are more documents than one read holds: some separator lies on a
        # read's border.
        separator = "=" * 4093
        self.tokenize(self.write("a.txt", separator.join(["ab"] * 1500)), "--document-separator", separator,
                      *self.json_tokenizer())
        self.assertEqual(self.read_back(300), [self.tokenizer.encode("ab").ids + [0]] * 1500)

    def test_a_file_is_a_document(self):
        paths = [self.write(f"{i}.txt", text) for i, text in enumerate(DOCUMENTS)]
        self.tokenize(*paths, *self.json_tokenizer())
        self.assertEqual(self.read_back(300), self.expected)

    def test_jsonl_and_a_hugging_face_directory(self):
        PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token=EOS).save_pretrained(self.folder / "hf")
        lines = self.write("a.jsonl", "".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS))
        self.tokenize(lines, "--json-key", "body", "--tokenizer", self.folder / "hf")
        self.assertEqual(self.read_back(300), self.expected)

    def test_the_tokenizer_is_left_beside_the_pair(self):
        text = " ".join(DOCUMENTS)
        self.tokenize(self.write("a.txt", "text"), *self.json_tokenizer())
        saved = AutoTokenizer.from_pretrained(self.folder / "out.tokenizer")
        self.assertEqual(saved.eos_token, EOS)
        self.assertEqual(saved(text)["input_ids"], self.tokenizer.encode(text).ids)
        PreTrainedTokenizerFast(tokenizer_object=self.tokenizer).save_pretrained(self.folder / "hf")
        result = self.run_tool(self.folder / "a.txt", "--tokenizer", self.folder / "hf", "--eod-token", EOS, output="o2")
        self.assertEqual(result.returncode, 0, result.stderr)
        saved = AutoTokenizer.from_pretrained(self.folder / "o2.tokenizer")
        self.assertEqual(saved.eos_token, EOS)
        self.assertEqual(saved(text)["input_ids"], self.tokenizer.encode(text).ids)

    def test_compressed_files_may_be_joined_ones(self):
        lines = [json.dumps({"text": text}).encode() + b"\n" for text in DOCUMENTS]
        packed = gzip.compress(b"".join(lines[:4])[:-3]) + gzip.compress(b"".join(lines[:4])[-3:] + b"".join(lines[4:]))
        self.tokenize(self.write("a.jsonl.gz", packed), *self.json_tokenizer())
        self.assertEqual(self.read_back(300), self.expected)
        self.remove_output()
        self.assertIn("is cut off", self.refused(self.write("a.jsonl.gz", packed[:-12]), *self.json_tokenizer()))
        self.assertIn("no .gz file", self.refused(self.write("a.jsonl.gz", lines[0]), *self.json_tokenizer()))

    def test_neither_processes_nor_a_kill_change_a_byte(self):
        words = {f"w{i}": i for i in range(1000)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(self.folder / "words.json"))
        # 10 million characters: three pieces.
        row = [f"w{i * i % 999}" for i in range(6000)]
        texts = [" ".join(row[i:i + 4000]) for i in range(600)]
        lines = self.write("a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        options = [lines, "--tokenizer", self.folder / "words.json", "--eod-token", "w999", "--processes"]

        self.assertEqual(self.run_tool(*options, 1, output="one").returncode, 0)
        killed = subprocess.Popen(self.command(*options, 1), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not (self.folder / "out.parts/000000").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.kill()
        self.assertEqual(killed.wait(), -signal.SIGKILL)
        self.assertFalse((self.folder / "out.idx").exists())
        changed = self.run_tool(*options, 1, "--json-key", "body")
        self.assertEqual(changed.returncode, 2)
        self.assertIn("was begun with other input", changed.stderr)
        result = self.run_tool(*options, 3)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.pair(), self.pair("one"))
        self.assertEqual(sorted(path.name for path in self.folder.glob("o*")),
                         [f"{name}{suffix}" for name in ("one", "out") for suffix in (".bin", ".idx", ".tokenizer")])

    def test_a_missing_package_is_named(self):
        for package in ("pyarrow", "zstandard"):
            self.write(f"{package}.py", "raise ImportError")
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        for name, package in [("a.parquet", "pyarrow"), ("a.jsonl.zst", "zstandard")]:
            result = self.run_tool(self.write(name, "x"), *self.json_tokenizer(), env=environment)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"{name} needs the Python package {package}", result.stderr)

    def test_large_vocabularies_need_four_bytes(self):
        words = {f"w{i}": i for i in range(70000)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(self.folder / "words.json"))
        self.tokenize(self.write("a.txt", "w1 w69998"), "--tokenizer", self.folder / "words.json", "--eod-token",
                      "w69999")
        self.assertEqual(self.read_back(70000), [[1, 69998, 69999]])
        self.assertEqual((self.folder / "out.bin").stat().st_size, 12)

    def test_bad_input_is_refused(self):
        text = self.write("a.txt", "text")
        good = self.json_tokenizer()
        self.assertIn("no such file", self.refused(self.folder / "none.txt", *good))
        self.assertIn("is a directory", self.refused(self.folder, *good))
        self.assertIn("is empty", self.refused(self.write("e.txt", ""), *good))
        self.assertIn("offset 4", self.refused(self.write("l.txt", b"one|\xe9"), "--document-separator", "|", *good))
        self.assertIn("a.jsonl:2: is not JSON", self.refused(self.write("a.jsonl", '{"text": "a"}\n{'), *good))
        self.assertIn("--json-key: there are id, body",
                      self.refused(self.write("b.jsonl", '{"id": 1, "body": "a"}\n'), *good))
        self.assertIn("b.jsonl:1: is not an object", self.refused(self.write("b.jsonl", "[1]\n"), *good))
        self.assertIn("not a string", self.refused(self.write("c.jsonl", '{"text": 3}\n'), *good))
        self.assertIn("d.jsonl:1: the value of \"text\" has half of a character",
                      self.refused(self.write("d.jsonl", '{"text": "\\ud83d"}\n'), *good))
        self.assertIn("--eod-token", self.refused(text, *good[:2]))
        self.assertIn("'<none>'", self.refused(text, *good[:2], "--eod-token", "<none>"))
        self.assertIn("not a tokenizers JSON", self.refused(text, "--tokenizer", text, "--eod-token", "x"))

    def test_what_a_tokenizer_says_of_its_own_use_changes_nothing(self):
        text = self.write("a.txt", " ".join(DOCUMENTS))
        self.tokenizer.model.dropout = 0.5
        self.tokenizer.enable_truncation(5)
        self.tokenizer.enable_padding(length=1000)
        self.tokenizer.post_processor = processors.TemplateProcessing(single=f"{EOS} $A {EOS}", special_tokens=[(EOS, 0)])
        self.tokenizer.save(str(self.folder / "tokenizer.json"))
        PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token=EOS).save_pretrained(self.folder / "hf")
        self.tokenizer.model.dropout = None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        expected = [self.tokenizer.encode(" ".join(DOCUMENTS), add_special_tokens=False).ids + [0]]
        for tokenizer in (self.json_tokenizer(), ["--tokenizer", self.folder / "hf"]):
            self.tokenize(text, *tokenizer)
            self.assertEqual(self.read_back(300), expected)
            saved = AutoTokenizer.from_pretrained(self.folder / "out.tokenizer")
            self.assertEqual(saved(" ".join(DOCUMENTS), add_special_tokens=False)["input_ids"] + [0], expected[0])
            self.remove_output()

    def test_what_loses_text_is_reported(self):
        text = self.write("a.txt", "Some words")
        self.assertNotIn("note:", self.run_tool(text, *self.json_tokenizer()).stderr)
        self.remove_output()
        for part, kind, names in [
                ("normalizer", normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), "NFKC, Lowercase"),
                ("normalizer", normalizers.Replace("o", "0"), "Replace"), ("normalizer", normalizers.Strip(), "Strip"),
                ("normalizer", normalizers.StripAccents(), "StripAccents"),
                ("pre_tokenizer", pre_tokenizers.WhitespaceSplit(), "WhitespaceSplit"),
                ("normalizer", normalizers.Replace(" ", ""), "Replace"),
                ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"),
                                                           pre_tokenizers.ByteLevel()]), "Split"),
                ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("[a-z]+| "), "removed", invert=True),
                                                           pre_tokenizers.ByteLevel()]), "Split")]:
            tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
            setattr(tokenizer, part, kind)
            tokenizer.save(str(self.folder / "lossy.json"))
            result = self.run_tool(text, "--tokenizer", self.folder / "lossy.json", "--eod-token", EOS)
            self.assertIn(f"changes texts before it cuts them into tokens: {names}\n", result.stderr)
            self.remove_output()

    def test_what_only_cuts_texts_is_not_reported(self):
        text = self.write("a.txt", "Some words")
        for part, kind in [
                ("normalizer", normalizers.Sequence([])),
                ("normalizer", normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])),
                ("pre_tokenizer", pre_tokenizers.Sequence([  # as tokenizers that came from tiktoken have it
                    pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+"), "removed", invert=True),
                    pre_tokenizers.ByteLevel(use_regex=False)]))]:
            tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
            setattr(tokenizer, part, kind)
            tokenizer.save(str(self.folder / "lossless.json"))
            result = self.run_tool(text, "--tokenizer", self.folder / "lossless.json", "--eod-token", EOS)
            self.assertNotIn("changes texts", result.stderr, kind)
            self.remove_output()

    def test_blanks_that_added_tokens_take_are_reported(self):
        for special, options, is_reported in [(False, [], True), (True, [], False), (True, ["--special-tokens", "token"],
                                                                                    True)]:
            tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
            tokenizer.add_tokens([AddedToken("<m>", lstrip=True, special=special)])
            tokenizer.save(str(self.folder / "added.json"))
            result = self.run_tool(self.write("a.txt", "a  <m> b"), "--tokenizer", self.folder / "added.json",
                                   "--eod-token", EOS, *options)
            self.assertEqual("leaves out blanks beside <m>" in result.stderr, is_reported, (special, options))
            self.remove_output()

    def unknown_words(self, model, pre_tokenizer=None):
        tokenizer = Tokenizer(model)
        if pre_tokenizer is not None:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.save(str(self.folder / "words.json"))
        result = self.run_tool(self.write("b.txt", "Some words <e> ?"), "--tokenizer", self.folder / "words.json",
                               "--eod-token", "<e>")
        self.assertNotIn("Traceback", result.stderr)
        return result

    def test_text_that_a_vocabulary_lacks_is_counted_reported_or_named(self):
        blanks, words = pre_tokenizers.Whitespace(), {"[?]": 0, "Some": 1, "<e>": 2}
        for model in (models.WordLevel(words, unk_token="[?]"),
                      models.Unigram([(word, -1.0) for word in words], unk_id=0)):
            self.assertIn("unknown: 5 tokens are '[?]'", self.unknown_words(model, blanks).stdout)
            self.remove_output()
        for model, pre_tokenizer in [(models.BPE(words, []), None), (models.BPE(words, [], byte_fallback=True), None),
                                     (models.BPE(words, []), pre_tokenizers.ByteLevel())]:
            result = self.unknown_words(model, pre_tokenizer)
            self.assertIn("leaves out characters that its vocabulary lacks", result.stderr)
            self.remove_output()
        for model in (models.WordLevel(words, unk_token="[U]"), models.WordPiece(words, unk_token="[U]"),
                      models.Unigram([(word, -1.0) for word in words])):
            result = self.unknown_words(model, blanks)
            self.assertEqual(result.returncode, 2)
            self.assertIn("stops at the document that begins with 'Some words <e> ?'", result.stderr)
            self.assertFalse((self.folder / "out.parts").exists())

    def test_a_token_that_ends_documents_is_not_called_unknown(self):
        PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token=EOS, unk_token=EOS).save_pretrained(
            self.folder / "hf")
        result = self.run_tool(self.write("a.txt", f"a {EOS} b"), "--tokenizer", self.folder / "hf", "--special-tokens",
                               "token")
        self.assertIn("ends: 1 times", result.stdout)
        self.assertNotIn("unknown:", result.stdout)

    def test_a_damaged_folder_of_a_tokenizer_is_named(self):
        (self.folder / "hf").mkdir()
        for content in ("{", "[1]", '{"tokenizer_class": 3}'):
            self.write("hf/tokenizer_config.json", content)
            with self.assertRaisesRegex(corpus_readers.CorpusError, "hf cannot be loaded"):
                corpus_tokenizer.HuggingFaceTokenizer(self.folder / "hf", special_are_text=True)

    def test_names_of_special_tokens_are_text_unless_asked_otherwise(self):
        body = f"one {EOS} two {EOS}{EOS}"
        PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token=EOS).save_pretrained(self.folder / "hf")
        as_tokens = self.tokenizer.encode(body).ids
        self.assertEqual(as_tokens.count(0), 3)
        self.tokenizer.encode_special_tokens = True
        as_text = self.tokenizer.encode(body).ids
        self.assertEqual(as_text.count(0), 0)
        text = self.write("a.txt", body)
        for tokenizer in (self.json_tokenizer(), ["--tokenizer", self.folder / "hf"]):
            for options, expected, says in [([], as_text, ["name them 3 times; they were written as text"]),
                                            (["--special-tokens", "token"], as_tokens, [
                                                "name them 3 times; they were written as tokens",
                                                "3 times the end-of-document token '<|end|>' stands inside"])]:
                result = self.run_tool(text, *tokenizer, *options)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(self.read_back(300), [expected + [0]])
                for words in says:
                    self.assertIn(words, result.stdout)
                self.assertEqual("stands inside" in result.stdout, "--special-tokens" in options)
                self.remove_output()

    BAD_LINES = [b"{", b"null", b"[1]", b"3", b'{"text": null}', b'{"text": 1}', b'{"other": "a"}', b'{"text": "\\ud83d"}',
                 b'{"text": "\xff"}', b"[" * 100_000, b'{"text": ' * 100_000, b'{"n": 1' + b"0" * 5000 + b', "text": "a"}',
                 b'{"text": "cut o', b"\xef\xbb\xbf\xff\xfe", '{"text": "a"}'.encode("utf-16-le"),
                 '{"text": "a"}'.encode("utf-32-be"), b'{"text": "\xed\xa0\xbd\xed\xb8\x80"}']

    def test_any_bad_line_is_named(self):
        for line in self.BAD_LINES:
            text = self.write("a.jsonl", b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
            says = self.refused(text, *self.json_tokenizer())
            self.assertIn("a.jsonl:2: ", says)
            self.assertIn("--on-bad-record skip", says)

    def test_bad_records_are_skipped_and_listed(self):
        good = [json.dumps({"meta": {"text": f"good {i}"}}).encode() for i in range(30)]
        bad = [line.replace(b'"text"', b'"meta"') for line in self.BAD_LINES]
        lines = self.write("a.jsonl", b"\n".join(good[:10] + bad + good[10:]))
        options = [lines, *self.json_tokenizer(), "--json-key", "meta.text", "--on-bad-record", "skip"]
        says = self.refused(*options)
        self.assertIn("more than --most-bad allows", says)
        self.assertIn(f"a.jsonl:{21}: ", says)
        result = self.run_tool(*options, "--most-bad", "50%")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.read_back(300), [self.tokenizer.encode(f"good {i}").ids + [0] for i in range(30)])
        self.assertIn(f"skipped: {len(bad)} of {30 + len(bad)} records are bad", result.stdout)
        listed = (self.folder / "out.skipped").read_text().splitlines()
        self.assertEqual([line.split(": ")[0] for line in listed], [f"{lines}:{11 + i}" for i in range(len(bad))])

    def test_too_many_bad_records_at_the_end_of_a_short_input_are_named(self):
        lines = self.write("a.jsonl", b'{"text": "a"}\n' * 998 + b"null\n" * 2)
        options = [lines, *self.json_tokenizer(), "--on-bad-record", "skip"]
        says = self.refused(*options)
        for words in ("2 of 1,000 records are bad", "a.jsonl:999: ", "a.jsonl:1000: "):
            self.assertIn(words, says)
        self.tokenize(*options, "--most-bad", "0.2")

    def test_values_of_a_table_that_are_no_text_are_bad_records(self):
        class Value(str):
            def as_py(self):
                if self == "bad":
                    raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
                return str(self)

        class Column(list):
            def to_pylist(self):
                return [value.as_py() for value in self]

        class Batch:
            def __init__(self, names):
                self.schema, self.names = self, names

            def column(self, index):
                return Column(map(Value, [["a", "bad", "b"], ["c", "d", "e"]][index]))

        def texts(key, batch):
            bad = corpus_readers.BadRecords(100, most_bad=1, list_path=self.folder / "list")
            read = list(corpus_readers.texts_of("p", Batch(["text", "meta"]), [batch], key, bad))
            bad.finish()
            return read

        self.assertEqual(texts("text", Batch(["text"])), [("a", 1), ("", 2), ("b", 3)])
        self.assertEqual((self.folder / "list").read_text(), "p, row 2: is not UTF-8 text\n")
        with self.assertRaisesRegex(corpus_readers.CorpusError, 'no key "meta.none"'):
            texts("meta.none", Batch([]))

    def test_a_damaged_folder_of_datasets_is_named(self):
        (self.folder / "ds").mkdir()
        for name, contents in [("state.json", ("{", "[1]", '{"_data_files": [1]}', b"\xff")),
                               ("dataset_dict.json", ("{", "[1]", '{"splits": []}', '{"splits": [1]}', b"\xff"))]:
            for content in contents:
                self.write(f"ds/{name}", content)
                with self.assertRaisesRegex(corpus_readers.CorpusError, f"{name}: is not as datasets"):
                    corpus_readers.files_of(self.folder / "ds")

    def test_bad_documents_of_a_text_are_skipped(self):
        text = self.write("a.txt", b"one|\xe9|two")
        result = self.run_tool(text, "--document-separator", "|", *self.json_tokenizer(), "--on-bad-record", "skip",
                               "--most-bad", "50")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.read_back(300), [self.tokenizer.encode(each).ids + [0] for each in ("one", "two")])
        self.assertIn("bad byte at offset 4", (self.folder / "out.skipped").read_text())

    def test_files_of_other_formats_are_named(self):
        for name, head, says in [("a.npy", b"\x93NUMPY\x01\0", "tokens_to_pair"),
                                 ("a.bin", struct.pack("<3i", 20240520, 1, 2), "llm.c"),
                                 ("b.bin", b"\x9f\xc6\x01\0", "nanoGPT"),
                                 ("a.txt", b"PAR1\x15\0", "ends in .parquet"),
                                 ("b.txt", b"\x1f\x8b\x08\0", "ends in .gz"),
                                 ("c.txt", b"\x28\xb5\x2f\xfd\0", "ends in .zst"),
                                 ("a.arrow", b"ARROW1\0\0", "save it as parquet"),
                                 ("d.txt", "text".encode("utf-16"), "iconv -f UTF-16"),
                                 ("a.safetensors", struct.pack("<Q", 2) + b'{"a": 1}', "safetensors"),
                                 ("a.json", b'{"version": "1.0", "added_tokens": []}', "--tokenizer"),
                                 ("a.zip", b"PK\x03\x04", "zip archive"), ("a.tar", self.tar(), "tar archive"),
                                 ("a.tar.gz", gzip.compress(self.tar()), "unpacks to is a tar archive"),
                                 ("a.txt.gz", gzip.compress("text".encode("utf-16")), "unpacks to is text in UTF-16"),
                                 ("e.txt", "text".encode("utf-32"), "iconv -f UTF-32"),
                                 ("f.txt", "some text".encode("utf-16-le"), "half of its bytes are 0"),
                                 ("c.bin", struct.pack("<4H", 1, 65, 2, 3), "nanoGPT"),  # bytes that are UTF-8, too
                                 ("d.bin", struct.pack("<2q", 1, 65), "nanoGPT"),
                                 ("b.npy", struct.pack("<2H", 50256, 3), "tokens_to_pair"),  # np.memmap of that name
                                 ("a.idx", b"TNTIDX\0\0\1", "old pair of Megatron"),
                                 ("a.pt", b"\x80\x02\x8a", "pickled"), ("a.lz4", b"\x04\x22\x4d\x18", "lz4"),
                                 ("a.model", b"\n\x0e\n\x05<unk>\x15\0\0\x80\xff", "SentencePiece")]:
            path = self.write(name, head)
            with self.assertRaisesRegex(corpus_readers.CorpusError, f"{re.escape(str(path))}: .*{re.escape(says)}"):
                corpus_readers.read_documents(path, "text", "", lambda count: None, None)
        self.assertIn(says, self.refused(path, *self.json_tokenizer()))

    def test_a_text_with_a_word_at_the_mark_of_an_archive_is_text(self):
        path = self.write("a.txt", b"a" * 256 + b"gustar  a todos")
        self.assertIsNone(corpus_readers.format_of(path.read_bytes(), path))

    @staticmethod
    def tar():
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a.txt"))
        return packed.getvalue()

    def test_endings_of_names_count_in_either_case_and_what_tapes_and_editors_add_does_not(self):
        line = json.dumps({"text": DOCUMENTS[0]}).encode() + b"\r\n"
        for name, content in [("A.JSONL", line), ("a.ndjson", line), ("b.JSONL.GZ", gzip.compress(line) + bytes(512)),
                              ("c.jsonl", b"\xef\xbb\xbf" + line), ("d.txt", b"\xef\xbb\xbf" + DOCUMENTS[0].encode())]:
            self.tokenize(self.write(name, content), *self.json_tokenizer())
            self.assertEqual(self.read_back(300), self.expected[:1], name)
            self.remove_output()

    def test_a_pipe_is_refused(self):
        os.mkfifo(self.folder / "pipe")
        self.assertIn("no regular file", self.refused(self.folder / "pipe", *self.json_tokenizer()))

    def test_a_read_that_fails_names_the_file(self):
        class Broken:
            def read(self, size):
                raise OSError(errno.EIO, "Input/output error")

        with self.assertRaises(OSError) as caught:
            corpus_readers.read_block(Broken(), Path("a.txt"), 1)
        self.assertEqual(caught.exception.filename, "a.txt")

    def test_a_file_system_without_locks_is_named_and_used(self):
        parts = corpus_parts.Parts(self.folder / "out", 300)
        with mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available")), \
                mock.patch("sys.stderr", new=io.StringIO()) as says:
            parts.open({})
        self.assertIn("has no file locks", says.getvalue())

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_standard_output_or_error_is_no_end_of_a_job(self):
        text = self.write("a.txt", "text")
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with open("/dev/full", "w") as full:
            done = subprocess.run(self.command(text, *self.json_tokenizer()), stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=buffered)
            self.assertEqual(done.returncode, 2)
            self.assertIn("standard output: No space left on device", done.stderr)
            self.assertIn("out.bin/.idx are complete", done.stderr)
            self.assertNotIn("Exception ignored", done.stderr)
            self.remove_output()
            done = subprocess.run(self.command(text, *self.json_tokenizer()), stdout=subprocess.DEVNULL, stderr=full,
                                  env=buffered)
            self.assertEqual(done.returncode, 0)
            self.assertEqual(len(self.read_back(300)), 1)

    def test_a_limit_on_files_is_named_and_what_is_done_is_kept(self):
        text = self.write("a.txt", "some words " * 100_000)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        result = self.run_tool(text, *self.json_tokenizer(), preexec_fn=limit)
        self.assertEqual(result.returncode, 2, result.stderr)
        for words in ("out.parts/000000", "File too large after 100,000 bytes", "may have 100,000 bytes (ulimit -f)",
                      "make room, and the same command resumes from what is done"):
            self.assertIn(words, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual([path.name for path in (self.folder / "out.parts").iterdir()], ["plan.json"])
        self.tokenize(text, *self.json_tokenizer())
        self.assertEqual(len(self.read_back(300)), 1)

    def test_json_over_many_lines_is_named(self):
        for content in ('[{"text": "a"}, {"text": "b"}]', '[\n{"text": "a"}\n]', json.dumps([{"text": "a"}], indent=1),
                        '\n\n[\n{"text": "a"}\n]', '[ {"text": "a"},\n{"text": "b"}]', '\ufeff[{"text": "a"}]'):
            self.assertIn("is one JSON array; expected one object a line",
                          self.refused(self.write("a.json", content), *self.json_tokenizer()))
        for content in (json.dumps({"text": "a"}, indent=1), '{"data": [\n{"text": "a"}\n]}', '{ "text":\n"a"}'):
            self.assertIn("is one JSON object over several lines",
                          self.refused(self.write("a.json", content), *self.json_tokenizer()))

    def test_windows_of_a_long_document_give_the_tokens_of_the_whole(self):
        words = " ".join(DOCUMENTS) * 60
        texts = [words, words[:900] + " " * 3000 + words, "abc" + "=" * 5001 + words, "7" * 4000 + words, "ab" * 3000,
                 words + EOS + words, "\U0001F600" * 2000]
        runs = DOCUMENTS + [100 * c for c in ("=", "7", "ab", " ")]  # so that long runs become long tokens
        bytes_of = Tokenizer(models.BPE())
        bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        metaspace = Tokenizer(models.BPE(unk_token=EOS))
        metaspace.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        for tokenizer, alphabet in ((bytes_of, pre_tokenizers.ByteLevel.alphabet()), (metaspace, [])):
            trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[EOS], show_progress=False,
                                          initial_alphabet=alphabet)
            tokenizer.train_from_iterator(runs, trainer)
            self.assertLess(len(tokenizer.encode("=" * 64).ids), 8)
        names = ("WINDOW_CHARACTERS", "OVERLAP_CHARACTERS", "AGREEING_TOKENS")
        for name, value in zip(names, (1024, 256, 20)):
            self.addCleanup(setattr, token_windows, name, getattr(token_windows, name))
            setattr(token_windows, name, value)
        for tokenizer in (bytes_of, metaspace):
            for text in texts:
                for special_are_text in (False, True):
                    tokenizer.encode_special_tokens = special_are_text
                    ids = list(token_windows.encode_long(tokenizer, text))
                    self.assertEqual(ids, tokenizer.encode(text, add_special_tokens=False).ids)
        lengths = []

        def encode(part):
            lengths.append(len(part))
            encoding = self.tokenizer.encode(part)
            return encoding.ids, [start for start, _ in encoding.offsets]

        token_windows.encode_in_windows(words, encode)
        self.assertEqual(max(lengths), 1024)

    def test_a_long_document_is_one_sequence(self):
        body = " ".join(DOCUMENTS)
        body *= token_windows.WINDOW_CHARACTERS // len(body) + 100
        self.assertGreater(len(body), token_windows.WINDOW_CHARACTERS)
        PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token=EOS).save_pretrained(self.folder / "hf")
        for tokenizer in (self.json_tokenizer(), ["--tokenizer", self.folder / "hf"]):
            self.tokenize(self.write("a.txt", body), *tokenizer)
            self.assertEqual(self.read_back(300), [self.tokenizer.encode(body).ids + [0]])
            self.remove_output()

    def test_memory_grows_by_a_small_multiple_of_a_long_document(self):
        words = {f"w{i}": i for i in range(1000)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(self.folder / "words.json"))
        # A small process starts the tool, since a peak counts the memory of the process that starts it.
        measure = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr); "
                   "print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")

        def peak(windows):
            body = " ".join(f"w{i * i % 999}" for i in range(6000)) + " "
            body *= windows * token_windows.WINDOW_CHARACTERS // len(body)
            text = self.write(f"{windows}.txt", body)
            command = self.command(text, "--tokenizer", self.folder / "words.json", "--eod-token", "w999",
                                   "--processes", 1, output=f"of-{windows}")
            done = subprocess.run([sys.executable, "-c", measure, *command], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return int(done.stdout), len(body)

        (few_bytes, few), (many_bytes, many) = peak(3), peak(9)
        growth = (many_bytes - few_bytes) / (many - few)
        print(f"peak memory of the tokenizer: {many_bytes >> 20} MiB, {growth:.1f} bytes more a byte of text")
        self.assertLess(growth, 30)  # 2 to 11; without windows 65 to 70 here, and 250 with a tokenizer of bytes

    def test_what_unpacks_to_a_document_that_is_too_long_is_named(self):
        with_long = b"one|" + b"a" * 3_000_000 + b"|two"
        lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in with_long.decode().split("|"))
        text = self.write("a.txt.gz", gzip.compress(with_long))
        packed = self.write("a.jsonl.gz", gzip.compress(lines))
        options = [*self.json_tokenizer(), "--document-separator", "|", "--largest-document", "1.5"]
        self.assertIn("document at offset 4 is longer than 1.5 MiB; --largest-document", self.refused(text, *options))
        self.assertIn("a.jsonl.gz:2: is longer than 1.5 MiB; --largest-document", self.refused(packed, *options))
        for source in (text, packed):
            self.tokenize(source, *options, "--on-bad-record", "skip", "--most-bad", "50")
            self.assertEqual(self.read_back(300), [self.tokenizer.encode(each).ids + [0] for each in ("one", "two")])
            self.remove_output()

    def test_what_is_unpacked_comes_in_small_blocks(self):
        bomb = self.write("a.gz", gzip.compress(bytes(50_000_000)))
        sizes = [len(block) for block in corpus_readers.read_blocks(bomb, lambda count: None)]
        self.assertEqual(sum(sizes), 50_000_000)
        self.assertLessEqual(max(sizes), corpus_readers.READ_BYTES)

    def test_a_terminal_obeys_no_key_of_a_file(self):
        line = json.dumps({"\x1b[31mred\x07": "a"}) + "\n"
        says = self.refused(self.write("a.jsonl", line), *self.json_tokenizer())
        self.assertIn("\\x1b[31mred\\x07", says)
        self.assertNotIn("\x1b", says)

    def test_closed_descriptors_change_nothing(self):
        text = self.write("a.txt", " ".join(DOCUMENTS))
        self.tokenize(text, *self.json_tokenizer())
        for closed in ("1>&-", "2>&-", "0<&- 1>&- 2>&-"):
            shell = ["bash", "-c", f'"$@" {closed}', "bash"]
            result = subprocess.run(shell + self.command(text, *self.json_tokenizer(), output="closed"))
            self.assertEqual(result.returncode, 0, closed)
            for suffix in (".bin", ".idx"):
                self.assertEqual((self.folder / f"closed{suffix}").read_bytes(),
                                 (self.folder / f"out{suffix}").read_bytes())
                (self.folder / f"closed{suffix}").unlink()
            shutil.rmtree(self.folder / "closed.tokenizer")

    def test_existing_output_is_kept(self):
        text = self.write("a.txt", "text")
        self.tokenize(text, *self.json_tokenizer())
        self.assertIn("exists already", self.run_tool(text, *self.json_tokenizer()).stderr)

    def test_a_folder_that_takes_the_tokenizers_place_is_kept(self):
        text = self.write("a.txt", "text")
        (self.folder / "out.parts").mkdir()  # as a killed call leaves it
        (self.folder / "out.tokenizer").mkdir()
        (self.folder / "out.tokenizer" / "model.safetensors").write_text("mine")
        self.assertIn("is not this tokenizer", self.run_tool(text, *self.json_tokenizer()).stderr)
        self.assertEqual((self.folder / "out.tokenizer" / "model.safetensors").read_text(), "mine")
        shutil.rmtree(self.folder / "out.tokenizer")
        for _ in range(2):  # the second call finds that of the first one
            self.assertEqual(self.run_tool(text, *self.json_tokenizer()).returncode, 0)
            (self.folder / "out.idx").unlink()
            (self.folder / "out.parts").mkdir()


if __name__ == "__main__":
    run_tests()
