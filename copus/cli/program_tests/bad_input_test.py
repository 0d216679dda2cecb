"""Tests the messages of `copus` about mistakes in configurations, corpora, layouts and run directories, as a process.

Usage: bad_input_test.py PATH_TO_COPUS [unittest options].
"""

import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import unittest

from program_test_support import WITH_TORCH, ProgramTest, limit_files_to


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
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--new-data", says=["--new-data", "give --resume"])
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
                                says=["are left", "the optimizer's state alone take 954 GiB", "[model]"])

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

    # A folder with a checkpoint's name was complete once, so an unreadable manifest means damage.
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

    def test_a_copy_with_a_later_step_in_its_name_is_named_and_never_resumed_from(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=4",
                         "--set", "checkpoint.interval=2", "--set", "checkpoint.keep_last=1")
        checkpoints = self.folder / "r" / "checkpoints"
        copy = checkpoints / "step-00000050"
        shutil.copytree(checkpoints / "step-00000004", copy)
        for steps in (4, 6):
            resumed = self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=6").stdout
            self.assertIn(f"resumed    after step {steps}\n", resumed)
            self.assertIn(f"not resumed from: the checkpoint {copy.relative_to(self.folder)} is damaged: its "
                          "manifest.json is of step 4\n", resumed)
            self.assertEqual(len(self.losses("r")), 6)
            self.assertEqual(sorted(path.name for path in checkpoints.glob("step-*")), ["step-00000006", copy.name])

    def test_resume_with_something_else(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=2")
        resume = ["train", "--resume", "--run-dir", "r", "--set", "train.max_steps=4"]
        for setting, says in [("model.hidden_size=64", "64"), ("train.seed=5", "1234"),
                              ("train.sequence_length=16", "16"), ("data.held_out_fraction=0.2", "0.2"),
                              ("optimizer.kind=signum", '"adamw"'), ("optimizer.kind='signum'", 'is "signum"')]:
            self.assert_refused(*resume, "--set", setting, says=[setting.split("=")[0], says], leaves_run_dir=True)
        self.assert_done(*resume, "--dry-run", "--set", "optimizer.kind='adamw'")
        self.write_run("other.toml", more="[log]\ninterval = 1\n", steps=4)
        (self.folder / "other.toml").write_text((self.folder / "other.toml").read_text().replace("1e-3", "2e-3"))
        self.assert_refused("train", "other.toml", "--resume", "--run-dir", "r", says=["optimizer.lr", "--set"],
                            leaves_run_dir=True)
        self.write("corpus.txt", "entirely different words in this corpus now, and many more of them\n" * 400)
        self.assert_refused(*resume, says=["data.train", "--new-data"], leaves_run_dir=True)
        self.assertIn("new data   from sample 16 on", self.assert_done(*resume, "--new-data").stdout)

    def test_resume_with_other_weights_of_the_same_data(self):
        self.write("b.txt", "other words for the second of two sources\n" * 400)

        def train(*arguments, weight):
            sources = f'data.train=[{{path="corpus.txt",weight=3}},{{path="b.txt",weight={weight}}}]'
            return ["train", *arguments, "--run-dir", "r", "--set", sources]

        resume = ["--resume", "--set", "train.max_steps=4", "--set", "parallel.data_parallel=2"]
        self.assert_done(*train("run.toml", "--set", "train.max_steps=2", weight=1))
        self.assert_refused(*train(*resume, weight=9), says=["or weights in data.train"], leaves_run_dir=True)
        output = self.assert_done(*train(*resume, "--new-data", weight=9)).stdout
        self.assertEqual(output.count("new data   from sample 16 on"), 1, output)
        self.assert_epochs(output, samples=16)
        output = self.assert_done(*train("--resume", "--set", "train.max_steps=6", weight=9)).stdout
        self.assertNotIn("new data", output)
        self.assert_epochs(output, samples=32)

    def assert_epochs(self, output, samples):
        """Checks the printed epochs of the first source, whose weight is 1/4, for a run of `samples` samples."""
        sequences, epochs = re.search(r"corpus.txt: (\d+) sequences, 25 % of the samples, (\S+) epochs", output).groups()
        self.assertEqual(epochs, f"{samples / 4 / int(sequences):.3g}")

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
    def test_a_run_that_diverges_completes_the_checkpoint_that_it_has_begun(self):
        self.write("slow_disk.c", "#include <unistd.h>\nint fdatasync(int);\nint fsync(int f) { sleep(2); return fdatasync(f); }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "slow_disk.so", "slow_disk.c"], cwd=self.folder, check=True)
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=100", "--set",
                            "optimizer.lr=1e30", "--set", "optimizer.schedule=constant", "--set", "train.clip_norm=0",
                            "--set", "checkpoint.interval=1", says=["diverged"], leaves_run_dir=True,
                            env=os.environ | {"LD_PRELOAD": str(self.folder / "slow_disk.so")})
        names = [path.name for path in (self.folder / "r" / "checkpoints").glob("step-*")]
        self.assertIn("step-00000001", names)
        self.assertFalse([name for name in names if "partial" in name], names)

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
        self.assert_refused("train", "run.toml", "--run-dir", "r", preexec_fn=limit_files_to(24000),
                            says=["checkpoints", "ulimit -f", "has written no checkpoint"], leaves_run_dir=True)
        self.assertFalse(list((self.folder / "r" / "checkpoints").glob("step-*")), "nothing half-written")

    def test_a_log_beyond_a_limit_on_files_says_how_to_go_on(self):
        self.write_run("long.toml", steps=300, checkpoint_interval=0)
        refused = self.copus("train", "long.toml", "--run-dir", "r", preexec_fn=limit_files_to(40000))
        self.assertEqual(refused.returncode, 2)
        self.assertRegex(refused.stderr, r"run\.jsonl: step \d+ cannot be written: File too large; .*\(ulimit -f\): raise that "
                         r"limit\. The run has written no checkpoint; --resume begins it again \(see")
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=20")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
