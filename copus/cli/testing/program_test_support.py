"""Support for tests of the program as a process: a folder with a corpus and a run, and access to the files of a run.

For test files that are called as TEST.py PATH_TO_COPUS [unittest options]. For a build without libtorch (environment
COPUS_WITH_TORCH=0), they test its messages about that.
"""

import errno
import json
import os
import pathlib
import pty
import re
import resource
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

COPUS = str(pathlib.Path(sys.argv[1]).resolve())
ROOT = pathlib.Path(__file__).resolve().parents[3]
TORCHRUN = str(ROOT / ".venv" / "bin" / "torchrun")
WITH_TORCH = os.environ.get("COPUS_WITH_TORCH", "1") == "1"
SANITIZERS = os.environ.get("COPUS_SANITIZE", "")  # the sanitizers of the program's build
KILL_ROUNDS = int(os.environ.get("COPUS_KILL_ROUNDS", "5"))
TIMEOUT = 400  # seconds, far more than any command here takes

MODEL = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
"""
RUN = """
[data]
train = "corpus.txt"
held_out_fraction = 0.1
[train]
sequence_length = 32
global_batch = 8
micro_batch = 4
max_steps = {steps}
threads = 1
precision = "fp32"
[optimizer]
lr = 1e-3
[evaluate]
interval = 20
[checkpoint]
interval = {checkpoint_interval}
"""
# Nodes of two ranks, on the virtual clock.
VIRTUAL_CLUSTER = """
[cluster]
clock = "virtual"
ranks_per_node = 2
within_node = { latency_microseconds = 2.0, gigabytes_per_second = 8.0 }
between_nodes = { latency_microseconds = 30.0, gigabytes_per_second = 0.5 }
teraflops_per_rank = 0.01
"""
# A job of 64 ranks on a cluster that is only described. The test adds [parallel].
MODELLED_CLOCK = """
[cluster]
clock = "modelled"
config = "h100-sxm"
stands_for = "llama-3.1-8b"
stands_for_sequence_length = 8192
stands_for_precision = "bf16"
truth_layout_error = 0.1
"""


def batch_of(configuration):
    """The global batch of a configuration as text."""
    return int(dict(part.split("=") for part in configuration.split(","))["B"])


def run_with_terminal(arguments, folder, timeout=TIMEOUT, shows_output=False):
    """Runs the program with a terminal for its messages. Returns its exit code, its output and the terminal's text.
    With `shows_output`, the terminal is for the output instead, and there are no messages."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryFile() as output:  # not a pipe, which a long output would fill
        streams = {"stdout": theirs, "stderr": output} if shows_output else {"stdout": output, "stderr": theirs}
        process = subprocess.Popen([COPUS, *arguments], cwd=folder, **streams)
        os.close(theirs)
        deadline, shown = time.monotonic() + timeout, b""
        try:
            while piece := read_terminal(ours, deadline):
                shown += piece
            process.wait(max(0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
            raise AssertionError(f"has not ended within {timeout} s: copus {shlex.join(map(str, arguments))}; "
                                 f"it has shown {shown.decode(errors='replace')!r}") from None
        finally:
            os.close(ours)
        output.seek(0)
        texts = output.read().decode(), shown.decode()
        return process.returncode, *(reversed(texts) if shows_output else texts)


def read_terminal(descriptor, deadline):
    """Returns what the other side has written since; nothing if the other side is gone."""
    if not select.select([descriptor], [], [], max(0, deadline - time.monotonic()))[0]:
        raise TimeoutError
    try:
        return os.read(descriptor, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def limit_files_to(size):
    """Makes a preexec_fn that limits files of the child to `size` bytes, as a stand-in for a full disk."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="copus_program_test_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        lines = (f"line {i}: the sea and the sky and the stars are far away from here\n" for i in range(400))
        self.write("corpus.txt", "".join(lines))
        self.write_run("run.toml")

    def write(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def write_run(self, name, steps=20, checkpoint_interval=0, model=MODEL, more=""):
        self.write(name, model + RUN.format(steps=steps, checkpoint_interval=checkpoint_interval) + more)

    def start(self, *arguments, **options):
        process = subprocess.Popen([COPUS, *arguments], cwd=self.folder, text=True, errors="replace",
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(self.kill_left_over, process)
        return process

    @staticmethod
    def kill_left_over(process):
        """Kills a process that a failed test leaves behind: an endless run would use up the machine's time."""
        if process.poll() is None:
            process.kill()
            process.wait(timeout=TIMEOUT)
        process.stdout.close()
        process.stderr.close()

    def copus(self, *arguments, **options):
        process = self.start(*arguments, **options)
        output, errors = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def commands(self):
        """The names of all commands that --help lists, and "bench NAME" for each command of bench."""
        def listed(*group):
            text = self.assert_done(*group, "--help").stdout.split("Subcommands:\n")[1].split("\nExample")[0]
            return re.findall(r"(?m)^  (\w+)", text)

        return [*listed(), *(f"bench {name}" for name in listed("bench"))]

    def assert_done(self, *arguments):
        result = self.copus(*arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def assert_refused(self, *arguments, says, leaves_run_dir=False, **options):
        """Expects a user's mistake: exit code 2, one message with these words, and no half-written files."""
        result = self.copus(*arguments, **options)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("copus: error:"), 1, result.stderr)
        for words in says:
            self.assertIn(words.lower(), result.stderr.lower())
        if not leaves_run_dir:
            self.assertFalse((self.folder / "r").exists(), "a refused command must not create the run directory")
            self.assertFalse((self.folder / "runs").exists())
        return result

    def losses(self, run):
        """Returns {step: (loss, grad_norm, lr)} as written: texts are equal only if the numbers are bitwise equal.

        A step may have a second line right after its first, which only adds the held-out loss.
        """
        found, before = {}, None
        for line in (self.folder / run / "run.jsonl").read_text().splitlines():
            record = json.loads(line, parse_float=str)
            if record["step"] in found:
                self.assertEqual(record | {"held_out_loss": None, "held_out_losses": None},
                                 before | {"held_out_loss": None, "held_out_losses": None}, "a step is logged twice")
                self.assertIsNone(before["held_out_loss"], "a step is logged twice")
            found[record["step"]] = (record["loss"], record["grad_norm"], record["lr"])
            before = record
        self.assertEqual(sorted(found), list(range(1, len(found) + 1)))
        return found

    def wait_for_checkpoint(self, run, step):
        deadline = time.monotonic() + TIMEOUT
        while not (self.folder / run / "checkpoints" / f"step-{step:08}").exists():
            self.assertLess(time.monotonic(), deadline, "no checkpoint was written")
            time.sleep(0.005)

    def wait_for_steps(self, run, steps, process):
        log = self.folder / run / "run.jsonl"
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            if log.exists() and len(log.read_text().splitlines()) >= steps:
                return
            time.sleep(0.005)
        self.fail(f"{run} did not reach step {steps}: {process.communicate()}")
