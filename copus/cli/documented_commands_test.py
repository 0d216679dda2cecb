"""Runs the commands of README.md and docs/*.md as a user would, in the order in which they stand, shortened.

Usage: documented_commands_test.py PATH_TO_COPUS [unittest options], of a build with libtorch; `-k guide` takes one page.
Commands are the lines of blocks of `sh`, and what stands in backticks and begins with build/copus. Each page has a
folder in which build/copus is the program under test and the rest of the project is linked, and beside that there is
what the page presupposes (testing/presupposed_files.py). A command that ends with another code than 0, or prints an
error, is wrong as documented.

A command that is new in the documentation is run as it stands. Where it takes long, it needs an entry in SHORTENED;
where it cannot run in a test, one in LEFT_OUT. Every entry must still stand for a command.
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
from typing import Iterator, NamedTuple

from presupposed_files import ON_TWO_NODES, SMALL_RUN, my_configuration, write_presupposed
from program_test_support import COPUS, ROOT, TORCHRUN, free_port

LIMIT = 120  # seconds; a command that takes longer has to be shortened
LINKED = ["bench", "configs", "docs", "scripts", "tools"]
# What begins otherwise might do anything: it is left out, or added here.
KNOWN_PROGRAMS = re.compile(r"(until )?(build/copus|scripts/fetch-corpus|\.venv/bin/python tools/|torchrun|mpirun"
                            r"|(\.venv/bin/python|python3) - |mkdir -p data|cat > (continue|pages)\.toml)")

SMALL = " ".join(f"--set {setting}" for setting in SMALL_RUN)
# What is replaced by what, in every command in which it stands.
SHORTENED = [
    (r"(train configs/runs/(?:quickstart|modelled-64-h100|parallel)\.toml .*)", rf"\1 {SMALL}"),
    (r"(--set train\.max_seconds=60)", r"\1 --set train.max_steps=30"),
    (r"(train configs/runs/modelled-64-h100\.toml .*)", r"\1 --set train.max_tokens=100000"),
    (r"(train configs/runs/parallel\.toml .*)", r"\1 --set train.max_steps=2 --set evaluate.interval=0"),
    (r"(tools/tokenize_corpus\.py .*)", r"\1 --processes 1"),
    # The guide's first one loads the folder as transformers does, which takes long.
    (r"(tokenize_corpus\.py (?:articles\.jsonl|my\.txt) --tokenizer my-model)( .*(?:articles|paragraphs))",
     r"\1/tokenizer.json --eod-token '<|end|>'\2"),
    (r"(train continue\.toml .*)", r"\1 --set train.max_tokens=16384"),
    (r"(train pages\.toml .*)", r"\1 --set train.max_steps=10"),
    (r"(watch runs/a)$", r"\1 --once"),
    (r"(compare bench/evaluation/\S+)", r"\1 --dry-run"),
    (r"(compare (?:EXPERIMENT|my-experiment)\.toml)$", r"\1 --jobs 2"),
    (r"(simulate RUN\.toml)", r"\1 --tokens 1e9"),
    (r"--tokens 1e10 --targets 4 3", "--tokens 1e9 --targets 5 4"),
    (r"(torchrun .*--nproc-per-node )8 (.*selftest)", r"\g<1>4 \2"),
    (r"(selftest --ranks )8", r"\g<1>4"),
    (r"(selftest( --ranks \d)?)$", r"\1 --seconds 3"),
    (r"(bench step)$", r"\1 --layers 2"),
    (r"(bench step.*)", r"\1 --steps 1"),
    (r"(bench regret)(?!.*--scenario )", r"\1 --scenarios 1"),
    (r"(gns --checkpoint \S+)", r"\1 --batches 2 --large-batch 4"),
    (r"(gns --model .*)", r"\1 --batches 2 --large-batch 2"),
    (r"(calibrate runs/first)", r"\1 --time 60s"),
    (r"(profile --config RUN\.toml --cluster here\.toml)", r"\1 --steps 1 --rounds 1"),
    (r"--cells 12", "--cells 2"),
]

LEFT_OUT = [
    (r"make (quickstart|build|setup|test|test-all)$", "sets up and builds, with a network: what this test is a part of"),
    (r"cmake --install build ", "450 MB; the test build.install does it"),
    (r"(\.venv/bin/)?pip install ", "needs a network"),
    (r"mkdir -p tasks$|cat > tasks/|HF_HUB_OFFLINE=1 .* -m lm_eval ", "needs lm_eval; test-integrations has it"),
    (r"python -m copus\.track ", "needs W&B; scripts/test-integrations has it"),
    (r"build/copus selftest --faults ", "trains 3,000 steps beside the faults; workshop.selftest strikes ten"),
    (r"\.venv/bin/tensorboard ", "a server; report.TensorBoardPackageReadsEvents has it read our files"),
    (r"#!/usr/bin/env bash\n#SBATCH ", "needs SLURM, whose jobs are cli.slurm's"),
    (r"(MASTER_ADDR=\S+ MASTER_PORT=\S+ )?srun |sbatch ", "needs SLURM, whose jobs are cli.slurm's"),
    (r"torchrun .*--nnodes 2 ", "needs two machines; comm.machines imitates them"),
    (r"build/copus .*(train\.device=|--device )cuda", "needs a GPU"),
    (r"bash scripts/gpu-check ", "needs a GPU"),
    (r"git clone .*/NVIDIA/nccl |python3 bench/gpu/nccl\.py ", "needs a network and a GPU"),
    (r"COPUS_TORCH_DIR=.* make build$|cmake -S \. -B build |cmake --build build ", "builds, for a GPU"),
    (r"\.venv/bin/python bench/(adaptation|noise_scale)/measure\.py$", "measures for 8 and 25 minutes"),
]


class Beside(NamedTuple):
    """A command that goes on beside the ones after it, as in a terminal of its own, until Ctrl-C."""
    page: str
    begins: str  # with or before this command
    command: str
    run_directory: str
    ends: str  # before this command


BESIDE = [
    Beside("README.md", "build/copus train configs/runs/quickstart.toml --run-dir runs/a",
           "build/copus train configs/runs/quickstart.toml --run-dir runs/a", "runs/a",
           "build/copus train --resume --run-dir runs/a"),
    Beside("README.md", "build/copus train --resume --run-dir runs/a", "build/copus train --resume --run-dir runs/a",
           "runs/a", "build/copus compare EXPERIMENT.toml"),
    Beside("docs/adaptation.md", "build/copus ctl runs/my status",
           "build/copus train my.toml --run-dir runs/my --set train.max_seconds=300", "runs/my",
           "build/copus replay runs/my"),
]
# Runs that a page speaks of and begins nowhere: of one run that adapts, and of one comparison.
RUNS = {"docs/guide.md": ["runs/a", "runs/b"], "docs/tour.md": ["RUN"]}
EXPERIMENTS = {"docs/guide.md": ["runs/my-experiment"], "docs/evaluation.md": ["runs/slow-nodes-final"]}


# Takes ten seconds and is the same wherever it stands: run once, and its file copied.
MACHINE, MACHINE_FILE = "build/copus profile --machine here.toml", "here.toml"


class Command(NamedTuple):
    page: str
    line: int
    text: str  # without the comment behind it, and with its continued lines joined


def without_comment(line: str) -> str:
    return re.sub(r"(^|\s)# .*", "", line).strip()


def commands_of_block(page: str, first: int, block: list[str]) -> Iterator[Command]:
    if block[0].startswith("#!"):
        yield Command(page, first, "\n".join(block))
        return
    lines = enumerate(block, start=first)
    for number, line in lines:
        text = without_comment(line)
        while text.endswith("\\"):
            text = f"{text[:-1].strip()} {without_comment(next(lines)[1])}"
        until = re.search(r"<<'(\w+)'", text)
        end = until[1] if until else "done" if text.startswith("until ") else None
        while end and not text.endswith(f"\n{end}"):
            text += "\n" + next(lines)[1]
        if text:
            yield Command(page, number, text)


def commands_of(page: str, text: str) -> Iterator[Command]:
    block: list[str] | None = None
    language, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        fence = re.match(r" *```(\w*)", line)
        if fence and block is None:
            block, language, first = [], fence[1], number + 1
        elif fence:
            if language == "sh":
                yield from commands_of_block(page, first, block)
            block = None
        elif block is not None:
            block.append(line)
        else:
            yield from (Command(page, number, each) for each in re.findall(r"`(build/copus \w[^`]*)`", line))


def documented_commands() -> dict[str, list[Command]]:
    """By page: README.md first, then the others as it lists them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\((docs/[\w-]+\.md)\)", readme.split("## Where to read next")[1])
    others = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))
    pages = dict.fromkeys(["README.md", *listed, *others])
    found = {page: list(commands_of(page, (ROOT / page).read_text(encoding="utf-8"))) for page in pages}
    return {page: commands for page, commands in found.items() if commands}


