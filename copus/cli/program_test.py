"""Tests the program `copus` as a process: exit codes, messages, signals, kills at random moments, full disks.

Usage: program_test.py PATH_TO_COPUS [unittest options]. With COPUS_KILL_ROUNDS=50 the kill test runs as many rounds
(5 without). A build without libtorch (environment COPUS_WITH_TORCH=0) is tested for what it says about that. Jobs of
several ranks are several_ranks_test.py's.
"""

import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock

from program_test_support import COPUS, KILL_ROUNDS, SANITIZERS, TIMEOUT, WITH_TORCH, ProgramTest


def limit_files_to(size):
    """Makes a preexec_fn that lets no file of the child grow beyond `size` bytes: this stands in for a full disk."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


class CommandLine(ProgramTest):
    def test_help_and_version(self):
        self.assertIn("Examples:", self.assert_done("--help").stdout)
        self.assertRegex(self.assert_done("--version").stdout, r"copus \d+\.\d+")
        for command in ["convert", "report"]:
            self.assertIn("Example", self.assert_done(command, "--help").stdout)

    def test_mistyped_commands_and_options(self):
        self.assert_refused(says=["give a command"])
        self.assert_refused("tain", says=["tain"])
        self.assert_refused("report", "r", "--nonsense", says=["nonsense"])
        self.assert_refused("convert", "--from", "x", says=["--to"])

    def test_report_of_nothing(self):
        self.assert_refused("report", says=["DIR"])
        self.assert_refused("report", "no_such_run", says=["no_such_run"])
        self.assert_refused("report", "no_such_run", "nor_this", says=["no_such_run"])

    def test_report_of_an_experiment_and_something_else(self):
        for name in ["e", "other"]:
            (self.folder / name).mkdir()
        self.write("e/experiment.toml", "")
        self.assert_refused("report", "other", "e", says=["e is an experiment", "give it alone"])

    @unittest.skipIf(WITH_TORCH, "this build has libtorch")
    def test_without_libtorch_the_missing_commands_say_so(self):
        self.assert_refused("train", "run.toml", says=["libtorch", "train"])
        self.assert_refused("generate", "--checkpoint", "r", says=["libtorch", "generate"])
        self.assert_refused("gns", "--checkpoint", "r", says=["libtorch", "copus gns"])
        self.assert_refused("bench", "step", "--json", says=["libtorch", "copus bench step"])
        self.assert_refused("bench", "gns", says=["libtorch", "copus bench gns"])


@unittest.skipIf("address" in SANITIZERS, "AddressSanitizer takes more address space than the limit")
class ScarceMemory(ProgramTest):
    def test_is_told_as_such(self):
        """A description that is as large as may be, of which the file system holds nothing, under a limit below it."""
        with open(self.folder / "huge.json", "wb") as file:
            file.truncate(256 << 20)
        def limit():  # of what a process takes for itself: what libraries map differs from build to build
            resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))
            resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))  # which is told
        self.assert_refused("plan", "--model", "huge.json", "--cluster", "h100-sxm", "--gpus", "8",
                            says=["there is not enough memory", "ulimit -v"], preexec_fn=limit)


class BadModels(ProgramTest):
    """Hugging Face directories and checkpoints, given to the one command that needs no libtorch."""

    CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 4,
              "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    LAYER = {"self_attn.q_proj": [4, 4], "self_attn.k_proj": [2, 4], "self_attn.v_proj": [2, 4],
             "self_attn.o_proj": [4, 4], "mlp.gate_proj": [2, 4], "mlp.up_proj": [2, 4], "mlp.down_proj": [4, 2],
             "input_layernorm": [4], "post_attention_layernorm": [4]}
    EMBEDDING = "model.embed_tokens.weight"

    def setUp(self):
        super().setUp()
        shapes = {self.EMBEDDING: [4, 4], "model.norm.weight": [4], "lm_head.weight": [4, 4]}
        shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in self.LAYER.items()}
        self.header, self.data_bytes = {}, 0
        for name, shape in shapes.items():
            begin, self.data_bytes = self.data_bytes, self.data_bytes + 4 * math.prod(shape)
            self.header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, self.data_bytes]}
        (self.folder / "hf").mkdir()
        self.write_config()
        self.write_weights()

    def write_config(self, **changes):
        self.write("hf/config.json", json.dumps(self.CONFIG | changes))

    def write_weights(self, header=None, cut=0):
        text = json.dumps(header or self.header).encode()
        content = struct.pack("<Q", len(text)) + text + bytes(self.data_bytes)
        self.write("hf/model.safetensors", content[: len(content) - cut])

    def assert_model_refused(self, *says, source="hf", **options):
        before = sorted(path.name for path in self.folder.iterdir())
        self.assert_refused("convert", "--from", source, "--to", "out", says=says, **options)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before, "nothing half-written")

    def assert_weights_refused(self, tensor, changes, *says):
        self.write_weights(self.header | {tensor: self.header[tensor] | changes})
        self.assert_model_refused("hf", tensor, *says)

    def test_a_good_model_is_converted(self):
        self.assert_done("convert", "--from", "hf", "--to", "out", "--dtype", "fp16")
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()),
                         ["config.json", "model.safetensors"])

    def test_tokenizer_files_come_along_or_nothing_does(self):
        self.assertIn("no tokenizer files in hf", self.assert_done("convert", "--from", "hf", "--to", "bare").stdout)
        self.write("hf/tokenizer.json", "{}")
        self.write("hf/notes.txt", "")
        self.assertIn("Copied from hf: tokenizer.json.",
                      self.assert_done("convert", "--from", "hf", "--to", "whole").stdout)
        self.assertEqual(sorted(path.name for path in (self.folder / "whole").iterdir()),
                         ["config.json", "model.safetensors", "tokenizer.json"])
        (self.folder / "hf/vocab.json").mkdir()
        self.assert_model_refused("hf/vocab.json")

    def test_configurations(self):
        self.write_config(architectures=["MambaForCausalLM"], model_type="mamba")
        self.assert_model_refused("config.json", "MambaForCausalLM", "LlamaForCausalLM")
        self.write_config(hidden_size=None)
        self.assert_model_refused("config.json", "hidden_size", "missing")
        self.write_config(num_attention_heads=3)
        self.assert_model_refused("config.json", "hidden_size", "(4)", "num_attention_heads", "(3)")
        self.write("hf/config.json", "{")
        self.assert_model_refused("config.json:1:", "not valid JSON")
        (self.folder / "hf" / "config.json").unlink()
        self.assert_model_refused("hf", "config.json")

    def test_safetensors(self):
        self.write_weights(cut=1)
        self.assert_model_refused("model.safetensors", "truncated")
        self.assert_weights_refused("lm_head.weight", {"data_offsets": [0, 64]}, "overlap")
        self.assert_weights_refused("lm_head.weight", {"data_offsets": [10**6, 10**6 + 64]}, "lm_head", "out of range")
        self.assert_weights_refused(self.EMBEDDING, {"dtype": "I32"}, "int32", "float32")
        self.assert_weights_refused(self.EMBEDDING, {"dtype": "F7"}, "F7", "known are")
        self.assert_weights_refused(self.EMBEDDING, {"shape": [2, 8]}, "[2, 8]", "[4, 4]")
        missing = {name: entry for name, entry in self.header.items() if name != self.EMBEDDING}
        self.write_weights(missing | {"model.embed.weight": self.header[self.EMBEDDING]})
        self.assert_model_refused(f"1 missing ({self.EMBEDDING})", "1 surplus (model.embed.weight)")

    def test_half_written_checkpoints(self):
        (self.folder / "hf").rename(self.folder / "step-00000002.partial")
        self.assert_model_refused("half-written", source="step-00000002.partial")

    def test_full_disk(self):
        self.assert_model_refused("out", "bytes", "ulimit -f", preexec_fn=limit_files_to(600))

    def test_where_nothing_can_be_written(self):
        self.assert_refused("convert", "--from", "hf", "--to", "hf", says=["hf", "not an empty folder"])
        self.assert_refused("convert", "--from", "hf", "--to", "run.toml/out", says=["run.toml/out"])
        self.assert_refused("convert", "--from", "hf", "--to", "out", "--dtype", "f64", says=["--dtype f64", "bf16"])
        self.assert_refused("convert", "--from", 300 * "x", "--to", "out", says=["File name too long"])


@unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
class FullOutput(ProgramTest):
    def ends(self, *arguments, output="/dev/full", **how):
        with open(output, "w") as full:
            done = subprocess.run([COPUS, *arguments], cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=TIMEOUT, **how)
        return done.returncode, done.stderr

    def test_output_that_a_disk_does_not_take_is_an_error(self):
        for command in (["--version"], ["plan", "--help"], ["models"]):
            code, errors = self.ends(*command)
            self.assertEqual((code, errors.count("\n")), (2, 1), errors)
            self.assertIn("standard output cannot be written: No space left on device", errors)
        code, errors = self.ends("--help", output=self.folder / "help.txt", preexec_fn=limit_files_to(100))
        self.assertEqual(code, 2)
        self.assertIn("standard output cannot be written: File too large", errors)

    def test_a_reader_that_has_gone_has_what_it_wants(self):
        for command in ("models", "--help"):
            reader, writer = os.pipe()
            os.close(reader)
            self.assertEqual(self.ends(command, output=writer, restore_signals=False), (0, ""))  # SIGPIPE is ignored

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_a_run_is_done_though_nobody_could_read_along(self):
        self.assertEqual(self.ends("train", "run.toml", "--run-dir", "r"), (0, ""))
        self.assertTrue((self.folder / "r" / "summary.json").exists())


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class BadInput(ProgramTest):
    def assert_run_refused(self, *settings, says):
        overrides = [part for setting in settings for part in ("--set", setting)]
        self.assert_refused("train", "run.toml", "--run-dir", "r", *overrides, says=says)

    def test_command_line(self):
        self.assert_refused("train", says=["config.toml"])
        self.assert_refused("train", "no_such.toml", says=["no_such.toml"])
        self.assert_refused("train", "run.toml", "--max-time", "soon", says=["--max-time", "soon"])
        self.assert_refused("train", "--resume", says=["--run-dir"])
        self.assert_refused("train", "--resume", "--run-dir", "r", says=["nothing to resume"])
        self.assert_refused("generate", "--checkpoint", "nowhere", says=["nowhere"])
        self.assert_refused("convert", "--from", "nowhere", "--to", "x", says=["nowhere"])

    def test_configuration(self):
        self.write("run.toml", "[train\nsteps = 3")
        self.assert_run_refused(says=["run.toml:1:7"])
        self.write_run("run.toml")
        self.assert_run_refused("train.max_step=3", says=["train.max_step", "max_steps"])
        self.assert_run_refused('train.max_steps="three"', says=["max_steps"])
        self.assert_run_refused("train.micro_batch=-1", says=["micro_batch"])
        self.assert_run_refused("train.max_steps=0", says=["max_steps"])
        self.assert_run_refused("optimizer.lr=-1", says=["optimizer.lr"])
        self.assert_run_refused("model.num_attention_heads=3", says=["num_"])
        self.assert_run_refused('train.device="tpu"', says=["tpu"])

    def test_numbers_beyond_any_use(self):
        for setting, says in [("train.threads=2147483648", "at most 4096"), ("optimizer.lr=1e-320", "at least 1e-30"),
                              ("model.hidden_size=2147483648", "1048576, got"),
                              ("model.num_hidden_layers=1000000000", "4096"),
                              ("train.sequence_length=9223372036854775807", "2147483647"),
                              ("train.max_seconds=1e300", "at most 1e+09"), ("train.micro_batch=1e300", "whole number")]:
            self.assert_run_refused(setting, says=[setting.split("=")[0].split(".")[1], says])

    def test_a_model_that_no_machine_has_memory_for(self):
        self.assert_run_refused("model.vocab_size=1000000000",
                                says=["are left", "AdamW's moments alone take 954 GiB", "[model]"])

    def test_a_limit_on_memory_or_threads(self):
        gigabytes = 24
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
        size = ["--set", "model.hidden_size=8192", "--set", "model.intermediate_size=65536"]
        self.assert_refused("train", "run.toml", "--run-dir", "r", *size, says=["are left", "ulimit -v"],
                            preexec_fn=limit)

    def test_impossible_layouts(self):
        self.assert_run_refused("parallel.data_parallel=3",
                                says=["train.global_batch 8 is no multiple of train.micro_batch 4 x "
                                      "parallel.data_parallel 3; the nearest is 12"])
        self.assert_run_refused("parallel.tensor_parallel=3",
                                says=["parallel.tensor_parallel 3 does not divide model.num_attention_heads 4",
                                      "the nearest are 2 and 4"])
        self.assert_run_refused("parallel.pipeline_parallel=4",
                                says=["parallel.pipeline_parallel 4 exceeds model.num_hidden_layers 2",
                                      "the nearest is 2"])
        self.assert_run_refused("parallel.pipeline_parallel=2", "parallel.virtual_stages=2",
                                says=["parallel.virtual_stages 2", '"interleaved"'])
        self.assert_run_refused("parallel.sequence_parallel=true", says=["parallel.tensor_parallel of at least 2"])
        self.assert_run_refused("parallel.zero_stage=4", says=["parallel.zero_stage", "got 4"])
        self.assert_run_refused("parallel.schedule=2f2b", says=["parallel.schedule", "zb-h1"])

    def test_clusters(self):
        self.assert_run_refused("cluster.clock=virtual", says=['cluster.clock "virtual"', "cluster.config"])
        self.assert_run_refused("cluster.config=nowhere.toml", says=["cluster.config", "nowhere.toml"])
        self.write("cluster.toml", "ranks_per_node = 2\nlatency = 3\n")
        self.assert_run_refused("cluster.config=cluster.toml", says=['cluster.toml:2: unknown key "latency"'])

    def test_corpus(self):
        self.assert_run_refused('data.train="missing.txt"', says=["missing.txt"])
        for name, content, says in [("empty.txt", b"", "empty"), ("latin1.txt", b"caf\xe9 au lait " * 200, "utf-8"),
                                    ("short.txt", b"too short", "short")]:
            self.write(name, content)
            self.assert_run_refused(f'data.train="{name}"', says=[name, says])
        self.assert_run_refused("model.vocab_size=100", says=["vocab"])

    def test_tokenized_corpora(self):
        """Pairs of .bin and .idx: uint16 tokens, one document."""
        def write_pair(name, tokens, announced, cut=0):
            index = b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, announced, 0, 0, 1)
            self.write(f"{name}.bin", struct.pack(f"<{len(tokens)}H", *tokens))
            self.write(f"{name}.idx", index[: len(index) - cut])

        tokens = 2000 * [7, 200]
        for name, written, announced, cut, says in [
                ("cut", tokens, 4000, 1, ["cut.idx", "truncated"]),
                ("disagrees", tokens, 3999, 0, ["disagrees.bin", "disagrees with its .idx"]),
                ("vocabulary", 2000 * [7, 300], 4000, 0, ["vocabulary.bin", "id 300", "vocabulary of 256"])]:
            write_pair(name, written, announced, cut)
            self.assert_run_refused(f'data.train="{name}"', says=says)
        (self.folder / "cut.idx").unlink()
        self.assert_run_refused('data.train="cut"', says=["cut.idx", "missing"])

    def test_hugging_face_models(self):
        (self.folder / "hf").mkdir()
        self.assert_run_refused('model.init_from="hf"', says=["hf", "config.json"])

    def test_run_directory_that_exists(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=2")
        before = (self.folder / "r" / "run.jsonl").read_text()
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["not empty", "--resume"], leaves_run_dir=True)
        self.assertEqual((self.folder / "r" / "run.jsonl").read_text(), before)

    def test_damaged_checkpoints(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=2")
        checkpoint = self.folder / "r" / "checkpoints" / "step-00000002"
        weights = checkpoint / "model.safetensors"
        content = weights.read_bytes()
        arguments = ["train", "--resume", "--run-dir", "r", "--set", "train.max_steps=4"]
        weights.write_bytes(content[:-1])
        self.assert_refused(*arguments, says=["model.safetensors"], leaves_run_dir=True)
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self.assert_refused(*arguments, says=["model.safetensors"], leaves_run_dir=True)
        self.assert_refused("generate", "--checkpoint", "r", says=["model.safetensors"], leaves_run_dir=True)
        self.assert_refused("train", "run.toml", "--run-dir", "s", "--set", f'model.init_from="{checkpoint}"',
                            says=["model.safetensors"], leaves_run_dir=True)
        weights.write_bytes(content)
        manifest = checkpoint / "manifest.json"
        manifest.rename(self.folder / "manifest.json")
        self.assert_refused("generate", "--checkpoint", str(checkpoint), says=["half-written"], leaves_run_dir=True)
        (self.folder / "manifest.json").rename(manifest)
        self.assert_done(*arguments)

    # A folder with a checkpoint's name was whole once, so a manifest that cannot be read is damage.
    def test_a_damaged_checkpoint_is_never_taken_for_none(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=4",
                         "--set", "checkpoint.interval=2")
        log = (self.folder / "r" / "run.jsonl").read_text()
        checkpoints = self.folder / "r" / "checkpoints"
        resume = ["train", "--resume", "--run-dir", "r", "--set", "train.max_steps=6"]
        newest = checkpoints / "step-00000004"
        os.truncate(newest / "manifest.json", 100)
        self.assert_refused("generate", "--checkpoint", "r", says=["step-00000004", "manifest.json"],
                            leaves_run_dir=True)
        shutil.move(checkpoints / "step-00000002", self.folder / "away")
        self.assert_refused(*resume, says=["cannot resume", "step-00000004", "manifest.json"], leaves_run_dir=True)
        self.assertEqual((self.folder / "r" / "run.jsonl").read_text(), log)
        shutil.move(self.folder / "away", checkpoints / "step-00000002")
        resumed = self.assert_done(*resume)
        self.assertIn("resumed    after step 2", resumed.stdout)
        self.assertIn(f"not resumed from: the checkpoint {newest.relative_to(self.folder)} is damaged", resumed.stdout)
        aside = checkpoints / "step-00000004.set-aside"
        self.assertEqual((aside / "manifest.json").stat().st_size, 100)

    def test_resume_with_something_else(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=2")
        resume = ["train", "--resume", "--run-dir", "r", "--set", "train.max_steps=4"]
        for setting, says in [("model.hidden_size=64", "64"), ("train.seed=5", "1234"),
                              ("train.sequence_length=16", "16"), ("data.held_out_fraction=0.2", "0.2")]:
            self.assert_refused(*resume, "--set", setting, says=[setting.split("=")[0], says], leaves_run_dir=True)
        self.write_run("other.toml", more="[log]\ninterval = 1\n", steps=4)
        (self.folder / "other.toml").write_text((self.folder / "other.toml").read_text().replace("1e-3", "2e-3"))
        self.assert_refused("train", "other.toml", "--resume", "--run-dir", "r", says=["optimizer.lr", "--set"],
                            leaves_run_dir=True)
        self.write("corpus.txt", "entirely different words in this corpus now, and many more of them\n" * 400)
        self.assert_refused(*resume, says=["data.train"], leaves_run_dir=True)

    def test_divergence(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=3")
        result = self.assert_refused("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=100", "--set",
                                     "optimizer.lr=1e30", "--set", "optimizer.schedule=constant", "--set",
                                     "train.clip_norm=0", "--set", "checkpoint.interval=1",
                                     says=["diverged", "optimizer.lr"], leaves_run_dir=True)
        self.assertNotIn("internal error", result.stderr)
        sound = [None not in (loss, norm) for loss, norm, _ in self.losses("r").values()]
        self.assertFalse(all(sound))
        kept = [int(path.name.removeprefix("step-")) for path in (self.folder / "r" / "checkpoints").glob("step-*")]
        self.assertIn(3, kept)
        self.assertTrue(all(step <= sound.index(False) for step in kept), f"{kept}: none of a step that was skipped")

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_a_file_system_without_locks_is_told_of_once(self):
        self.write("no_locks.c", "#include <errno.h>\nint flock(int f, int how) { (void)f, (void)how; errno = ENOLCK; "
                   "return -1; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "no_locks.so", "no_locks.c"], cwd=self.folder, check=True)
        preload = os.environ | {"LD_PRELOAD": str(self.folder / "no_locks.so")}
        result = self.copus("train", "run.toml", "--run-dir", "r", env=preload)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("has no file locks"), 1, result.stdout)
        self.assertNotIn("has no file locks", self.assert_done("train", "run.toml", "--run-dir", "s").stdout)

    def test_full_disk(self):
        self.assert_refused("train", "run.toml", "--run-dir", "r", preexec_fn=limit_files_to(20000),
                            says=["checkpoints", "ulimit -f", "has written no checkpoint"], leaves_run_dir=True)
        self.assertFalse(list((self.folder / "r" / "checkpoints").glob("step-*")), "nothing half-written")

    def test_a_log_beyond_a_limit_on_files_says_how_to_go_on(self):
        self.write_run("long.toml", steps=300, checkpoint_interval=0)
        refused = self.copus("train", "long.toml", "--run-dir", "r", preexec_fn=limit_files_to(40000))
        self.assertEqual(refused.returncode, 2)
        self.assertRegex(refused.stderr, r"run\.jsonl: step \d+ cannot be written: File too large; .*\(ulimit -f\): raise that "
                         r"limit\. The run has written no checkpoint; --resume begins it again \(see")
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=20")


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Runs(ProgramTest):
    def test_a_whole_run_and_what_comes_after(self):
        result = self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assertIn("copus generate --checkpoint r", result.stdout)
        run = self.folder / "r"
        for name in ["config.toml", "run.jsonl", "summary.json", "report.html", "tensorboard", "checkpoints"]:
            self.assertTrue((run / name).exists(), name)
        summary = json.loads((run / "summary.json").read_text())
        self.assertEqual(summary["steps"], 20)
        self.assertEqual(summary["consumed_samples"], 160)
        self.assertLess(summary["held_out_loss"], 6)
        self.assertEqual(len(self.losses("r")), 20)

        arguments = ["generate", "--checkpoint", "r", "--prompt", "the s", "--tokens", "60", "--seed", "3"]
        first = self.assert_done(*arguments).stdout
        self.assertTrue(first.startswith("the s"))
        self.assertEqual(first, self.assert_done(*arguments).stdout)
        self.assert_done("generate", "--checkpoint", "r")

        self.assert_done("convert", "--from", "r", "--to", "hf", "--dtype", "bf16")
        self.assert_done("convert", "--from", "hf", "--to", "hf32")
        self.assert_done("generate", "--checkpoint", "hf", "--prompt", "the", "--tokens", "5")
        self.assert_done("train", "run.toml", "--run-dir", "r2", "--set", 'model.init_from="hf"')
        self.assertLess(float(self.losses("r2")[1][0]), float(self.losses("r")[1][0]) - 0.5)
        self.write("hf/tokenizer.json", "{}")
        self.write("hf/config.json", "of another model by now")
        self.assert_done("convert", "--from", "r2", "--to", "hf2")
        self.assertEqual((self.folder / "hf2/tokenizer.json").read_text(), "{}")
        (run / "report.html").unlink()
        self.assert_done("report", "r")
        self.assertTrue((run / "report.html").exists())

    def test_a_run_goes_on_when_nobody_reads_its_output(self):
        process = self.start("train", "run.toml", "--run-dir", "r", "--set", "log.interval=1")
        process.stdout.close()
        self.assertEqual(process.wait(timeout=TIMEOUT), 0, process.stderr.read())
        process.stderr.close()
        self.assertTrue((self.folder / "r" / "summary.json").exists())

    def test_jobs_begun_in_one_second_have_a_folder_each(self):
        for ranks in 1, 2:
            layout = ["--set", f"parallel.data_parallel={ranks}", "--set", "train.max_steps=2"]
            processes = [self.start("train", "run.toml", *layout) for _ in range(3)]
            for process in processes:
                output, errors = process.communicate(timeout=TIMEOUT)
                self.assertEqual(process.returncode, 0, output + errors)
            self.assertEqual(len(list((self.folder / "runs").glob("*/summary.json"))), 3 * ranks)

    def test_too_few_open_files_are_a_users_mistake(self):
        def may_open(count):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, 12), count))

        for ranks, needed in (1, 40), (2, 48):
            layout = ["--set", f"parallel.data_parallel={ranks}", "--set", "train.max_steps=1"]
            self.assert_refused("train", "run.toml", *layout, preexec_fn=may_open(12),
                                says=["12 open files (ulimit -n)", f"{needed} are needed"])
            result = self.copus("train", "run.toml", *layout, preexec_fn=may_open(needed))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            shutil.rmtree(self.folder / "runs")

    def test_the_run_directory_has_a_default(self):
        self.assert_done("train", "run.toml", "--set", "train.max_steps=1")
        self.assertEqual(len(list((self.folder / "runs").glob("run-*/summary.json"))), 1)

    def test_lines_that_the_log_has_lost(self):
        self.write_run("run.toml", steps=8, checkpoint_interval=6)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        whole, run = self.losses("r"), self.folder / "r"
        self.assertEqual(json.loads((run / "summary.json").read_text())["missing_steps"], 0)
        lines = (run / "run.jsonl").read_text().splitlines(keepends=True)
        shutil.rmtree(run / "checkpoints" / "step-00000008")
        self.write("r/run.jsonl", "".join(lines[:3] + lines[2:]))
        self.assert_refused("train", "--resume", "--run-dir", "r", says=["run.jsonl, line 4", "remove the line"],
                            leaves_run_dir=True)
        self.write("r/run.jsonl", "".join(lines[:1] + lines[3:]))
        result = self.assert_done("train", "--resume", "--run-dir", "r")
        self.assertIn("run.jsonl has no line of steps 2 to 3", result.stdout)
        self.assertEqual(json.loads((run / "summary.json").read_text())["missing_steps"], 2)
        records = [json.loads(line, parse_float=str) for line in (run / "run.jsonl").read_text().splitlines()]
        self.assertEqual([record["step"] for record in records], [1, 4, 5, 6, 7, 8])
        self.assertEqual(records[-1]["loss"], whole[8][0], "training does not depend on the log")

    def test_a_finished_run_can_be_lengthened(self):
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assertEqual(len(self.losses("r")), 20)
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=25")
        self.assertEqual(len(self.losses("r")), 25)


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Forecast(ProgramTest):
    """What a run is said to take before it begins."""

    def dry_run(self, *settings):
        overrides = [part for setting in settings for part in ("--set", setting)]
        told = self.assert_done("train", "run.toml", "--run-dir", "r", "--dry-run", *overrides).stdout
        self.assertFalse((self.folder / "r").exists(), "a dry run writes nothing")
        return told

    def test_a_dry_run_tells_memory_and_that_the_speed_is_not_known(self):
        told = self.dry_run("parallel.pipeline_parallel=2")
        self.assertRegex(told, r"memory +[\d.]+ [KM]iB on each rank of pipeline rank 0\n"
                               r"memory +[\d.]+ [KM]iB on each rank of pipeline rank 1\n +[\d.]+ [KM]iB on all ranks; ")
        self.assertIn("speed      not known", told)

    def test_a_dry_run_tells_the_end_by_tokens_or_by_time_whichever_comes_first(self):
        described = ["cluster.config=h100-sxm", "cluster.clock=virtual"]
        self.assertRegex(self.dry_run(*described), r"speed +[\d.]+ [kMG]? ?tokens/s, a step .*\nends +after ")
        self.assertIn("ends       after 5.00 s\n",
                      self.dry_run(*described, "train.max_steps=1000000000", "train.max_seconds=5"))

    def test_a_dry_run_for_a_gpu_that_is_not_here_tells_what_it_can(self):
        told = self.dry_run("train.device=cuda:4000")
        self.assertRegex(told, r"memory +[\d.]+ [GM]iB on each rank of pipeline rank 0")
        self.assertIn("warning    the run cannot begin here: train.device = \"cuda:4000\"", told)

    def test_a_run_that_cannot_fit_is_refused_with_what_fits(self):
        huge = ["train.sequence_length=512", "train.global_batch=1000000", "train.micro_batch=1000000"]
        for dry in ([], ["--dry-run"]):
            self.assert_refused("train", "run.toml", "--run-dir", "r", *dry,
                                *(part for setting in huge for part in ("--set", setting)),
                                says=["the run needs", "are left on this machine: train.micro_batch = ", "fits"])

    def test_more_ranks_than_cores_are_said_aloud(self):
        result = self.copus("train", "run.toml", "--run-dir", "r", "--set", "parallel.data_parallel=2",
                            preexec_fn=lambda: os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith("warning    2 ranks share 1 core and take turns"), result.stdout)


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Interruptions(ProgramTest):
    STEPS = 120

    def setUp(self):
        super().setUp()
        self.write_run("long.toml", steps=self.STEPS, checkpoint_interval=10)

    def expected(self):
        self.assert_done("train", "long.toml", "--run-dir", "expected")
        return self.losses("expected")

    def end_early(self, end, exit_code, arguments=()):
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "checkpoint.interval=0", *arguments)
        self.wait_for_steps("r", 3, process)
        end(process)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, exit_code, output + errors)
        self.assertIn("copus train --resume --run-dir r", output)
        steps = len(self.losses("r"))
        self.assertLess(steps, self.STEPS)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{steps:08}").exists())
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assertEqual(self.losses("r"), self.expected())

    def test_interrupt(self):
        self.end_early(lambda process: process.send_signal(signal.SIGINT), 130)

    def test_terminate(self):
        self.end_early(lambda process: process.send_signal(signal.SIGTERM), 75)

    def test_notices_of_an_end(self):
        """SIGHUP comes when a terminal is gone, SIGUSR1 and SIGUSR2 from schedulers; the ranks of a job are told, too."""
        for notice, ranks in [(signal.SIGHUP, 1), (signal.SIGUSR1, 1), (signal.SIGUSR2, 2), (signal.SIGHUP, 2)]:
            with self.subTest(notice=notice.name, ranks=ranks):
                shutil.rmtree(self.folder / "r", ignore_errors=True)
                shutil.rmtree(self.folder / "expected", ignore_errors=True)
                self.write_run("long.toml", steps=self.STEPS, checkpoint_interval=10,
                               more=f"[parallel]\npipeline_parallel = {ranks}\n")
                self.end_early(lambda process: process.send_signal(notice), 75)

    def test_an_ignored_notice_changes_nothing(self):
        process = self.start("train", "long.toml", "--run-dir", "r",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps("r", 3, process)
        process.send_signal(signal.SIGHUP)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, output + errors)

    def test_a_checkpoint_is_written_by_time(self):
        for ranks in (1, 2):
            run = f"timed-{ranks}"
            process = self.start("train", "long.toml", "--run-dir", run, "--set", "train.max_steps=1000000", "--set",
                                 "checkpoint.interval=0", "--set", "checkpoint.interval_seconds=1", "--set",
                                 f"parallel.pipeline_parallel={ranks}")
            checkpoints = self.folder / run / "checkpoints"
            deadline = time.monotonic() + TIMEOUT
            while not list(checkpoints.glob("step-*/manifest.json")):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            process.kill()
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertRegex(output, r"saves +a checkpoint of .* every 1.00 s at least; keeps 2")
            self.assertRegex(output, r"step \d+: checkpoint; training stood still for 0\.\d\d s")

    def test_an_evaluation_that_was_cut_short_is_done_when_the_run_is_resumed(self):
        self.write_run("long.toml", steps=40, checkpoint_interval=10, more="keep_last = 10\n")
        expected = self.expected()
        held_out = self.held_out_losses("expected")
        self.assertEqual(sorted(held_out), [20, 40])
        log = self.folder / "expected" / "run.jsonl"
        for step in (20, 40):
            # As if the run had been stopped in the evaluation after this step.
            lines = [line for line in log.read_text().splitlines(keepends=True) if json.loads(line)["step"] <= step]
            lines[-1] = json.dumps(json.loads(lines[-1]) | {"held_out_loss": None}) + "\n"
            log.write_text("".join(lines))
            for later in range(step + 10, 50, 10):
                shutil.rmtree(self.folder / "expected" / "checkpoints" / f"step-{later:08}", ignore_errors=True)
            result = self.assert_done("train", "--resume", "--run-dir", "expected")
            self.assertEqual(self.held_out_losses("expected"), held_out)
            self.assertIn(f"step {step}: held-out loss", result.stdout)
            self.assertEqual(self.losses("expected"), expected)

    def held_out_losses(self, run):
        records = map(json.loads, (self.folder / run / "run.jsonl").read_text().splitlines())
        return {record["step"]: record["held_out_loss"] for record in records if record["held_out_loss"] is not None}

    def test_the_printed_command_can_be_pasted(self):
        for run in ("my run", "it's $HOME; echo `id` & *"):
            process = self.start("train", "long.toml", "--run-dir", run)
            self.wait_for_steps(run, 3, process)
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 75, output + errors)
            command = next(line for line in output.splitlines() if " train --resume --run-dir " in line).strip()
            arguments = command.split(" train ", 1)[1]
            result = subprocess.run(["sh", "-c", f"{COPUS} train {arguments}"], cwd=self.folder, capture_output=True, text=True,
                                    timeout=TIMEOUT)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(len(self.losses(run)), self.STEPS)

    def test_max_time(self):
        """The limit counts for one process, and resuming under the same limit always gets further."""
        arguments = ["train", "long.toml", "--run-dir", "r", "--resume", "--max-time", "0.3s"]
        codes = []
        while not codes or codes[-1] == 75:
            codes.append(self.copus(*arguments).returncode)
            self.assertLessEqual(len(codes), self.STEPS)
        self.assertEqual(codes[-1], 0)
        self.assertEqual(self.losses("r"), self.expected())

    def test_a_second_interrupt_ends_at_once(self):
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "train.max_steps=1000000")
        self.wait_for_steps("r", 3, process)
        process.send_signal(signal.SIGSTOP)  # lets both signals arrive before the step ends
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
        self.assertIn(process.returncode, [130, -signal.SIGINT])

    def test_a_long_step_tells_of_a_signal_at_once_and_a_second_one_ends_it(self):
        for run, end, ranks, code in [("term", signal.SIGTERM, 1, -signal.SIGTERM),
                                      ("int", signal.SIGINT, 1, -signal.SIGINT),
                                      ("job", signal.SIGTERM, 2, 75), ("ctrl_c", signal.SIGINT, 2, 130)]:
            process = self.start("train", "run.toml", "--run-dir", run, "--set", "train.global_batch=200000", "--set",
                                 f"parallel.data_parallel={ranks}")
            self.addCleanup(process.kill)
            while not (line := process.stdout.readline()).startswith("run "):
                self.assertTrue(line, "the run did not begin")
            process.send_signal(end)
            while "stops after this step" not in (line := process.stdout.readline()):
                self.assertTrue(line, "the run ended and did not tell of the signal")
            time.sleep(3)  # a SIGTERM that comes within a second of the first may be the same, and ranks are told one by one
            process.send_signal(end)
            process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, code)
            self.assertEqual(list((self.folder / run / "checkpoints").glob("step-*")), [])

    def test_two_processes_do_not_share_a_run(self):
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "train.max_steps=1000000")
        try:
            self.wait_for_steps("r", 3, process)
            self.assert_refused("train", "--resume", "--run-dir", "r", says=["process"], leaves_run_dir=True)
        finally:
            process.kill()
            process.communicate()

    def test_kill_at_random_moments(self):
        began = time.monotonic()
        expected = self.expected()
        duration = time.monotonic() - began
        moments = random.Random(1)
        arguments = ["train", "long.toml", "--run-dir", "r", "--resume"]
        for _ in range(KILL_ROUNDS):
            process = self.start(*arguments)
            time.sleep(moments.uniform(0, duration))
            process.kill()
            process.communicate()
            if (self.folder / "r" / "summary.json").exists():  # the run was complete: the next rounds begin a new one
                self.assertEqual(self.losses("r"), expected)
                shutil.rmtree(self.folder / "r")
        self.assert_done(*arguments)
        self.assertEqual(self.losses("r"), expected)
        self.assertFalse(list((self.folder / "r" / "checkpoints").glob("*.partial")))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
