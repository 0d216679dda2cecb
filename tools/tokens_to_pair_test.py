#!/usr/bin/env python3
"""Tests tokens_to_pair.py: what it writes reads back, by Copus too, and what it cannot read it names.

Usage: tokens_to_pair_test.py PATH_TO_PRINT_DOCUMENTS [unittest options].
"""

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

    def convert(self, *contents, options=(), code=0):
        paths = []
        for number, content in enumerate(contents):
            paths.append(self.folder / f"{number}.bin")
            paths[-1].write_bytes(content)
        for old in self.folder.glob("out.*"):
            old.unlink()
        done = subprocess.run([sys.executable, TOOL, *paths, "--output", self.folder / "out", *options],
                              capture_output=True, text=True)
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

    def test_names_what_it_cannot_read(self):
        self.assertIn("--dtype", self.convert(b"abcd", code=2))
        self.assertIn("no whole number of tokens", self.convert(b"abc", options=["--dtype", "uint16"], code=2))
        self.assertIn("cut off", self.convert(llm_c(IDS)[:-2], code=2))
        self.assertIn("version 3", self.convert(llm_c(IDS, version=3), code=2))
        self.assertIn("'<f4'", self.convert(numpy_file([1, 2], "<f4", "i"), code=2))
        self.assertIn("damaged .npy", self.convert(b"\x93NUMPY\x01\x00\x04\x00{{{{", code=2))
        self.assertIn("cut off", self.convert(numpy_file(IDS)[:-1], code=2))
        self.assertIn("no token ids", self.convert(llm_c([]), code=2))
        self.assertIn("-5, which is no token id", self.convert(array("i", [1, -5]).tobytes(),
                                                               options=["--dtype", "int32"], code=2))


if __name__ == "__main__":
    unittest.main()