def shortened(command: str) -> str:
    for pattern, replacement in SHORTENED:
        command = re.sub(pattern, replacement, command)
    return command


def why_left_out(command: str) -> str:
    return next((reason for pattern, reason in LEFT_OUT if re.match(pattern, command)), "")


def lacking_here(command: str) -> str:
    """What this machine lacks for a command; `make setup` installs it."""
    packages = ROOT / ".venv" / "lib"
    if command.startswith("torchrun") and not os.path.exists(TORCHRUN):
        return "torchrun"
    if command.startswith("mpirun") and (os.environ.get("COPUS_WITH_MPI") == "0" or not shutil.which("mpirun")):
        return "MPI"
    needs_tokenizer = re.search(r"tokenize|continue\.toml|runs/continue|data/my\b|pages", command)
    if needs_tokenizer and not list(packages.glob("*/site-packages/transformers")):
        return "the Python package transformers in .venv"
    return ""


class Page:
    """A folder in which the commands of a page are run."""

    def __init__(self, folder: pathlib.Path, made: pathlib.Path, page: str):
        self.folder = folder
        write_presupposed(folder)
        (folder / "build").mkdir()
        (folder / "build" / "copus").symlink_to(COPUS)
        for name in LINKED + [".venv"]:
            (folder / name).symlink_to(ROOT / name)
        for source, places in (("run", RUNS.get(page, [])), ("experiment", EXPERIMENTS.get(page, []))):
            for place in places:
                shutil.copytree(made / source, folder / place)
        if page == "README.md":
            shutil.copy(ROOT / "configs/runs/modelled-64-h100.toml", folder / "RUN.toml")
        if page == "docs/adaptation.md":
            (folder / "my.toml").write_text(my_configuration() + ON_TWO_NODES)

    def start(self, command: str) -> subprocess.Popen:
        environment = os.environ | {
            "HOME": str(self.folder), "PATH": f"{os.environ['PATH']}:{ROOT / '.venv' / 'bin'}", "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "passive",  # other tests run beside this one
            "PET_MASTER_PORT": free_port(), "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return subprocess.Popen(["bash", "-c", command], cwd=self.folder, env=environment, text=True, errors="replace",
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                start_new_session=True)


class DocumentedCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="copus_documented_commands_"))
        cls.addClassCleanup(shutil.rmtree, cls.root, ignore_errors=True)
        cls.made = cls.root / "made"
        cls.machine = cls.root / MACHINE_FILE

    def make_runs(self):
        if self.made.exists():
            return
        page = Page(self.made, self.made, "")
        for command in ["build/copus train configs/runs/modelled-64-h100.toml --run-dir run",
                        "build/copus compare EXPERIMENT.toml --dir experiment"]:
            output, code = self.finish(page.start(shortened(command)))
            self.assertEqual(code, 0, output)

    def finish(self, process: subprocess.Popen) -> tuple[str, int | None]:
        """What a process prints, and its exit code; None where it takes too long."""
        try:
            return process.communicate(timeout=LIMIT)[0], process.returncode
        except subprocess.TimeoutExpired:
            self.end(process)
            return process.communicate()[0], None

    def run_page(self, page: str, commands: list[Command]):
        if page in RUNS or page in EXPERIMENTS:
            self.make_runs()
        place = Page(self.root / pathlib.Path(page).stem, self.made, page)
        beside: dict[Beside, subprocess.Popen] = {}
        for command in commands:
            for other in [other for other in beside if other.ends == command.text]:
                with self.subTest(f"{page}: Ctrl-C to {other.command}"):
                    self.interrupt(beside.pop(other))
            begun = next((other for other in BESIDE if (other.page, other.begins) == (page, command.text)), None)
            if begun:
                beside[begun] = place.start(shortened(begun.command))
                self.addCleanup(self.end, beside[begun])
                self.wait_for_steps(place.folder / begun.run_directory, beside[begun])
            if begun and begun.command == command.text or why_left_out(command.text):
                continue
            if lacking := lacking_here(command.text):
                print(f"{page}:{command.line}: left out, since this machine lacks {lacking}: {command.text}")
                continue
            if command.text == MACHINE and self.machine.exists():
                shutil.copy(self.machine, place.folder / MACHINE_FILE)
                continue
            with self.subTest(f"{page}:{command.line}: {command.text}"):
                self.assertRegex(command.text, KNOWN_PROGRAMS, "this command is new: run it here, or leave it out")
                run = shortened(command.text)
                output, code = self.finish(place.start(run))
                self.assertEqual(code, 0, f"{run}\nends so after at most {LIMIT} s:\n{output[-3000:]}")
                self.assertNotIn("error:", output, run)
            if command.text == MACHINE:
                shutil.copy(place.folder / MACHINE_FILE, self.machine)
        self.assertEqual(beside, {}, "goes on to the end of the page")

    def wait_for_steps(self, run: pathlib.Path, process: subprocess.Popen):
        """Until a run has logged two steps since it was begun or gone on with."""
        log = run / "run.jsonl"
        before = log.stat().st_size if log.exists() else 0
        deadline = time.monotonic() + LIMIT
        while not log.exists() or log.read_bytes()[before:].count(b"\n") < 2:
            if process.poll() is not None or time.monotonic() > deadline:
                self.end(process)
                self.fail(process.communicate()[0])
            time.sleep(0.05)

    def end(self, process: subprocess.Popen):
        """Ends its whole session, also where it has ended itself and left others."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def interrupt(self, process: subprocess.Popen):
        os.killpg(process.pid, signal.SIGINT)
        output, code = self.finish(process)
        self.assertEqual(code, 130, output)

    @classmethod
    def add_page(cls, page: str, commands: list[Command]):
        name = "test_" + re.sub(r"\W", "_", pathlib.Path(page).stem).lower()
        setattr(cls, name, lambda self: self.run_page(page, commands))


class Entries(unittest.TestCase):
    """What the tables of this file say still stands in the documentation."""

    def test_every_entry_stands_for_a_command(self):
        texts = [command.text for commands in documented_commands().values() for command in commands]
        run = [text for text in texts if not why_left_out(text)]
        for pattern, _ in LEFT_OUT:
            self.assertTrue(any(re.match(pattern, text) for text in texts), f"nothing to leave out: {pattern}")
        for pattern, _ in SHORTENED:
            self.assertTrue(any(re.search(pattern, text) for text in run), f"nothing to shorten: {pattern}")

    def test_what_goes_on_beside_others_begins_and_ends(self):
        pages = documented_commands()
        for other in BESIDE:
            texts = [command.text for command in pages[other.page]]
            self.assertLess(texts.index(other.begins), texts.index(other.ends))


class Reading(unittest.TestCase):
    def commands(self, *lines):
        return [(command.line, command.text) for command in commands_of("page", "\n".join(lines))]

    def test_lines_are_joined_and_comments_dropped(self):
        self.assertEqual(self.commands("```sh", "one --a \\", "  two  # why", "", "# a remark", "three # and", "```"),
                         [(2, "one --a two"), (6, "three")])

    def test_what_spans_lines_is_one_command(self):
        self.assertEqual(self.commands("```sh", "cat > a <<'END'", "b  # kept", "END", "until c; do", "  d", "done", "```"),
                         [(2, "cat > a <<'END'\nb  # kept\nEND"), (5, "until c; do\n  d\ndone")])
        self.assertEqual(self.commands("```sh", "#!/bin/sh", "a", "b", "```"), [(2, "#!/bin/sh\na\nb")])

    def test_other_languages_are_no_commands_and_backticks_are(self):
        self.assertEqual(self.commands("```text", "build/copus no", "```", "see `build/copus watch r` and `copus x`"),
                         [(4, "build/copus watch r")])


for page, commands in documented_commands().items():
    DocumentedCommands.add_page(page, commands)

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
