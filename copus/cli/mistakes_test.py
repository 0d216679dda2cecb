"""Mistakes of people who have not read the code: command lines, each with what the one message must name. Every one
ends with exit code 2 and leaves nothing behind.
"""

import unittest

from program_test_support import WITH_TORCH, ProgramTest

H100 = ["plan", "--model", "llama-2-13b", "--gpus", "8"]
MISTAKES = [
    (["trian", "my.toml"], ['"trian"', 'did you mean "train"', "'copus --help'"]),
    (["raport", "r"], ['did you mean "report"']),
    (["help"], ["no such command: help", "train", "report"]),
    (["bench"], ["give a command", "comm", "'copus bench --help'"]),
    (["bench", "comn"], ['did you mean "comm"', "'copus bench --help'"]),
    (["plan", "--models", "llama-2-13b"], ["no option --models", "did you mean --model?", "'copus plan --help'"]),
    (["plan", "--models=llama-2-13b"], ["did you mean --model?"]),
    ([*H100, "--cluster", "h100-sxm", "--sequence_length", "4"], ["did you mean --sequence-length?"]),
    ([*H100, "--cluster", "h100-sxm", "--gpu", "4"], ["did you mean --gpus?"]),
    ([*H100, "--cluster", "h100"], ["did you mean h100-sxm?"]),
    ([*H100, "--cluster", "a100"], ["did you mean a100-sxm?"]),
    ([*H100], ["--cluster is required", "'copus plan --help'"]),
    ([*H100, "--cluster", "h100-sxm", "--precision", "fp16"], ["--precision", "fp16", "bf16", "'copus plan --help'"]),
    ([*H100, "--cluster", "h100-sxm", "--top", "ten"], ["--top", "whole number", "ten", "'copus plan --help'"]),
    (["plan", "--model", "lama-2-13b", "--cluster", "h100-sxm"], ["did you mean llama-2-13b?"]),
    (["report", "."], ["no run", "give a run directory"]),
    (["report", "nowhere"], ["nowhere", "no such folder"]),
    (["generate", "runs/my"], ["write --checkpoint runs/my", "'copus generate --help'"]) if WITH_TORCH else
    (["report"], ["DIR is required"]),
    (["report"], ["DIR is required", "'copus report --help'"]),
    (["ctl", "r"], ["COMMAND is required", "'copus ctl --help'"]),
    (["replay", "r", "--jsn"], ["no option --jsn", "'copus replay --help'"]),
    (["convert", "--form", "r"], ["did you mean --from?", "'copus convert --help'"]),
]


class Mistakes(ProgramTest):
    def test_each_is_named_with_what_to_do(self):
        before = sorted(self.folder.rglob("*"))
        for arguments, says in MISTAKES:
            with self.subTest(" ".join(arguments)):
                self.assert_refused(*arguments, says=says)
                self.assertEqual(before, sorted(self.folder.rglob("*")))

    def test_a_folder_of_runs_is_told_from_a_run(self):
        (self.folder / "many" / "a").mkdir(parents=True)
        self.write("many/a/run.jsonl", "")
        self.assert_refused("report", "many", says=["folder of 1", "many/a"])


if __name__ == "__main__":
    unittest.main(argv=[__file__] + __import__("sys").argv[2:])
