"""The commands of a section of docs/guide.md, for tests that run them as a user would."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
SET_UP = re.compile(r"^(make setup|\.venv/bin/pip install)\b.*\n", re.MULTILINE)  # what a test finds there


def shell_blocks(heading: str) -> list[str]:
    """The blocks of commands below a heading, without those that install something."""
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    section = guide.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [SET_UP.sub("", block) for block in blocks]


def make_clone(folder: pathlib.Path, program: pathlib.Path, environment: pathlib.Path) -> None:
    """Makes a folder look like a clone in which the program is built and .venv is set up."""
    (folder / "build").mkdir()
    (folder / "build" / "copus").symlink_to(program)
    (folder / ".venv").symlink_to(environment)
    for name in ("docs", "tools"):
        (folder / name).symlink_to(ROOT / name)


def run_block(block: str, folder: pathlib.Path) -> str:
    """Runs commands; returns what they print. Raises AssertionError where one fails."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=folder, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode} of\n{block}\n{done.stdout}")
    return done.stdout
