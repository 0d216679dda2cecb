"""Mistakes of people who have not read the code: command lines, each with what the one message must name. Every one
ends with exit code 2 and leaves nothing behind.
"""

import sys
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
    (["report"], ["DIR is required", "'copus report --help'"]),
    (["ctl", "r"], ["COMMAND is required", "'copus ctl --help'"]),
    (["replay", "r", "--jsn"], ["no option --jsn", "'copus replay --help'"]),
    (["convert", "--form", "r"], ["did you mean --from?", "'copus convert --help'"]),
    (["convert", "--from", "nowhere", "--to", "out"], ["nowhere is not a directory", "expected a run directory"]),
    (["convert", "--from", "folder", "--to", "out"], ["no model in folder", "Hugging Face directory"]),
    (["compare", "nowhere.toml"], ["nowhere.toml", "no such file"]),
    (["compare", "run.toml"], ["run.toml:", "unknown key", "of an experiment", "base, set, seeds"]),
    (["simulate"], ["RUN.toml is required", "'copus simulate --help'"]),
    (["simulate", "run.toml", "adapt.alpha=1"], ["write --set adapt.alpha=1", "'copus simulate --help'"]),
    (["ctl", "folder", "status"], ["no run in folder"]),
    (["report", "corpus.txt"], ["corpus.txt", "no such folder", "give a run directory"]),
    ([*H100, "--cluster", "h100-sxm", "--gpus", "0"], ["--gpus", "at least 1", "got 0"]),
    (["plan", "--model", "run.toml", "--cluster", "h100-sxm"], ["run.toml:", "not valid JSON", "config.json"]),
    ([*H100, "--cluster", "run.toml"], ["run.toml:", "unknown key", "description of a cluster", "ranks_per_node"]),
    (["models", "llama"], ["not expected: llama", "'copus models --help'"]),
]
MISTAKES_IN_TRAINING = [
    (["generate", "runs/my"], ["write --checkpoint runs/my", "'copus generate --help'"]),
    (["train"], ["CONFIG.toml"]),
    (["train", "nowhere.toml"], ["nowhere.toml", "no such file"]),
    (["train", "folder"], ["folder", "expected a file"]),
    (["train", "corpus.txt"], ["corpus.txt:1", "not valid TOML"]),
    (["train", "run.toml", "--lr", "1e-3"], ["no option --lr", "--set section.key=value"]),
    (["train", "run.toml", "optimizer.lr=1e-3"], ["write --set optimizer.lr=1e-3", "'copus train --help'"]),
    (["train", "run.toml", "--set", "optimizer.lr"], ["--set optimizer.lr", "section.key=value"]),
    (["train", "run.toml", "--set", "optimizer.lr=fast"], ["optimizer.lr must be a number", '"fast"']),
    (["train", "run.toml", "--set", "train.global_batch=7"], ["global_batch 7", "micro_batch 4", "4 and 8"]),
    (["train", "run.toml", "--set", "parallel.pipeline_parallel=4"], ["num_hidden_layers 2", "nearest is 2"]),
    (["train", "run.toml", "--set", "parallel.tensor_parallel=3"], ["num_attention_heads 4", "2 and 4"]),
    (["train", "run.toml", "--set", "data.train=nowhere"], ["no such corpus", "nowhere.bin and nowhere.idx"]),
    (["train", "run.toml", "--set", "data.train=folder"], ["it is a folder", "UTF-8 text file"]),
    (["train", "run.toml", "--run-dir", "folder"], ["folder exists and is not empty", "another --run-dir"]),
    (["train", "--resume"], ["--run-dir DIR"]),
    (["train", "--resume", "--run-dir", "nowhere"], ["no run in nowhere", "without --resume"]),
    (["generate"], ["--checkpoint is required", "'copus generate --help'"]),
    (["generate", "--checkpoint", "folder", "--prompt", "x"], ["no model in folder", "a checkpoint"]),
    (["gns"], ["--checkpoint DIR", "--model DIR"]),
]


class Mistakes(ProgramTest):
    def test_each_is_named_with_what_to_do(self):
        (self.folder / "folder").mkdir()
        self.write("folder/note.txt", "")
        before = sorted(self.folder.rglob("*"))
        for arguments, says in MISTAKES + (MISTAKES_IN_TRAINING if WITH_TORCH else []):
            with self.subTest(" ".join(arguments)):
                self.assert_refused(*arguments, says=says)
                self.assertEqual(before, sorted(self.folder.rglob("*")))

    def test_a_folder_of_runs_is_told_from_a_run(self):
        (self.folder / "many" / "a").mkdir(parents=True)
        self.write("many/a/run.jsonl", "")
        self.assert_refused("report", "many", says=["folder of 1", "many/a"])


if __name__ == "__main__":
    unittest.main(argv=[__file__] + sys.argv[2:])
