"""Tests how scripts/golden compares. Its training and reading are tested by golden.bits.

Usage: golden_test.py [unittest options].
"""

import importlib.machinery
import importlib.util
import json
import pathlib
import tempfile
import unittest

LOADER = importlib.machinery.SourceFileLoader("golden", str(pathlib.Path(__file__).with_name("golden")))
golden = importlib.util.module_from_spec(importlib.util.spec_from_loader("golden", LOADER))
LOADER.exec_module(golden)


def write_tensors(folder, name, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for tensor, content in tensors.items():
        header[tensor] = {"dtype": "F32", "shape": [len(content) // 4],
                          "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (pathlib.Path(folder) / name).write_bytes(len(text).to_bytes(8, "little") + text + data)


class GoldenTest(unittest.TestCase):
    def test_one_bit_is_a_difference(self):
        row = {"loss": ["0x1.0p+1", "0x1.0p+0"], "state": "a"}
        self.assertIsNone(golden.difference(row, dict(row)))
        other = row | {"loss": ["0x1.0p+1", "0x1.0000000000001p+0"]}
        self.assertEqual(golden.difference(row, other), "loss of step 2: 0x1.0p+0 instead of 0x1.0000000000001p+0")
        self.assertIn("loss:", golden.difference(row | {"loss": ["0x1.0p+1"]}, row))
        self.assertEqual(golden.difference(row | {"state": "b"}, row), "state: b instead of a")
        self.assertIsNotNone(golden.difference(row, {}), "a row that was not recorded")

    def test_the_state_is_that_of_all_tensors_whatever_file_holds_them(self):
        def hash_of(*files):
            with tempfile.TemporaryDirectory() as folder:
                for number, tensors in enumerate(files):
                    write_tensors(folder, f"{number}.safetensors", tensors)
                return golden.hash_of_state(pathlib.Path(folder))

        whole = hash_of({"a": b"1234", "b": b"56789abc"})
        self.assertEqual(hash_of({"b": b"56789abc"}, {"a": b"1234"}), whole)
        self.assertNotEqual(hash_of({"a": b"1235", "b": b"56789abc"}), whole)
        self.assertNotEqual(hash_of({"a": b"1234"}), whole)
        self.assertNotEqual(hash_of({"c": b"1234", "b": b"56789abc"}), whole)


if __name__ == "__main__":
    unittest.main()
