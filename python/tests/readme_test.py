"""The lines of the README run in a loop as a user has it, with the adviser that they use."""

import pathlib
import re
import tempfile
import unittest

import torch

import copus

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


class Readme(unittest.TestCase):
    def test_its_lines_run_in_a_loop(self):
        section = README.read_text(encoding="utf-8").split("## Advice for your own trainer")[1]
        block = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
        made, calls = block.split("# after the first micro-batch's backward:\n")
        first, rest = calls.split("\n", 1)
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 1)
        with tempfile.TemporaryDirectory() as folder:
            made = made.replace("batch=512,", f"batch=512, directory={folder + '/logs'!r},")
            names = {"copus": copus, "torch": torch, "model": model, "dt": 0.1, "lr": 1e-3}
            exec(made, names)
            for _ in range(3):
                model.zero_grad()
                for index in range(64):
                    values = torch.randn(8, 4)
                    (((model(values) - values.sum(1, keepdim=True)) ** 2).mean() / 64).backward()
                    if index == 0:
                        exec(first, names)
                exec(rest, names)
                self.assertTrue(names["advice"] is None or names["advice"].batch > 0)
            self.assertIsNotNone(names["adviser"].noise_scale())
            names["adviser"].close()
            self.assertEqual(len(pathlib.Path(folder, "logs/run.jsonl").read_text().splitlines()), 3)


if __name__ == "__main__":
    unittest.main()
