#!/usr/bin/env python3
"""Kills `copus compare` at random moments, resumes it, and compares its table with the table of an undisturbed
comparison.

    bench/evaluation/kill.py [--copus build/copus] [--times 20] [--seed 1]

Call it from the root of the repository. Both comparisons run in temporary directories. A kill is a SIGKILL to the
comparison, which also ends its runs, so that no process can clean up. The exit code is 0 if results.json is the same,
bit for bit.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

EXPERIMENT = pathlib.Path(__file__).with_name("kill.toml")


def begin(copus: str, directory: pathlib.Path) -> subprocess.Popen:
    """Starts or resumes the comparison."""
    return subprocess.Popen(
        [copus, "compare", str(EXPERIMENT), "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(copus: str, directory: pathlib.Path) -> bytes:
    """Runs the comparison to its end and returns its results."""
    run = begin(copus, directory)
    _, errors = run.communicate(timeout=1800)
    if run.returncode != 0:
        sys.exit(f"copus compare ended with exit code {run.returncode}: {errors}")
    return (directory / "results.json").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default="build/copus", help="the program")
    parser.add_argument("--times", type=int, default=20, help="how often it is killed")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        undisturbed = finish(options.copus, pathlib.Path(folder) / "undisturbed")
        # Kills are spread so that all of them should fall within the comparison, including repeated work.
        longest = (time.monotonic() - began) / options.times * 2
        killed = pathlib.Path(folder) / "killed"
        landed = 0
        for _ in range(options.times):
            run = begin(options.copus, killed)
            try:
                _, errors = run.communicate(timeout=moments.uniform(0.05, longest))
                if run.returncode != 0:
                    sys.exit(f"copus compare ended with exit code {run.returncode}: {errors}")
            except subprocess.TimeoutExpired:
                landed += 1
                run.kill()
                run.communicate()
        same = finish(options.copus, killed) == undisturbed
    print(f"killed {landed} times while it ran; results.json is {'the same' if same else 'another'}")
    sys.exit(0 if same and landed == options.times else 1)


if __name__ == "__main__":
    main()
