"""Tests the program `copus` as a process: commands, messages, runs from start to end, full disks.

Usage: program_test.py PATH_TO_COPUS [unittest options]. For a build without libtorch (environment COPUS_WITH_TORCH=0),
tests its messages about that. bad_input_test.py tests mistakes, interruptions_test.py signals and kills,
several_ranks_test.py jobs of several ranks.
"""

import json
import math
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
import unittest

from free_port import free_port
from program_test_support import COPUS, SANITIZERS, TIMEOUT, WITH_TORCH, ProgramTest, limit_files_to


class ProgramWithLibtorch(ProgramTest):
    """Commands that `copus` passes to copus-torch next to it: here a script that prints how it was started."""

    def setUp(self):
        super().setUp()
        self.program = self.folder / "copus"
        shutil.copy2(COPUS, self.program)
        (self.folder / "copus-torch").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"; exit 7\n")
        (self.folder / "copus-torch").chmod(0o755)

    def outcome(self, *arguments, **variables):
        done = subprocess.run([self.program, *arguments], cwd=self.folder, text=True, capture_output=True, timeout=TIMEOUT,
                              env={**os.environ, **variables})
        return done.returncode, done.stdout + done.stderr

    def assert_left_to_it(self, *arguments, **variables):
        told = "".join(f"<{word}>" for word in arguments)
        self.assertEqual(self.outcome(*arguments, **variables), (7, told))

    def test_takes_the_command_line_as_it_is(self):
        self.assert_left_to_it("generate", "--checkpoint", "r", "--prompt", "plan")
        self.assert_left_to_it("generate", "--help")
        self.assert_left_to_it("bench", "step", "--nonsense", "", "two words")
        self.assert_left_to_it("profile")
        self.assert_left_to_it("train", "run.toml", "--set", "train.max_steps=3", "--dry-run")

    def test_mistakes_are_told_without_it(self):
        for arguments, says in [(["tain"], "tain"), (["train", "--nonsense"], "nonsense"), (["train", "no.toml"], "no.toml"),
                                (["train", "run.toml", "--set", "train.global_batch=7"], "global_batch"),
                                (["train", "--resume", "--run-dir", "r"], "nothing to resume")]:
            code, told = self.outcome(*arguments)
            self.assertEqual(code, 2, told)
            self.assertIn(says, told)

    def test_ranks_tell_their_mistakes_together(self):
        self.assert_left_to_it("train", "no.toml", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2",
                               MASTER_ADDR="localhost", MASTER_PORT="1")

    def test_helps_without_it(self):
        for arguments in [["--help"], ["train", "--help"], ["bench", "--help"], ["--version"]]:
            self.assertEqual(self.outcome(*arguments)[0], 0)
        listed = self.outcome("--help")[1]
        self.assertIn("Let a trained model continue a text", listed)
        self.assertNotIn("not in this build", listed)

    def test_what_cannot_be_started_is_named(self):
        (self.folder / "copus-torch").chmod(0o644)
        code, told = self.outcome("gns", "--checkpoint", "r")
        self.assertEqual(code, 2)
        self.assertIn(f"{self.folder / 'copus-torch'}, which cannot be started", told)


