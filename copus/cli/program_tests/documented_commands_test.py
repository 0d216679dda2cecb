"""Runs the commands of README.md and docs/*.md as a single reader would: page by page in README.md's order, in one
folder.

Usage: documented_commands_test.py PATH_TO_COPUS [unittest options], of a build with libtorch.
The folder has what a clone has after `make quickstart` and `make setup`: the project's files, build/copus (the program
under test), .venv, and data/gcide with a made-up corpus instead of the downloaded one. Everything else comes from the
pages: files that a page shows under "Save this as `NAME`" are written unchanged, and commands make the other files. For
files that a page leaves to the reader by "stands for", STAND_INS has a substitute. The environment has only HOME, PATH,
the variables of NEUTRAL, and those of ADDED, which the page has to mention. A command is documented wrongly if it exits
with another code than 0 or prints an error.

A command that is new in the documentation is run unchanged. If it takes long, it needs an entry in SHORTENED; if it
cannot run in a test, an entry in LEFT_OUT. Every entry must match some command.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Callable, NamedTuple

from free_port import free_port
from presupposed_files import RUN_OF_FOUR_RANKS, SMALL_RUN, articles, documents, write_config, write_model
from program_test_support import COPUS, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from documented_commands import Command, documented_commands, page_text, saved_files, stand_ins  # noqa: E402

LIMIT = 300  # seconds, on a busy machine; shorten commands that take a tenth of this on a quiet one
LINKED = ["bench", "configs", "docs", "scripts", "tools", ".venv"]
# Any other command might do anything: it must be left out, or added here.
KNOWN_PROGRAMS = re.compile(r"(until |PATH=\S+ )?(build/copus|scripts/fetch-corpus|\.venv/bin/python tools/|\.venv/bin/torchrun|mpirun"
                            r"|(\.venv/bin/python|python3) - |mkdir -p data|head -n|cat > (continue|pages)\.toml)")

SMALL = " ".join(f"--set {setting}" for setting in SMALL_RUN)
# Replacements in all commands: (pattern, replacement). Commands that need a GPU or take hours get `--dry-run`.
SHORTENED = [
    (r"(train (?:my|configs/runs/parallel)\.toml .*train\.device=cuda.*)", r"\1 --dry-run"),
    (r"(train configs/runs/(?:quickstart|modelled-64-h100|parallel)\.toml .*)", rf"\1 {SMALL}"),
    (r"(--set train\.max_seconds=60.*)", r"\1 --set train.max_steps=30"),
    (r"(train configs/runs/modelled-64-h100\.toml .*)", r"\1 --set train.max_tokens=100000"),
    (r"(train configs/runs/parallel\.toml (?!.*--dry-run).*)", r"\1 --set train.max_steps=2 --set evaluate.interval=0"),
    (r"train my\.toml(?! --run-dir runs/steered)", r"train my.toml --set train.max_steps=30"),
    (r"train my\.toml", rf"train my.toml {SMALL}"),
    (r"(tools/tokenize_corpus\.py .*)", r"\1 --processes 1"),
    # The first such command of the guide loads the folder as transformers does, which takes long.
    (r"(tokenize_corpus\.py (?:articles\.jsonl|my\.txt) --tokenizer my-model)( .*(?:articles|paragraphs))",
     r"\1/tokenizer.json --eod-token '<|end|>'\2"),
    (r"(train continue\.toml .*)", r"\1 --set train.max_tokens=16384"),
    (r"(train pages\.toml .*)", r"\1 --set train.max_steps=10"),
    (r"(watch runs/a)$", r"\1 --once"),
    (r"(compare bench/\S+)", r"\1 --dry-run"),
    (r"(compare my-experiment\.toml)$", r"\1 --jobs 2"),
    (r"(simulate configs/runs/modelled-64-h100\.toml)$", r"\1 --tokens 1e9"),
    (r"--tokens 1e10 --targets 4 3", "--tokens 1e9 --targets 5 4"),
    (r"(torchrun .*--nproc-per-node )8 (.*selftest)", r"\g<1>4 \2"),
    (r"(selftest --ranks )8", r"\g<1>4"),
    (r"(selftest( --ranks \d)?)$", r"\1 --seconds 3"),
    (r"(bench step.*)", r"\1 --steps 1"),
    (r"(bench regret)(?!.*--scenario )", r"\1 --scenarios 1"),
    (r"(gns --checkpoint \S+)", r"\1 --batches 2 --large-batch 4"),
    (r"(gns --model .*)", r"\1 --batches 2 --large-batch 2"),
    (r"(calibrate runs/first)", r"\1 --time 100s"),
    (r"(profile --config RUN\.toml --cluster here\.toml)", r"\1 --steps 1 --rounds 1"),
    (r"--cells 12", "--cells 2"),
]
# Files shown on a page that are shortened; all others are written unchanged.
SHORTENED_FILES = {
    "my-experiment.toml": [
        ('"train.max_tokens=2e6"', ", ".join(f'"{each}"' for each in [*SMALL_RUN, "train.max_tokens=4096"])),
        ("evaluate.interval_tokens=65536", "evaluate.interval_tokens=2048"), ("[1, 2, 3, 4, 5]", "[1, 2]"),
        ("[11, 12]", "[11]")],
}

LEFT_OUT = [
    (r"kubectl ", "needs Kubernetes, whose environments deploy_test.py gives to processes"),
    (r"make (quickstart( DEVICE=cuda)?|build|setup|test|test-all)$", "sets up and builds, with a network: what this test is a part of"),
    (r"cmake --install build ", "450 MB; the test build.install does it"),
    (r"\.venv/bin/pip install ", "needs a network"),
    (r"pip install --no-deps nvidia-|export CUDA_HOME=|ln -s libcudart", "needs a network, for a build for GPUs"),
    (r"COPUS_WITH_TORCH=1 pip |copus train ", "compiles for minutes; the test python.wheel_with_trainer does it"),
    (r"\.venv/bin/python tools/tokenize_corpus\.py \S+://", "needs a network; data.remote_files has a server of its own"),
    (r"\.venv/bin/python tools/fetch_shards\.py |build/copus train web\.toml ",
     "needs a network; cli.remote_corpus has a server of its own"),
    (r"mkdir -p tasks$|cat > tasks/|HF_HUB_OFFLINE=1 .* -m lm_eval ", "needs lm_eval; test-integrations has it"),
    (r"\.venv/bin/python -m copus\.track ", "needs W&B; scripts/test-integrations has it"),
    (r"build/copus selftest --faults ", "takes 3 to 6 s for each of its faults; workshop.selftest strikes five"),
    (r"\.venv/bin/tensorboard ", "a server; report.TensorBoardPackageReadsEvents has it read our files"),
    (r"#!/usr/bin/env bash\n#SBATCH |(MASTER_ADDR=\S+ MASTER_PORT=\S+ )?srun |sbatch ", "needs SLURM, whose jobs are cli.slurm's"),
    (r"torchrun .*--nnodes 2 ", "needs two machines; comm.machines imitates them"),
    (r"build/copus (profile|bench step) --device cuda|bash scripts/gpu-check |git clone .*/NVIDIA/nccl "
     r"|python3 bench/gpu/nccl\.py |COPUS_TORCH_DIR=.* make build$|cmake -S \. -B build |cmake --build build ",
     "builds for a GPU, or measures one"),
    (r"\.venv/bin/python bench/(adaptation/measure\.py$|noise_scale/measure\.py )", "measures for 8 and 25 minutes"),
]

# Variables without an effect that a reader sees: use no network, and leave CPU time to other tests.
NEUTRAL = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
# Variables that a page tells readers to set if they are root.
ADDED = {"docs/parallelism.md": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}}

# Files that a page asks its reader to have, by name, with a function that makes each in the reader's folder.
STAND_INS: dict[str, Callable[[pathlib.Path], object]] = {
    "my-model": write_model,
    "articles.jsonl": lambda path: path.write_text(articles(50)),
    "RUN.toml": lambda path: path.write_text(RUN_OF_FOUR_RANKS),
    "config.json": lambda path: write_config(path, vocab_size=256),
    "RUN": lambda path: shutil.copytree(path.parent / "runs/modelled", path),
}


class Beside(NamedTuple):
    """A command that keeps running during later ones, as in a separate terminal, until Ctrl-C."""
    page: str
    command: str
    run_directory: str
    ends: str  # interrupted before this command


BESIDE = [
    Beside("README.md", "build/copus train configs/runs/quickstart.toml --run-dir runs/a", "runs/a",
           "build/copus train --resume --run-dir runs/a"),
    Beside("README.md", "build/copus train --resume --run-dir runs/a", "runs/a",
           "build/copus compare bench/quickstart/80.toml"),
    Beside("docs/adaptation.md", "build/copus train my.toml --run-dir runs/steered --set parallel.data_parallel=2",
           "runs/steered", "build/copus replay runs/adapting --policy static"),
]

# Takes more than ten seconds and gives the same result on every page: run once.
MACHINE = "build/copus profile --machine here.toml"


def shortened(command: str) -> str:
    for pattern, replacement in SHORTENED:
        command = re.sub(pattern, replacement, command)
    return command


def why_left_out(command: str) -> str:
    return next((reason for pattern, reason in LEFT_OUT if re.match(pattern, command)), "")


def lacking_here(command: str) -> str:
    """What this machine lacks for a command; `make setup` installs it."""
    packages = ROOT / ".venv" / "lib"
    if command.startswith(".venv/bin/torchrun") and not (ROOT / ".venv/bin/torchrun").exists():
        return "torchrun"
    if command.startswith("mpirun") and (os.environ.get("COPUS_WITH_MPI") == "0" or not shutil.which("mpirun")):
        return "MPI"
    needs_tokenizer = re.search(r"tokenize|continue\.toml|runs/continue|data/my\b|pages", command)
    if needs_tokenizer and not list(packages.glob("*/site-packages/transformers")):
        return "the Python package transformers in .venv"
    return ""


class Reader:
    """A reader's folder and environment."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        (folder / "build").mkdir()
        (folder / "build" / "copus").symlink_to(COPUS)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        (folder / "data" / "gcide").mkdir(parents=True)
        (folder / "data/gcide/train.txt").write_text(documents(400_000, seed=1))
        (folder / "data/gcide/held_out.txt").write_text(documents(20_000, seed=1))
        sanitizers = {name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")}
        self.environment = {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin"} | NEUTRAL | sanitizers

    def open(self, page: str):
        """Writes the files that a page shows, and makes those that it leaves to the reader."""
        for name, text in saved_files(page_text(page)).items():
            for long, short in SHORTENED_FILES.get(name, []):
                assert long in text, f"{long} is no more in {page}'s {name}"
                text = text.replace(long, short)
            (self.folder / name).write_text(text)
        for name in stand_ins(page_text(page)) & STAND_INS.keys():
            if not (self.folder / name).exists():
                STAND_INS[name](self.folder / name)

    def start(self, page: str, command: str) -> subprocess.Popen:
        added = ADDED.get(page, {}) if os.geteuid() == 0 else {}
        environment = self.environment | added | {"PET_MASTER_PORT": free_port()}  # other tests run at the same time
        return subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=environment, text=True, errors="replace",
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                start_new_session=True)


class DocumentedCommands(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="copus_reader_"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.reader = Reader(folder)
        self.beside: dict[Beside, subprocess.Popen] = {}
        self.counts = {"as they stand": 0, "shortened": 0, "left out": 0, "lacking something here": 0}

    def test_commands_in_the_order_of_reading(self):
        for page, commands in documented_commands().items():
            self.reader.open(page)
            for command in commands:
                self.end_those_before(command)
                self.try_command(command)
            self.assertEqual(self.beside, {}, f"goes on to the end of {page}")
        print("Commands:", ", ".join(f"{count} {what}" for what, count in self.counts.items()))

    def end_those_before(self, command: Command):
        for other in [other for other in self.beside if (other.page, other.ends) == (command.page, command.text)]:
            with self.subTest(f"{command.page}: Ctrl-C to {other.command}"):
                self.interrupt(self.beside.pop(other))

    def try_command(self, command: Command):
        run = shortened(command.text)
        if why_left_out(command.text):
            self.counts["left out"] += 1
            return
        if lacking := lacking_here(command.text):
            self.counts["lacking something here"] += 1
            print(f"{command.place}: left out, since this machine lacks {lacking}: {command.text}")
            return
        self.counts["as they stand" if run == command.text else "shortened"] += 1
        if command.text == MACHINE and (self.reader.folder / "here.toml").exists():
            return
        with self.subTest(f"{command.place}: {command.text}"):
            self.assertRegex(command.text, KNOWN_PROGRAMS, "this command is new: run it here, or leave it out")
            process = self.reader.start(command.page, run)
            self.addCleanup(self.end, process)
            for other in BESIDE:
                if (other.page, other.command) == (command.page, command.text):
                    self.beside[other] = process
                    return self.wait_for_steps(self.reader.folder / other.run_directory, process)
            output, code = self.finish(process)
            self.assertEqual(code, 0, f"{run}\nends so after at most {LIMIT} s:\n{output[-3000:]}")
            self.assertNotIn("error:", output, run)

    def finish(self, process: subprocess.Popen) -> tuple[str, int | None]:
        """Returns the output of a process and its exit code, which is None if it takes too long."""
        try:
            return process.communicate(timeout=LIMIT)[0], process.returncode
        except subprocess.TimeoutExpired:
            self.end(process)
            return process.communicate()[0], None

    def wait_for_steps(self, run: pathlib.Path, process: subprocess.Popen):
        """Waits until a run has logged two steps since it was started or resumed."""
        log = run / "run.jsonl"
        before = log.stat().st_size if log.exists() else 0
        deadline = time.monotonic() + LIMIT
        while not log.exists() or log.read_bytes()[before:].count(b"\n") < 2:
            if process.poll() is not None or time.monotonic() > deadline:
                self.end(process)
                self.fail(process.communicate()[0])
            time.sleep(0.05)

    def end(self, process: subprocess.Popen):
        """Kills the process's whole session, even if the process itself has ended and left others."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def interrupt(self, process: subprocess.Popen):
        os.killpg(process.pid, signal.SIGINT)
        output, code = self.finish(process)
        self.assertEqual(code, 130, output)


class Entries(unittest.TestCase):
    """Checks that the tables of this file still match the documentation."""

    def test_every_entry_stands_for_a_command(self):
        texts = [command.text for commands in documented_commands().values() for command in commands]
        run = [text for text in texts if not why_left_out(text)]
        for pattern, _ in LEFT_OUT:
            self.assertTrue(any(re.match(pattern, text) for text in texts), f"nothing to leave out: {pattern}")
        for pattern, replacement in SHORTENED:
            self.assertTrue(any(re.search(pattern, text) for text in run), f"nothing to shorten: {pattern}")
            run = [re.sub(pattern, replacement, text) for text in run]

    def test_what_goes_on_beside_others_begins_and_ends(self):
        pages = documented_commands()
        for other in BESIDE:
            texts = [command.text for command in pages[other.page]]
            self.assertLess(texts.index(other.command), texts.index(other.ends))

    def test_what_is_added_stands_on_the_page(self):
        pages = {page: page_text(page) for page in documented_commands()}
        for page, variables in ADDED.items():
            for name, value in variables.items():
                self.assertIn(f"`{name}={value}`", pages[page])
        for name in STAND_INS:
            self.assertTrue(any(name in stand_ins(text) for text in pages.values()), f"no page leaves {name} to its reader")
        shown = {name for text in pages.values() for name in saved_files(text)}
        self.assertLessEqual(SHORTENED_FILES.keys(), shown)
        self.assertIn("my.toml", shown - SHORTENED_FILES.keys())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
