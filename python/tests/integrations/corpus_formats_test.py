#!/usr/bin/env python3
"""tools/tokenize_corpus.py writes the same pair from JSONL, .zst, parquet and a folder of datasets.save_to_disk."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import datasets
import pyarrow
import pyarrow.parquet
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers

TOOL = Path(__file__).parents[3] / "tools/tokenize_corpus.py"
sys.path.insert(0, str(TOOL.parent))
from file_server_test_support import FileServer  # noqa: E402

TEXTS = [" ".join(f"w{(i * j) % 99}" for j in range(i % 50)) for i in range(5000)]


class CorpusFormats(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(100)}, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(self.folder / "words.json"))
        self.lines = "".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(TEXTS)).encode()
        (self.folder / "a.jsonl").write_bytes(self.lines)
        self.dataset = datasets.Dataset.from_dict({"id": list(range(len(TEXTS))), "body": TEXTS})

    def run_tool(self, *names, key="body"):
        command = [sys.executable, TOOL, *(name if "://" in name else self.folder / name for name in names),
                   "--tokenizer", self.folder / "words.json", "--eod-token", "w99", "--json-key", key, "--output",
                   self.folder / "out"]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)

    def pair(self, *names):
        result = self.run_tool(*names)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("100 %", result.stderr)
        paths = [self.folder / f"out{suffix}" for suffix in (".bin", ".idx")]
        contents = [path.read_bytes() for path in paths]
        for path in paths:
            path.unlink()
        shutil.rmtree(self.folder / "out.tokenizer")
        return contents

    def refused(self, *names, **options):
        result = self.run_tool(*names, **options)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual(list(self.folder.glob("out*")), [])
        return result.stderr

    def test_zstandard(self):
        packed = zstandard.compress(self.lines[:9999]) + zstandard.compress(self.lines[9999:])
        (self.folder / "a.jsonl.zst").write_bytes(packed)
        self.assertEqual(self.pair("a.jsonl.zst"), self.pair("a.jsonl"))
        (self.folder / "a.jsonl.zst").write_bytes(packed[:-10])
        self.assertIn("is cut off", self.refused("a.jsonl.zst"))
        (self.folder / "a.jsonl.zst").write_bytes(self.lines)
        self.assertIn("no .zst file", self.refused("a.jsonl.zst"))

    def test_parquet(self):
        table = self.dataset.data.table
        pyarrow.parquet.write_table(table.slice(0, 3000), self.folder / "1.parquet", row_group_size=700)
        pyarrow.parquet.write_table(table.slice(3000), self.folder / "2.parquet")
        self.assertEqual(self.pair("1.parquet", "2.parquet"), self.pair("a.jsonl"))
        self.assertIn("--json-key: there are id, body", self.refused("1.parquet", key="text"))
        self.assertIn("1.parquet, row 1: the value", self.refused("1.parquet", key="id"))
        (self.folder / "3.parquet").write_bytes(b"PAR1")
        self.assertIn("3.parquet: cannot be read as parquet", self.refused("3.parquet"))

    def test_parquet_behind_urls(self):
        server = FileServer()
        self.addCleanup(server.stop)
        environment = mock.patch.dict(os.environ, {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})
        environment.start()
        self.addCleanup(environment.stop)
        path = self.folder / "1.parquet"
        pyarrow.parquet.write_table(self.dataset.data.table, path, row_group_size=700)
        server.files["/1.parquet"] = path.read_bytes()
        url = server.url("/1.parquet")
        self.assertIn(f"{url}: this format is read at several places", self.refused(url))
        server.sends_ranges = True
        for each in (url, f"file://{path}"):
            self.assertEqual(self.pair(each), self.pair("a.jsonl"))
        server.ends_after = 1000
        result = self.run_tool(url)
        self.assertEqual(result.returncode, 2)
        self.assertIn("the same command resumes from what is done", result.stderr)
        server.ends_after = None
        self.assertEqual(self.pair(url), self.pair("a.jsonl"))
        server.files["/1.parquet"] = b"PAR1"
        self.assertIn(f"{url}: cannot be read as parquet", self.refused(url))

    def test_folder_of_datasets(self):
        backwards = self.dataset.select(range(len(TEXTS) - 1, -1, -1))
        backwards.select(range(len(TEXTS) - 1, -1, -1)).save_to_disk(self.folder / "set", num_shards=3)
        self.assertEqual(self.pair("set"), self.pair("a.jsonl"))
        self.assertIn("--json-key: there are id, body", self.refused("set", key="text"))
        datasets.DatasetDict({"train": self.dataset, "test": self.dataset}).save_to_disk(self.folder / "splits")
        self.assertEqual(self.pair("splits/train"), self.pair("a.jsonl"))
        self.assertIn("holds the splits train, test; name those to read", self.refused("splits"))


if __name__ == "__main__":
    unittest.main()