class ProgramOfAWheel(ProgramTest):
    """A program in an environment's bin, and a copus-torch in its packages, which loads the libtorch of its PyTorch."""

    def setUp(self):
        super().setUp()
        self.program = self.folder / "env/bin/copus"
        self.program.parent.mkdir(parents=True)
        shutil.copy2(COPUS, self.program)
        self.packages = self.folder / "env/lib/python3.13/site-packages"
        self.install_trainer("python3.13")

    def install_trainer(self, python, version="2.13.0+cu130", exit_code=7):
        folder = self.folder / f"env/lib/{python}/site-packages/copus/bin"
        folder.mkdir(parents=True)
        (folder / "copus-torch").write_text(f"#!/bin/sh\nexit {exit_code}\n")
        (folder / "copus-torch").chmod(0o755)
        (folder / "pytorch.txt").write_text(f"{version}\n{self.folder}/shared/torch\n")

    def install_torch(self, version, packages="env/lib/python3.13/site-packages"):
        (self.folder / packages / "torch").mkdir(parents=True, exist_ok=True)
        (self.folder / packages / "torch/version.py").write_text(f"import os\n__version__ = '{version}'\ncuda = '13.0'\n")

    def outcome(self):
        done = subprocess.run([self.program, "gns", "--checkpoint", "r"], text=True, capture_output=True, timeout=TIMEOUT)
        return done.returncode, done.stderr

    def test_trains_with_the_pytorch_it_was_built_with(self):
        self.install_torch("2.13.0+cu130")
        self.assertEqual(self.outcome(), (7, ""))

    def test_another_pytorch_is_refused_in_one_sentence(self):
        self.install_torch("2.13.0+cpu")
        self.install_torch("2.13.0+cu130", "shared")  # the environment's libraries have priority
        code, message = self.outcome()
        self.assertEqual(code, 2)
        self.assertEqual(message, "copus: error: 'copus gns' needs PyTorch 2.13.0+cu130, with which it was built, and "
                         f"{self.packages}/torch is 2.13.0+cpu; install PyTorch 2.13.0+cu130, or build Copus with libtorch: "
                         "make build, or COPUS_WITH_TORCH=1 pip install . in the environment of your PyTorch\n")

    def test_without_pytorch_it_says_so(self):
        code, message = self.outcome()
        self.assertEqual(code, 2)
        self.assertIn(f"needs PyTorch 2.13.0+cu130, with which it was built, and {self.packages} has none;", message)

    def test_the_environment_that_it_was_built_in_may_see_the_packages_of_another(self):
        self.install_torch("2.13.0+cu130", "shared")
        self.assertEqual(self.outcome(), (7, ""))

    def test_of_several_pythons_it_takes_the_one_whose_pytorch_fits(self):
        self.install_trainer("python3.11", "2.12.0", 8)
        self.install_trainer("python3.14", "2.12.0", 9)
        self.install_torch("2.12.0", "env/lib/python3.14/site-packages")
        self.assertEqual(self.outcome(), (9, ""))

    def test_doctor_says_so_too(self):
        done = subprocess.run([self.program, "doctor"], text=True, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^bad +trainer +training needs PyTorch 2.13.0\+cu130, with which it was built, "
                         f"and {self.packages} has none$")


class CommandLine(ProgramTest):
    def test_help_and_version(self):
        self.assertIn("Examples:", self.assert_done("--help").stdout)
        self.assertRegex(self.assert_done("--version").stdout, r"copus \d+\.\d+")
        for command in self.commands():
            told = self.assert_done(*command.split(), "--help").stdout
            if told.startswith("(not in this build") and not WITH_TORCH:
                self.assertNotIn("\nExample", told, "another command's")
                continue
            self.assertIn(f"\n  copus {command} ", told.split("\nExample")[1], "an example of its own, and not another command's")

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
        """A sparse file of the largest allowed size, read under a memory limit below that size."""
        with open(self.folder / "huge.json", "wb") as file:
            file.truncate(256 << 20)
        def limit():  # of the process's own allocations: libraries map different amounts in different builds
            resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))
            resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))  # the limit that is reported
        self.assert_refused("plan", "--model", "huge.json", "--cluster", "h100-sxm", "--gpus", "8",
                            says=["there is not enough memory", "ulimit -v"], preexec_fn=limit)


