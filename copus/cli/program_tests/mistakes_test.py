"""Typical mistakes of new users: command lines, each with words that the single message must contain. Every command
must exit with code 2 and leave no files behind.
"""

import fcntl
import struct
import sys
import unittest

from program_test_support import WITH_TORCH, ProgramTest

H100 = ["plan", "--model", "llama-2-13b", "--gpus", "8"]
SXM = [*H100, "--cluster", "h100-sxm"]
MISTAKES = [
    # Names of commands and options.
    ([], ["give a command: train, generate", "'copus --help'"]),
    (["trian", "my.toml"], ['"trian"', 'did you mean "train"', "'copus --help'"]),
    (["Train", "run.toml"], ['did you mean "train"']),
    (["raport", "r"], ['did you mean "report"']),
    (["run.toml"], ['no command "run.toml"', "write copus train run.toml"]),
    (["help"], ['no command "help"', "did you mean --help", "'copus --help'"]),
    (["version"], ["did you mean --version"]),
    (["chat", "r"], ['no command "chat"', "the commands are train, generate"]),
    (["--hlep"], ["no option --hlep", "did you mean --help"]),
    (["bench"], ["give a command", "comm", "'copus bench --help'"]),
    (["bench", "comn"], ['did you mean "comm"', "'copus bench --help'"]),
    (["plan", "--models", "llama-2-13b"], ["no option --models", "did you mean --model?", "'copus plan --help'"]),
    (["plan", "--models=llama-2-13b"], ["did you mean --model?"]),
    (["plan", "-model", "llama-2-13b"], ["two dashes", "write --model"]),
    ([*SXM, "--sequence_length", "4"], ["did you mean --sequence-length?"]),
    ([*SXM, "--seq-len", "4096"], ["did you mean --sequence-length?"]),
    ([*SXM, "--context-length", "4096"], ["did you mean --sequence-length?"]),
    ([*SXM, "--batch-size", "64"], ["did you mean --global-batch?"]),
    ([*SXM, "--context", "4096"], ["no option --context", "its options are --model, --cluster"]),
    ([*SXM, "--gpu", "4"], ["did you mean --gpus?"]),
    (["plan", "llama-2-13b", "h100-sxm"], ["write --model llama-2-13b --cluster h100-sxm", "'copus plan --help'"]),
    (["report", "r", "--out", "x.html"], ["did you mean --output?"]),
    (["watch", "--run-dir", "r"], ["no option --run-dir", "RUN_DIR is given without an option"]),
    (["watch"], ["RUN_DIR is required: the run directory", "'copus watch --help'"]),
    (["report"], ["DIR is required", "'copus report --help'"]),
    (["ctl", "r"], ["COMMAND is required", "'copus ctl --help'"]),
    (["ctl", "r", "force", "B", "32"], ["not expected: 32", "RUN_DIR, COMMAND, TARGET", "'copus ctl --help'"]),
    (["replay", "r", "--jsn"], ["no option --jsn", "did you mean --json?", "'copus replay --help'"]),
    (["convert", "--form", "r"], ["did you mean --from?", "'copus convert --help'"]),
    (["convert", "r", "out"], ["write --from r --to out", "'copus convert --help'"]),
    (["compare", "run.toml", "folder"], ["not expected: folder", "EXPERIMENT", "'copus compare --help'"]),
    (["simulate"], ["RUN.toml is required", "'copus simulate --help'"]),
    (["simulate", "run.toml", "adapt.alpha=1"], ["write --set adapt.alpha=1", "'copus simulate --help'"]),
    (["models", "llama"], ["not expected: llama", "'copus models --help'"]),
    # Models, clusters and other objects of a plan.
    ([*H100, "--cluster", "h100"], ["did you mean h100-sxm?"]),
    ([*H100, "--cluster", "H100-SXM"], ["did you mean h100-sxm?"]),
    ([*H100, "--cluster", "a100"], ["did you mean a100-sxm?"]),
    ([*H100], ["--cluster is required: a cluster", "'copus plan --help'"]),
    (["plan", "--model", "lama-2-13b", "--cluster", "h100-sxm"], ["did you mean llama-2-13b?"]),
    (["plan", "--model", "7B", "--cluster", "h100-sxm"], ["--model 7B", "no such model", "llama-2-7b"]),
    (["plan", "--model", "folder", "--cluster", "h100-sxm"], ["--model", "folder/config.json", "Hugging Face"]),
    (["plan", "--model", "run.toml", "--cluster", "h100-sxm"], ["run.toml:", "not valid JSON", "config.json"]),
    (["plan", "--model", "bert.json", "--cluster", "h100-sxm"], ["bert is not supported", "LlamaForCausalLM"]),
    ([*H100, "--cluster", "run.toml"], ["run.toml:", "unknown key", "description of a cluster", "ranks_per_node"]),
    ([*SXM, "--gpus", "16"], ["--gpus is given 2 times", "'copus plan --help'"]),
    (["plan", "--model", "llama-2-13b", "--cluster", "h100-sxm"], ["--gpus is missing", "give for example --gpus 8"]),
    (["plan", "--model", "llama-2-13b", "--cluster", "h100-sxm", "--gpus", "0"], ["--gpus", "at least 1", "got 0"]),
    (["plan", "--model", "llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "1"],
     ["no configuration of llama-3.1-70b fits", "take 16 GPUs instead of 1"]),
    ([*SXM, "--precision", "fp16"], ["--precision", "expected one of bf16, fp32", "got fp16", "'copus plan --help'"]),
    ([*SXM, "--schedule", "1F1B"], ["--schedule", "got 1F1B", "did you mean 1f1b?"]),
    ([*SXM, "--top", "ten"], ["--top", "whole number", "ten", "'copus plan --help'"]),
    ([*SXM, "--sequence-length", "4k"], ["--sequence-length", "whole number", "got 4k"]),
    ([*SXM, "--document-length", "nan"], ["--document-length", "at least 1", "got nan"]),
    ([*SXM, "--sequence-length", "8192"], ["max_position_embeddings", "4096", "'copus plan --help'"]),
    ([*SXM, "--global-batch", "8-64"], ["--global-batch 8-64", "16..1024", "'copus plan --help'"]),
    ([*SXM, "--tokens", "300", "B"], ["not expected: B"]),
    ([*SXM, "--tokens", "1Q"], ["--tokens 1Q", "300B, 1T or 15e12"]),
    ([*SXM, "--explain", "tp=2"], ["--explain", 'did you mean "t"?', "'copus plan --help'"]),
    ([*SXM, "--explain", "d=8", "--tokens", "1T"], ["--explain", "--tokens", "leave one of them out"]),
    ([*SXM, "--system", "Megatron"], ["--system Megatron", 'did you mean "megatron"']),
    ([*SXM, "--plot", "plan.png"], ["--plot plan.png", ".svg or .html"]),
    ([*SXM, "--profile", "profile.json"], ["--profile profile.json", "no such file", "copus profile --config"]),
    ([*SXM, "--tokens", "1T", "--global-batch", "64", "--write", "run.toml"], ["--write run.toml", "another name"]),
    # Files and folders.
    (["report", "."], ["no run", "give a run directory", "'copus report --help'"]),
    (["report", "nowhere"], ["nowhere", "no such folder"]),
    (["report", "corpus.txt"], ["corpus.txt", "it is a file", "give a run directory"]),
    (["ctl", "folder", "status"], ["no run in folder (no config.toml)", "give a run directory", "'copus ctl --help'"]),
    (["ctl", "nowhere", "status"], ["no run in nowhere (no such folder)", "give a run directory"]),
    (["ctl", "status", "folder"], ["the run directory comes first", "copus ctl folder status"]),
    (["ctl", "status", "my run"], ["write copus ctl 'my run' status "]),
    (["ctl", "folder", "stauts"], ['did you mean "status"', "'copus ctl --help'"]),
    (["ctl", "folder", "force"], ["give the configuration", "d=2,t=1,p=2,B=32,b=4", "'copus ctl --help'"]),
    (["watch", "run.toml"], ["no run in run.toml (it is a file)", "give the directory of a run"]),
    (["watch", "folder", "--interval", "fast"], ["--interval fast", '"90s"', "'copus watch --help'"]),
    (["replay", "folder"], ["no run in folder", "give a run directory", "'copus replay --help'"]),
    (["replay", "folder", "--policy", "copsu"], ["--policy", "did you mean copus?", "'copus replay --help'"]),
    (["convert", "--from", "nowhere", "--to", "out"], ["nowhere is not a directory", "expected a run directory"]),
    (["convert", "--from", "folder", "--to", "out"], ["no model in folder", "Hugging Face directory"]),
    (["convert", "--from", "folder", "--to", "out", "--dtype", "int8"], ["--dtype int8", "fp32, bf16 or fp16"]),
    (["compare", "nowhere.toml"], ["nowhere.toml", "no such file", "an experiment", "'copus compare --help'"]),
    (["compare", "run.toml"], ["run.toml:", "unknown key", "of an experiment", "base, set, seeds"]),
    (["compare", "compared.toml"], ["compared.toml: base", "nowhere.toml", "all runs share"]),
    (["simulate", "nowhere.toml"], ["nowhere.toml", "no such file", "a run's configuration"]),
    (["simulate", "run.toml"], ['cluster.clock is "real"', 'cluster.clock = "modelled"', "modelled-64-h100.toml"]),
    (["simulate", "run.toml", "--policy", "copsu"], ["--policy", "did you mean copus?", "'copus simulate --help'"]),
]


def setting(*texts):
    return ["train", "run.toml", *(word for text in texts for word in ("--set", text))]


MISTAKES_IN_TRAINING = [
    # Options, and settings mistaken for options.
    (["train"], ["CONFIG.toml"]),
    (["train", "--config", "run.toml"], ["CONFIG is given without an option", "'copus train --help'"]),
    (["train", "run.toml", "--=5"], ["not expected: --=5", "'copus train --help'"]),
    (["train", "run.toml", "--lr", "1e-3"], ["no option --lr", "did you mean --set optimizer.lr="]),
    (["train", "run.toml", "--batch-size", "8"], ["no option --batch-size", "--set train.global_batch="]),
    (["train", "run.toml", "--steps", "100"], ["--set train.max_steps=", "'copus train --help'"]),
    (["train", "run.toml", "--interval", "5"], ["--set evaluate.interval=", "--set checkpoint.interval="]),
    (["train", "run.toml", "--verbose"], ["no option --verbose", "--set section.key=value", "--max-time"]),
    (["train", "run.toml", "-run-dir", "r"], ["two dashes", "write --run-dir"]),
    (["train", "run.toml", "--run-dir"], ["--run-dir needs a value: where the run's files go"]),
    (["train", "run.toml", "corpus.txt"], ["not expected: corpus.txt", "CONFIG", "'copus train --help'"]),
    (["train", "run.toml", "optimizer.lr=1e-3"], ["write --set optimizer.lr=1e-3", "'copus train --help'"]),
    (["train", "run.toml", "--set", "optimizer.lr", "=", "1e-3"], ["one word", "write --set optimizer.lr=1e-3"]),
    (["train", "run.toml", "--max-time", ""], ["--max-time: its value is empty", "'copus train --help'"]),
    (["train", "run.toml", "--run-dir", ""], ["--run-dir: its value is empty", "leave the option out"]),
    (["watch", "--wait", "", "r"], ["--wait: its value is empty", "'copus watch --help'"]),
    (["report", ""], ["DIR: its value is empty"]),
    (["plan", "--model", "", "--cluster", "h100-sxm"], ["--model: its value is empty"]),
    (["train", "run.toml", "--max-time", "1hour"], ["--max-time 1hour", '"55m"', "'copus train --help'"]),
    (["train", "run.toml", "--trace", "yes"], ["--trace", "whole number", "got yes"]),
    # Files and folders.
    (["train", "nowhere.toml"], ["nowhere.toml", "no such file", "a run's configuration", "'copus train --help'"]),
    (["train", "folder"], ["folder is a folder", "expected a run's configuration", "'copus train --help'"]),
    (["train", "model"], ["model is a folder of a model", "--init-from model"]),
    (["train", "corpus.txt"], ["corpus.txt:1", "not valid TOML", "[section]"]),
    (["train", "bert.json"], ["bert.json:1", "not valid TOML", "looks like JSON"]),
    (["train", "run.toml", "--init-from", "nowhere"], ["nowhere", "Hugging Face"]),
    (["train", "run.toml", "--init-from", "2024-05-01"], ["2024-05-01", "Hugging Face"]),  # a date in TOML
    (["train", "run.toml", "--init-from", "folder"], ["folder has no config.json", "Hugging Face"]),
    (["train", "run.toml", "--run-dir", "folder"], ["folder exists and is not empty", "another --run-dir"]),
    (["train", "run.toml", "--run-dir", "corpus.txt"], ["corpus.txt is not a directory", "another --run-dir"]),
    (["train", "run.toml", "--resume"], ["--run-dir DIR", "'copus train --help'"]),
    (["train", "--resume"], ["--run-dir DIR"]),
    (["train", "--resume", "--run-dir", "nowhere"], ["no run in nowhere", "without --resume"]),
    # Settings.
    (setting("optimizer.lr"), ["--set optimizer.lr", "section.key=value"]),
    (setting("lr=1e-3"), ["--set lr=1e-3", "did you mean --set optimizer.lr=1e-3?"]),
    (setting("optimiser.lr=1e-3"), ["unknown section [optimiser]", "did you mean [optimizer]?"]),
    (setting("train.lr=1e-3"), ['unknown key "lr" in [train]', '"lr" in [optimizer]']),
    (setting("optimizer.learning_rate=1e-3"), ['unknown key "learning_rate"', '"lr" in [optimizer]']),
    (setting("optimizer.lr=fast"), ["optimizer.lr must be a number", '"fast"']),
    (setting("optimizer.lr=0,001"), ['"0,001"', "decimals have a point"]),
    (setting("optimizer.warmup_tokens=10%"), ["must be a number", "a share of 10% is written 0.1"]),
    (setting("train.global_batch=32k"), ["must be a whole number", '"32k"', 'without "k"']),
    (setting("checkpoint.interval=5m"), ["must be a whole number", '"5m"', 'without "m"']),
    (setting("train.max_seconds=3 minutes"), ["train.max_seconds", '"3m"', '"3 minutes"']),
    (setting("data.held_out_fraction=10"), ["data.held_out_fraction", "less than 1", "got 10"]),
    (setting("train.precision=fp16"), ["train.precision", '"fp32", "bf16"', '"fp16"']),
    (setting("train.device=gpu"), ["train.device", '"gpu"', '"cpu", "cuda"']),
    (setting("adapt.policy=copsu"), ["adapt.policy", '"copsu"', 'did you mean "copus"?']),
    (setting("adapt.policy=copus"), ["how fast this machine computes", "copus profile --machine"]),
    (setting("cluster.config=h100"), ["cluster.config h100", "did you mean h100-sxm?"]),
    (setting("model.architecture=bert"), ["model.architecture", '"llama", "qwen2"', '"bert"']),
    (setting("model.hidden_size=33"), ['"hidden_size" (33)', 'multiple of "num_attention_heads" (4)']),
    (setting("train.sequence_length=100000"), ["train.sequence_length (100000)", "max_position_embeddings (2048)"]),
    (setting("train.max_steps=0"), ["nothing says when the run ends", "train.max_steps, train.max_tokens"]),
    # Layouts.
    (setting("train.global_batch=7"), ["global_batch 7", "micro_batch 4", "4 and 8"]),
    (setting("parallel.data_parallel=3"), ["global_batch 8", "parallel.data_parallel 3", "nearest is 12"]),
    (setting("parallel.pipeline_parallel=4"), ["num_hidden_layers 2", "nearest is 2"]),
    (setting("parallel.tensor_parallel=3"), ["num_attention_heads 4", "2 and 4"]),
    # Data.
    (setting("data.train=nowhere"), ["no such corpus", "nowhere.bin and nowhere.idx", "the folder that"]),
    (setting("data.train=folder"), ["it is a folder", "UTF-8 text file"]),
    (setting("data.train=none-*.txt"), ["none-*.txt", "no file matches"]),
    (setting("data.train=https://example.org/a.txt"), ["an address", "download it"]),
    (setting("data.train=latin.txt"), ["latin.txt", "not UTF-8", "iconv"]),
    (setting("data.train=data.parquet"), ["data.parquet", "parquet file", "tools/tokenize_corpus.py"]),
    (setting("data.train=ids.bin"), ["one half of a tokenized pair", "ids"]),
    (setting("data.train=ids"), ["ids.bin", "id 300, outside the vocabulary of 256", "set model.vocab_size"]),
    (setting("model.vocab_size=100"), ["corpus.txt", "model.vocab_size must be at least 256"]),
    (setting("train.sequence_length=20000", "model.max_position_embeddings=32768"),
     ["corpus.txt: is too short", "give more text or lower train.sequence_length"]),
    (setting("data.held_out=corpus.txt"), ["in both data.train and data.held_out", "name other files"]),
    # Other commands that compute.
    (["generate", "runs/my"], ["write --checkpoint runs/my", "'copus generate --help'"]),
    (["generate"], ["--checkpoint is required: a run directory", "'copus generate --help'"]),
    (["generate", "--checkpoint", "folder", "--prompt", "x"], ["no model in folder", "a checkpoint"]),
    (["generate", "--checkpoint", "model", "--prompt", "x"], ["model.safetensors", "Hugging Face"]),
    (["generate", "--checkpoint", "model", "--max-tokens", "9"], ["did you mean --tokens?", "'copus generate --help'"]),
    (["generate", "--checkpoint", "model", "--tokens", "many"], ["--tokens", "whole number", "got many"]),
    (["gns"], ["--checkpoint DIR", "--model DIR", "'copus gns --help'"]),
    (["gns", "r"], ["not expected: r", "did you mean --checkpoint r?"]),
    (["gns", "--model", "model", "--data", "corpus.txt"], ["--model needs --sequence-length"]),
    (["calibrate", "nowhere"], ["no run in nowhere", "give a run directory", "'copus calibrate --help'"]),
    (["profile"], ["--machine FILE", "--config RUN.toml", "'copus profile --help'"]),
    (["profile", "here.toml"], ["not expected: here.toml", "did you mean --machine here.toml?"]),
    (["profile", "--machine", "folder"], ["--machine folder", "cannot be written", "it is a folder"]),
    (["profile", "--machine", "nowhere/here.toml"], ["cannot be written", "no folder nowhere"]),
    (["profile", "--config", "run.toml"], ["--cluster is missing", "copus profile --machine"]),
    (["selftest", "4"], ["did you mean --ranks 4?", "'copus selftest --help'"]),
]
MISTAKES_OF_A_RUN = [
    (["train", "run.toml", "--run-dir", "r"], ["r exists and is not empty", "--resume"]),
    (["train", "--resume", "--run-dir", "r", "--set", "model.hidden_size=64"], ["model.hidden_size"]),
    (["ctl", "r", "status"], ["the run in r is not running", "only a running job"]),
    (["watch", "r/run.jsonl"], ["no run in r/run.jsonl (it is a file)"]),
    (["convert", "--from", "r", "--to", "folder"], ["folder", "not an empty folder"]),
    (["gns", "--checkpoint", "r", "--batches", "1"], ["--batches", "at least 2", "'copus gns --help'"]),
    (["calibrate", "r", "--time", "soon"], ["--time soon", '"55m"', "'copus calibrate --help'"]),
    (["generate", "--checkpoint", "tokens", "--prompt", "Once"],
     ["no tokenizer was found", "--tokenizer DIR", "--ids"]),
    (["generate", "--checkpoint", "tokens", "--ids", "--prompt", "Once"],
     ["'Once' is no token id", "from 0 to 999"]),
]


class Mistakes(ProgramTest):
    def setUp(self):
        super().setUp()
        (self.folder / "folder").mkdir()
        self.write("folder/note.txt", "")
        self.write("bert.json", '{"model_type": "bert", "hidden_size": 768}')
        (self.folder / "model").mkdir()
        self.write("model/config.json", '{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, '
                   '"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}')
        self.write("latin.txt", "caf\xe9 au lait\n".encode("latin-1") * 400)
        self.write("data.parquet", b"PAR1\x15\xe9")
        self.write("compared.toml", 'base = "nowhere.toml"\nreference = "a"\nseeds = [1, 2]\nfinal_loss = true\n'
                   '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\n')
        self.write("ids.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 4000, 0, 0, 1))
        self.write("ids.bin", struct.pack("<4000H", *(2000 * [7, 300])))

    def assert_each_refused(self, mistakes, **options):
        before = sorted(self.folder.rglob("*"))
        for arguments, says in mistakes:
            with self.subTest(" ".join(arguments)):
                self.assert_refused(*arguments, says=says, **options)
                self.assertEqual(before, sorted(self.folder.rglob("*")))

    def test_each_is_named_with_what_to_do(self):
        self.assert_each_refused(MISTAKES + (MISTAKES_IN_TRAINING if WITH_TORCH else []))

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_each_is_named_of_a_run_that_has_ended(self):
        self.assert_done(*setting("train.max_steps=2"), "--run-dir", "r")
        tokens = setting("train.max_steps=2", "model.vocab_size=1000", "data.train=ids")
        self.assert_done(*tokens, "--run-dir", "tokens")
        self.assert_each_refused(MISTAKES_OF_A_RUN, leaves_run_dir=True)
        again = ["train", "--resume", "--run-dir", "r", "--set", "train.max_steps=4"]
        with open(self.folder / "r" / "checkpoints" / ".lock", "ab") as lock:  # as another training process holds it
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assert_each_refused([(again, ["r", "process"])], leaves_run_dir=True)

    def test_a_folder_of_runs_is_told_from_a_run(self):
        (self.folder / "many" / "a").mkdir(parents=True)
        self.write("many/a/run.jsonl", "")
        self.write("many/a/config.toml", "")
        for command in ["report", "replay", "watch"]:
            self.assert_refused(command, "many", says=["folder of 1", "many/a"])
        self.assert_refused("convert", "--from", "many", "--to", "out", says=["no model in many", "give many/a"])


if __name__ == "__main__":
    unittest.main(argv=[__file__] + sys.argv[2:])
