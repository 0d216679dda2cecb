#!/usr/bin/env python3
"""Tests tokens_to_pair.py: what it writes reads back, by Copus too, and what it cannot read it names.

Usage: tokens_to_pair_test.py PATH_TO_PRINT_DOCUMENTS [unittest options].
"""

import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

TOOL = Path(__file__).with_name("tokens_to_pair.py")
PRINT_DOCUMENTS = sys.argv.pop(1)
DOCUMENTS = [[5, 6, 7, 0], [8, 0], [9, 10, 0]]
IDS = [token for document in DOCUMENTS for token in document]


def llm_c(ids, magic=20240520, version=1, code="H"):
    return struct.pack("<256i", magic, version, len(ids), *[0] * 253) + array(code, ids).tobytes()


def numpy_file(ids, descr="<u2", code="H", order=False):
    header = repr({"descr": descr, "fortran_order": order, "shape": (len(ids),)}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array(code, ids).tobytes()


class TokensToPair(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def convert(self, *contents, options=(), code=0, **how):
        paths = []
        for number, content in enumerate(contents):
            paths.append(self.folder / f"{number}.bin")
            paths[-1].write_bytes(content)
        for old in self.folder.glob("out.*"):
            old.unlink()
        done = subprocess.run([sys.executable, TOOL, *paths, "--output", self.folder / "out", *options],
                              capture_output=True, text=True, **how)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        if code:
            self.assertFalse(list(self.folder.glob("out.*")))
        return done.stderr

    def documents(self):
        done = subprocess.run([PRINT_DOCUMENTS, self.folder / "out", "100000"], capture_output=True, text=True, check=True)
        return [[int(token) for token in line.split()] for line in done.stdout.splitlines()]

    def test_bare_token_ids(self):
        for dtype, code in [("uint16", "H"), ("int32", "i"), ("uint32", "I"), ("int64", "q")]:
            self.convert(array(code, IDS).tobytes(), options=["--dtype", dtype, "--eod", "0"])
            self.assertEqual(self.documents(), DOCUMENTS, dtype)
        self.convert(array("i", [70000, 0, 70001, 0]).tobytes(), options=["--dtype", "int32", "--eod", "0"])
        self.assertEqual(self.documents(), [[70000, 0], [70001, 0]])

    def test_each_file_is_a_document_without_an_end(self):
        self.convert(array("H", [1, 2]).tobytes(), array("H", [3]).tobytes(), options=["--dtype", "uint16"])
        self.assertEqual(self.documents(), [[1, 2], [3]])

    def test_files_of_llm_c_whose_documents_begin_with_the_token(self):
        begun = [[0, 5, 6], [0, 8], [0, 9, 10]]
        ids = [token for document in begun for token in document]
        for content in (llm_c(ids), llm_c(ids, magic=20240801, version=7, code="I")):
            self.convert(content, options=["--eod", "0"])
            self.assertEqual(self.documents(), begun)

    def test_numpy_arrays(self):
        for descr, code in [("<u2", "H"), ("<i4", "i"), ("<i8", "q"), ("|u1", "B")]:
            self.convert(numpy_file(IDS, descr, code), options=["--eod", "0"])
            self.assertEqual(self.documents(), DOCUMENTS, descr)

    def test_a_write_that_fails_is_named_and_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        says = self.convert(array("H", [1] * 5000).tobytes(), options=["--dtype", "uint16"], code=2, preexec_fn=limit)
        for words in ("out.bin.partial: File too large after 1,000 bytes", "1,000 bytes (ulimit -f)"):
            self.assertIn(words, says)
        says = self.convert(array("H", [1, 0] * 200).tobytes(), options=["--dtype", "uint16", "--eod", "0"], code=2,
                            preexec_fn=limit)
        self.assertIn("out.idx.partial: File too large", says)

    def test_closed_descriptors_change_nothing(self):
        content, options = array("H", [1, 2, 3]).tobytes(), ("--dtype", "uint16")
        self.convert(content, options=options)
        expected = [(self.folder / f"out{suffix}").read_bytes() for suffix in (".bin", ".idx")]
        for closed in ([1], [0, 1, 2]):
            self.convert(content, options=options, preexec_fn=lambda: [os.close(number) for number in closed])
            self.assertEqual([(self.folder / f"out{suffix}").read_bytes() for suffix in (".bin", ".idx")], expected)

    def test_names_what_it_cannot_read(self):
        self.assertIn("--dtype", self.convert(b"abcd", code=2))
        self.assertIn("is a zip archive (.zip, .npz", self.convert(b"PK\x03\x04", code=2))
        self.assertIn("--dtype", self.convert(struct.pack("<2H", 50256, 3), code=2))
        self.assertIn("no whole number of tokens", self.convert(b"abc", options=["--dtype", "uint16"], code=2))
        self.assertIn("cut off", self.convert(llm_c(IDS)[:-2], code=2))
        self.assertIn("version 3", self.convert(llm_c(IDS, version=3), code=2))
        self.assertIn("'<f4'", self.convert(numpy_file([1, 2], "<f4", "i"), code=2))
        for header in (b"{{{{", b"[1]", b"{'descr': 3}", b"{'descr': '<u2', 'shape': (1,)}", b"\xff",
                       b"{'descr': '<u2', 'shape': (-1,), 'fortran_order': False}", b"(" * 300,
                       b"{'descr': '<u2', 'shape': ('a',), 'fortran_order': False}"):
            self.assertIn("damaged .npy", self.convert(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header,
                                                       code=2), header)
        for cut in (6, 7, 9):
            self.assertIn("damaged .npy", self.convert(numpy_file(IDS)[:cut], code=2), cut)
        self.assertIn("no token ids", self.convert(numpy_file([]), code=2))
        self.assertIn("holds numbers of type 3", self.convert(numpy_file(IDS, 3), code=2))
        self.assertIn("'>u2'", self.convert(numpy_file(IDS, ">u2"), code=2))
        self.assertIn("holds numbers of type [", self.convert(numpy_file(IDS, [("a", "<u2")]), code=2))
        self.assertIn("20 bytes follow them; expected one array a file", self.convert(numpy_file(IDS) + bytes(20), code=2))
        self.assertIn("2 bytes follow", self.convert(llm_c(IDS) + bytes(2), code=2))
        self.assertIn("says -5 tokens", self.convert(struct.pack("<256i", 20240520, 1, -5, *[0] * 253), code=2))
        self.assertIn("cut off", self.convert(numpy_file(IDS)[:-1], code=2))
        self.assertIn("no token ids", self.convert(llm_c([]), code=2))
        self.assertIn("no such token", self.convert(llm_c(IDS), options=["--eod", "11"], code=2))
        self.assertIn("needs --eod", self.convert(llm_c(IDS), options=["--eod-begins"], code=2))
        self.assertIn("-5, which is no token id", self.convert(array("i", [1, -5]).tobytes(),
                                                               options=["--dtype", "int32"], code=2))


if __name__ == "__main__":
    unittest.main()