class BadModels(ProgramTest):
    """Hugging Face directories and checkpoints, given to the only command for them that needs no libtorch."""

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

    def read_json(self, name):
        return json.loads((self.folder / name).read_text())

    def assert_model_refused(self, *says, source="hf", **options):
        before = sorted(path.name for path in self.folder.iterdir())
        self.assert_refused("convert", "--from", source, "--to", "out", says=says, **options)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before, "nothing half-written")

    def assert_weights_refused(self, tensor, changes, *says):
        self.write_weights(self.header | {tensor: self.header[tensor] | changes})
        self.assert_model_refused("hf", tensor, *says)

    def test_a_good_model_is_converted(self):
        for name in "fp16", "float16", "F16", "f16":
            self.assert_done("convert", "--from", "hf", "--to", name, "--dtype", name)
            self.assertEqual(sorted(path.name for path in (self.folder / name).iterdir()),
                             ["config.json", "model.safetensors"])
            self.assertEqual((self.folder / name / "model.safetensors").read_bytes(),
                             (self.folder / "fp16" / "model.safetensors").read_bytes())

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

    def test_a_converted_model_keeps_what_its_origin_says(self):
        ids = {"bos_token_id": 1, "eos_token_id": [2, 3]}
        self.write_config(**ids, max_window_layers=7, auto_map={"AutoConfig": "code.Config"})
        self.write("hf/tokenizer_config.json", '{"eos_token": "a", "pad_token": "b"}')
        self.write("hf/tokenizer.json", '{"model": {"vocab": {"a": 2, "b": 0}}}')
        told = self.assert_done("convert", "--from", "hf", "--to", "out").stdout
        self.assertIn("Kept from hf/config.json: bos_token_id, eos_token_id, max_window_layers.\n", told)
        self.assertIn("Looked up in the tokenizer: pad_token_id.\n", told)
        self.assertIn("Wrote generation_config.json with the ids of special tokens.\n", told)
        config = self.read_json("out/config.json")
        self.assertEqual({name: config[name] for name in ids}, ids)
        self.assertEqual((config["pad_token_id"], config["max_window_layers"]), (0, 7))
        self.assertNotIn("auto_map", config)
        self.assertEqual(self.read_json("out/generation_config.json"),
                         {"_from_model_config": True, **ids, "pad_token_id": 0})

        self.write("hf/generation_config.json", '{"temperature": 0.5}')
        self.assertNotIn("Wrote gen", self.assert_done("convert", "--from", "hf", "--to", "own").stdout)
        self.assertEqual(self.read_json("own/generation_config.json"), {"temperature": 0.5})

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
        self.assert_weights_refused(self.EMBEDDING, {"dtype": "I32"}, "int32", "fp32")
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
        config = json.loads((self.folder / "hf/config.json").read_text())
        self.write("hf/config.json", json.dumps(config | {"eos_token_id": 10}))
        self.assertIn("Kept from hf/config.json: eos_token_id.\nWrote generation_config.json",
                      self.assert_done("convert", "--from", "r2", "--to", "hf1").stdout)
        self.assertEqual(json.loads((self.folder / "hf1/generation_config.json").read_text())["eos_token_id"], 10)
        self.write("hf/tokenizer.json", "{}")
        self.write("hf/config.json", "of another model by now")
        self.assertIn("Kept nothing from hf/config.json, which does not describe this model.\n",
                      self.assert_done("convert", "--from", "r2", "--to", "hf2").stdout)
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
            processes = [self.start("train", "run.toml", *layout) for _ in range(6)]
            for process in processes:
                output, errors = process.communicate(timeout=TIMEOUT)
                self.assertEqual(process.returncode, 0, output + errors)
            self.assertEqual(len(list((self.folder / "runs").glob("*/summary.json"))), 6 * ranks)

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

    def test_too_few_open_files_for_the_ranks_of_a_machine_are_a_users_mistake(self):
        """As of a process that torchrun or srun starts alone on a machine, and that starts the ranks there."""
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        self.assert_refused("train", "run.toml", "--set", "parallel.data_parallel=2", env={**os.environ, **place},
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (47, 47)),
                            says=["47 open files (ulimit -n)", "48 are needed"])

    def test_too_few_threads_are_a_users_mistake(self):
        """Even if there were enough for the computing threads alone, so that OpenMP would end the process."""
        if os.geteuid() != 0:
            self.skipTest("only root can become a user who has no other process")
        self.folder.chmod(0o777)

        def limit(number, kind=resource.RLIMIT_NPROC):
            def become_a_user():
                os.setuid(54321)
                resource.setrlimit(kind, (number, number))
            return become_a_user

        for ranks, few, needed in (1, (1, 2), 3), (2, (1, 3, 10), 11):
            layout = ["--set", f"parallel.data_parallel={ranks}", "--set", "train.max_steps=1"]
            for number in few:
                self.assert_refused("train", "run.toml", *layout, preexec_fn=limit(number),
                                    says=[f"{needed} threads are needed", f"where {needed} would do"])
            result = self.copus("train", "run.toml", *layout, preexec_fn=limit(needed))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            shutil.rmtree(self.folder / "runs")
        self.write("e.toml", 'base = "run.toml"\nseeds = [1, 2]\ntargets = [9]\nreference = "one"\n'
                   '[[arm]]\nname = "one"\n[[arm]]\nname = "two"\n')
        self.assert_refused("compare", "e.toml", "--dir", "e", preexec_fn=limit(1),
                            says=["cannot start another process under ulimit -u 1:", "--jobs"])

    @unittest.skipIf(SANITIZERS, "sanitizers take more than the limits")
    def test_limits_that_leave_no_room_to_start_are_a_users_mistake(self):
        for kind, limit, says in [(resource.RLIMIT_STACK, 64 << 10, ["64 KiB of stack (ulimit -s)", "128 are needed"]),
                                  (resource.RLIMIT_AS, 400_000 << 10, ["not enough memory", "400000 KiB (ulimit -v)"])]:
            self.assert_refused("train", "run.toml", says=says,
                                preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)))

    def test_ranks_that_others_start_agree_on_a_folder_of_their_own(self):
        """Two jobs that start in the same second, although their ranks do not."""
        self.write_run("run.toml", steps=2, checkpoint_interval=1)
        jobs = [free_port(), free_port()]
        processes = []
        for rank in 0, 1:
            for port in jobs:
                variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                environment = os.environ | {name: str(value) for name, value in variables.items()}
                processes.append(self.start("train", "run.toml", "--set", "parallel.data_parallel=2", env=environment))
            time.sleep(1.1)
        for process in processes:
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 0, output + errors)
        self.assertEqual(len(list((self.folder / "runs").iterdir())), 2)
        self.assertEqual(len(list((self.folder / "runs").glob("*/checkpoints/step-*/manifest.json"))), 4)

    def test_an_evaluation_that_was_cut_short_is_made_after_the_resume(self):
        settings = ["--set", "evaluate.interval=2", "--set", "checkpoint.interval=1", "--set", "checkpoint.keep_last=9"]
        self.assert_done("train", "run.toml", "--run-dir", "r", *settings, "--set", "train.max_steps=4")
        log = self.folder / "r" / "run.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        expected = [record["held_out_loss"] for record in records]
        self.assertEqual([loss is None for loss in expected], [True, False, True, False])

        def resume_after(step, *more):
            """Resumes as if the run had been stopped in the evaluation after that step."""
            for checkpoint in (self.folder / "r" / "checkpoints").glob("step-*"):
                if int(checkpoint.name.split("-")[1]) > step:
                    shutil.rmtree(checkpoint)
            cut = [record | {"held_out_loss": None, "held_out_losses": {}} if record["step"] == step else record
                   for record in records[:step]]
            log.write_text("".join(json.dumps(record) + "\n" for record in cut))
            return self.assert_done("train", "--resume", "--run-dir", "r", *more).stdout

        output = resume_after(4)
        self.assertIn("step 4: held-out loss", output)
        self.assertEqual(self.held_out_losses(log), expected)
        output = resume_after(3)
        self.assertNotIn("was due", output)
        self.assertEqual(self.held_out_losses(log), expected)
        output = resume_after(2, "--set", "evaluate.interval=3")
        self.assertIn("step 2: held-out loss", output)  # as was due at that step
        self.assertEqual(self.held_out_losses(log)[1], expected[1])

    @staticmethod
    def held_out_losses(log):
        """Maps steps to held-out losses. If a step has two lines, the later one counts."""
        losses = {record["step"]: record["held_out_loss"] for record in map(json.loads, log.read_text().splitlines())}
        return [loss for _, loss in sorted(losses.items())]

    def test_the_start_says_what_is_read_of_each_source(self):
        self.write("b.txt", "".join(f"b {i}: other words, of which there are few\n" for i in range(100)))
        weighted = 'data.train=[{path="corpus.txt",weight=3},{path="b.txt",weight=1}]'
        for run, sources, shares in [("equal", 'data.train=["corpus.txt","b.txt"]', None), ("weighted", weighted, (75, 25))]:
            steps = ["--set", sources, "--set", "train.max_steps=4"]
            lines = [line for line in self.assert_done("train", "run.toml", "--run-dir", run, *steps).stdout.splitlines()
                     if line.startswith("source")]
            told = [re.fullmatch(r"source     (.+): (\d+) sequences, (.+) % of the samples, (.+) epochs in this run", line)
                    for line in lines]
            self.assertTrue(all(told), lines)
            self.assertEqual([one[1] for one in told], ["corpus.txt", "b.txt"])
            sequences = [int(one[2]) for one in told]
            for one, share in zip(told, shares or [100 * count / sum(sequences) for count in sequences]):
                self.assertAlmostEqual(float(one[3]), share, delta=0.01)
                self.assertAlmostEqual(float(one[4]), 4 * 8 * share / 100 / int(one[2]), delta=0.001)
        many = ",".join(9 * ['"corpus.txt"'])
        output = self.assert_done("train", "run.toml", "--run-dir", "many", "--set", f"data.train=[{many}]", "--set",
                                  "train.max_steps=1").stdout
        self.assertIn("\nsources    9; read most often: corpus.txt: ", output)
        self.assertIn("\n           read least often: corpus.txt: ", output)

    def test_a_run_of_two_sources_goes_on_where_it_was(self):
        self.write("b.txt", "".join(f"b {i}: other words, of which there are few\n" for i in range(100)))
        self.write_run("run.toml", steps=8, checkpoint_interval=5)
        for sources in '["corpus.txt","b.txt"]', '[{path="corpus.txt",weight=3},{path="b.txt",weight=1}]':
            for ranks in 1, 2:
                with self.subTest(sources=sources, ranks=ranks):
                    self.assert_done("train", "run.toml", "--run-dir", "r", "--set", f"data.train={sources}", "--set",
                                     f"parallel.pipeline_parallel={ranks}")
                    expected = self.losses("r")
                    shutil.rmtree(self.folder / "r" / "checkpoints" / "step-00000008")
                    self.assert_done("train", "--resume", "--run-dir", "r")
                    self.assertEqual(self.losses("r"), expected)
                    self.assertTrue((self.folder / "r" / "checkpoints" / "step-00000008").exists(), "nothing was trained")
                    shutil.rmtree(self.folder / "r")

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

    def test_a_run_that_is_resumed_in_another_batch_ends_after_as_many_tokens_and_keeps_to_its_schedule(self):
        self.write_run("run.toml", steps=20, checkpoint_interval=10)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        before = {record["consumed_samples"]: record["lr"] for record in self.records("r")}
        shutil.rmtree(self.folder / "r" / "checkpoints" / "step-00000020")
        output = self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.global_batch=16").stdout
        records = self.records("r")
        self.assertEqual([record["consumed_samples"] for record in records[9:]], [80, 96, 112, 128, 144, 160])
        for record in records[10:]:  # twice the batch has sqrt(2) times the learning rate at the same position
            self.assertAlmostEqual(record["lr"] / before[record["consumed_samples"]], math.sqrt(2), places=12)
        self.assertIn(f"at this point is now {before[80] * math.sqrt(2):.4g} (was {before[80]:.4g})", output)
        for change in ("the run now ends", "of the run is now done"):
            self.assertNotIn(change, output)

    def test_a_resumed_run_says_whether_other_text_is_evaluated_than_before(self):
        self.write("held.txt", "".join(f"held {i}: words that nobody trains on\n" for i in range(200)))
        self.write("other.txt", "".join(f"other {i}: words that nobody trains on\n" for i in range(200)))
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=2", "--set",
                         "data.held_out_fraction=0", "--set", "data.held_out=held.txt")
        for setting, is_other in [("evaluate.interval=3", False), ("evaluate.max_batches=3", True),
                                  ("train.micro_batch=2", True), ("data.held_out=other.txt", True)]:
            with self.subTest(setting):
                self.assert_evaluates_other_text(is_other, "--set", setting)
        shutil.copy(self.folder / "other.txt", self.folder / "held.txt")
        self.assert_evaluates_other_text(True)

    def assert_evaluates_other_text(self, is_other, *settings):
        output = self.assert_done("train", "--resume", "--run-dir", "r", *settings).stdout
        says = "held out   other text is evaluated than before: held-out losses before and after cannot be compared\n"
        self.assertEqual(says in output, is_other, output)

    def records(self, run):
        return [json.loads(line) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Forecast(ProgramTest):
    """The predicted duration of a run before it begins."""

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

    def test_a_dry_run_tells_what_adapting_may_save_and_cost(self):
        told = self.dry_run("cluster.config=laptop-two-nodes", "parallel.data_parallel=2", "adapt.most_relayouts=0")
        self.assertRegex(told, r"adapting +may save, of this time:\n( +.+\n){4}")
        self.assertRegex(told, r"by its batch at most [\d.]+ % \(80 % interval ")
        self.assertIn("at a cost of 0.0 % if it makes 0 re-layouts (adapt.most_relayouts)\n", told)
        self.assertRegex(told, r'adapting \(adapt.policy = "copus"\) (is|may be|is not) worth it\n')

    def test_a_dry_run_for_a_gpu_that_is_not_here_tells_what_it_can(self):
        told = self.dry_run("train.device=cuda:4000")
        self.assertRegex(told, r"memory +[\d.]+ [GM]iB on each rank of pipeline rank 0")
        self.assertIn("warning    the run cannot begin here: train.device = \"cuda:4000\"", told)

    def test_a_description_of_another_precision_is_said_aloud(self):
        described = ["cluster.config=cpu-2-cores", "adapt.policy=static"]
        warning = "warning    the cluster's description was measured in fp32, and the job trains in bf16"
        self.assertIn(warning, self.dry_run(*described, "train.precision=bf16"))
        self.assertNotIn("warning    the cluster", self.dry_run(*described, "train.precision=fp32"))
        overrides = [part for setting in described for part in ("--set", setting)]
        told = self.assert_done("train", "run.toml", "--run-dir", "r", *overrides, "--set", "train.precision=bf16").stdout
        self.assertIn(warning, told)

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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
