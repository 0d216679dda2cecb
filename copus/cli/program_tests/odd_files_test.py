"""Tests odd files and folders: named pipes and devices in place of files, endless texts, names with terminal control
characters, folders that belong to others, files that are truncated while they are read, and run directories that
disappear during a run.

Usage: odd_files_test.py PATH_TO_COPUS [unittest options]. A build without libtorch (environment COPUS_WITH_TORCH=0) is
tested without runs.
"""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from program_test_support import COPUS, TIMEOUT, WITH_TORCH, ProgramTest, run_with_terminal

# Files, and commands that read them.
READERS = [("odd", ["plan", "--model", "odd", "--cluster", "a100-sxm", "--gpus", "8"]),
           ("odd", ["plan", "--model", "llama-3.2-1b", "--cluster", "odd", "--gpus", "8"]), ("odd", ["simulate", "odd"]),
           ("odd", ["compare", "odd"]), ("hf/config.json", ["convert", "--from", "hf", "--to", "out"]),
           ("r/config.toml", ["replay", "r"]), ("r/run.jsonl", ["report", "r"])]


class OddFiles(ProgramTest):
    """Commands that need no libtorch. Each would time out if it blocked on a pipe."""

    def setUp(self):
        super().setUp()
        for name in ["hf", "r"]:
            (self.folder / name).mkdir()
        self.put = {"pipe": os.mkfifo, "socket": self.bind,
                    "device": lambda path: path.symlink_to("/dev/zero"),
                    "too large": lambda path: self.write(path, "") and os.truncate(path, 100 << 30)}

    def bind(self, path):
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        server.bind(str(path))

    def test_what_is_no_file_is_refused_at_once(self):
        for name, command in READERS:
            for kind, put in self.put.items():
                with self.subTest(command=command, kind=kind):
                    file = self.folder / name
                    put(file)
                    try:
                        result = self.assert_refused(*command, says=[name], leaves_run_dir=True)
                        self.assertRegex(result.stderr, "expected a file|has (a line of )?more than [0-9]+ bytes")
                    finally:
                        file.unlink()

    def test_a_shell_that_gives_a_pipe(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        self.assert_refused("simulate", f"/dev/fd/{reading}", says=["it is a pipe; expected a file"],
                            pass_fds=[reading], leaves_run_dir=True)

    def test_names_from_files_do_not_reach_the_terminal_as_they_are(self):
        header = json.dumps({"\x1b[2J\nfake\u202e": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        self.write("hf/model.safetensors", struct.pack("<Q", len(header)) + header + bytes(4))
        self.write("hf/config.json", json.dumps(
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 4,
             "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}))
        result = self.assert_refused("convert", "--from", "hf", "--to", "out", says=[r"\x1b[2J", r"fake\u202e"],
                                     leaves_run_dir=True)
        self.assertNotIn("\x1b", result.stderr)
        self.assertNotIn("\nfake", result.stderr)
        self.assert_refused("report", "\x1b]0;title\x07", says=[r"\x1b]0;title\x07"], leaves_run_dir=True)
        self.write("bad.toml", '"\x1b[31m" = 1')
        self.assertNotIn("\x1b", self.assert_refused("simulate", "bad.toml", says=["bad.toml"],
                                                     leaves_run_dir=True).stderr)

    def test_ctl_does_not_wait_for_odd_folders(self):
        self.write("r/config.toml", "")
        (self.folder / "r" / "checkpoints").mkdir()
        os.mkfifo(self.folder / "r" / "checkpoints" / ".lock")
        self.assert_refused("ctl", "r", "status", says=["is not running"], leaves_run_dir=True)


class Conversions(ProgramTest):
    """`copus convert` next to folders that do not belong to it."""

    LAYER = {"self_attn.q_proj": [4, 4], "self_attn.k_proj": [2, 4], "self_attn.v_proj": [2, 4],
             "self_attn.o_proj": [4, 4], "mlp.gate_proj": [2, 4], "mlp.up_proj": [2, 4], "mlp.down_proj": [4, 2],
             "input_layernorm": [4], "post_attention_layernorm": [4]}

    def setUp(self):
        super().setUp()
        (self.folder / "hf").mkdir()
        self.write("hf/config.json", json.dumps(
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4, "hidden_size": 4,
             "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}))
        shapes = {"model.embed_tokens.weight": [4, 4], "model.norm.weight": [4], "lm_head.weight": [4, 4]}
        shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in self.LAYER.items()}
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        self.write("hf/model.safetensors", struct.pack("<Q", len(text)) + text + bytes(end))

    def test_folders_of_others_stay(self):
        (self.folder / "elsewhere").mkdir()
        for name in ["elsewhere", "out.partial", "out.backup.partial"]:
            (self.folder / name).mkdir(exist_ok=True)
            self.write(f"{name}/letter.txt", "of the user")
        (self.folder / "linked.partial").symlink_to("elsewhere")
        for name in ["out", "linked"]:
            self.assert_done("convert", "--from", "hf", "--to", name)
            self.assertEqual(sorted(path.name for path in (self.folder / name).iterdir()),
                             ["config.json", "model.safetensors"])
        for name in ["elsewhere", "out.partial", "out.backup.partial", "linked.partial"]:
            self.assertEqual([path.name for path in (self.folder / name).iterdir()], ["letter.txt"], name)


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class OddRuns(ProgramTest):
    """Runs under disturbance. They must compute the same as an undisturbed run."""

    STEPS = 400  # so many that the run does not end before something is removed
    LAYOUTS = {"one rank": [], "two ranks": ["--set", "parallel.data_parallel=2"]}

    def setUp(self):
        super().setUp()
        self.write_run("long.toml", steps=self.STEPS, checkpoint_interval=30)

    def begin(self, run, *arguments):
        process = self.start("train", "long.toml", "--run-dir", run, *arguments)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.wait_for_steps(run, 5, process)
        return process

    def end(self, process, exit_code=0):
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, exit_code, output + errors)
        return output, errors

    def test_pipes_and_devices(self):
        os.mkfifo(self.folder / "pipe")
        self.assert_refused("train", "pipe", "--run-dir", "r", says=["pipe: it is a pipe; expected a file"])
        for setting in ["data.train", "data.held_out", "cluster.config", "model.init_from"]:
            value = '["pipe"]' if setting == "data.held_out" else '"pipe"'
            self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", f"{setting}={value}", says=["pipe"])
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", "adapt.policy=script", "--set",
                            "adapt.file=pipe", "--set", "cluster.config=cpu-2-cores",
                            says=["pipe: it is a pipe; expected a file"])
        self.assert_done("train", "run.toml", "--run-dir", "r")
        (self.folder / "r" / "run.jsonl").unlink()
        os.mkfifo(self.folder / "r" / "run.jsonl")
        self.assert_refused("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=25",
                            says=["run.jsonl: ", "expected a file"], leaves_run_dir=True)

    def test_odd_entries_of_control(self):
        process = self.begin("r", "--set", "train.max_steps=1000000")
        control = self.folder / "r" / "control"
        os.mkfifo(control / "1.json")
        (control / "2.json" / "more").mkdir(parents=True)
        (control / "3.json").symlink_to("nowhere")
        (control / "\x1b[2J.json").symlink_to("/dev/zero")
        self.write("r/4.json", "")
        os.truncate(self.folder / "r/4.json", 100 << 30)
        (self.folder / "r/4.json").rename(control / "4.json")  # the run may take it at once
        self.write("r/control/5.json", "{}")
        (control / "5.json").chmod(0)
        (control / (250 * "x" + ".json")).write_text("{}")
        self.assertIn("policy none", self.assert_done("ctl", "r", "status").stdout)
        shutil.rmtree(control)
        control.write_text("of the user")
        self.wait_for_steps("r", len(self.losses("r")) + 5, process)
        process.send_signal(signal.SIGINT)
        output, _ = self.end(process, 130)
        self.assertEqual(output.count("control    "), 1, output)
        self.assertNotIn("\x1b", output)
        self.assertEqual(control.read_text(), "of the user")

    def test_a_terminal_obeys_nothing_that_a_model_writes(self):
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=1")
        prompt = "\x1b]0;title\x07\x9b2J\r\u202e\u2066\x08\x7f\n\ttext"
        # An untrained model writes any byte after any other.
        command = ["generate", "--checkpoint", "r", "--prompt", prompt, "--tokens", "2000", "--temperature", "50"]
        code, output, _ = run_with_terminal(command, self.folder, shows_output=True)
        self.assertEqual(code, 0, output)
        self.assertTrue(output.startswith(r"\x1b]0;title\x07\x9b2J\x0d\u202e\u2066\x08\x7f" + "\r\n\ttext"), output)
        lines = output.replace("\r\n", "\n")  # undoes the terminal's line ends
        self.assertEqual(re.findall(r"[^\n\t\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\U0010ffff]", lines), [])
        with subprocess.Popen([COPUS, *command], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            self.assertTrue(process.communicate()[0].startswith(prompt.encode()), "a file gets the text as it is")

    def test_a_corpus_that_is_cut_short(self):
        for name, layout in self.LAYOUTS.items():
            with self.subTest(name):
                run, corpus = name.replace(" ", "_"), self.folder / "corpus.txt"
                text = corpus.read_bytes()
                process = self.begin(run, "--set", "train.max_steps=1000000", *layout)
                os.truncate(corpus, 10)
                _, errors = self.end(process, 2)
                self.assertEqual(errors.count("copus: error:"), 1, errors)
                self.assertIn("corpus.txt: was cut short while it was being read", errors)
                corpus.write_bytes(text)
                self.assert_done("train", "--resume", "--run-dir", run, "--set", f"train.max_steps={self.STEPS}")

    def lose_and_go_on(self, run, layout, lost, deleted):
        """Starts a run, moves a folder away from it, stops it early, and resumes it with the recreated folder."""
        process = self.begin(run, *layout)
        lost.rename(self.folder / "elsewhere")  # atomic, so that the run restores nothing while files are deleted
        if deleted:
            shutil.rmtree(self.folder / "elsewhere")
        deadline = time.monotonic() + TIMEOUT
        while not list((self.folder / run).glob("checkpoints/step-????????/manifest.json")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertIn(process.returncode, [0, 75], output + errors)
        self.assertEqual(errors, "")
        self.assertEqual(output.count(f"the run directory {run} was deleted or moved"), 1, output)
        self.assert_done("train", "--resume", "--run-dir", run)
        shutil.rmtree(self.folder / "elsewhere", ignore_errors=True)

    def test_a_run_directory_that_goes_away_is_made_again(self):
        for name, layout in self.LAYOUTS.items():
            expected = "expected_" + name.replace(" ", "_")
            self.assert_done("train", "long.toml", "--run-dir", expected, *layout)
            for how, what in [("deleted", ""), ("moved", ""), ("deleted", "checkpoints")]:
                with self.subTest(name, how=how, what=what):
                    run = f"{how}_{what}_" + name.replace(" ", "_")
                    self.lose_and_go_on(run, layout, self.folder / run / what, how == "deleted")
                    self.assertEqual(self.losses(run), self.losses(expected))

    def test_a_run_directory_that_is_now_anothers_is_left_to_it(self):
        process = self.begin("r", "--set", "train.max_steps=1000000")
        process.send_signal(signal.SIGSTOP)  # so that the other run takes its place before the next step
        (self.folder / "r").rename(self.folder / "moved")
        self.assert_done("train", "run.toml", "--run-dir", "r")
        files = sorted(str(path) for path in (self.folder / "r").rglob("*"))
        process.send_signal(signal.SIGCONT)
        steps = len((self.folder / "moved" / "run.jsonl").read_text().splitlines())
        self.wait_for_steps("moved", steps + 5, process)
        process.send_signal(signal.SIGTERM)
        output, errors = self.end(process, 2)
        self.assertIn("another run is in it now", output)
        self.assertIn("cannot be made again", errors)
        self.assertEqual(sorted(str(path) for path in (self.folder / "r").rglob("*")), files)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
