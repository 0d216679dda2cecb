"""Short training runs of `copus train` in given layouts, for the measurements in this folder."""

import json
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class ShortRuns:
    """Trains a small model on made-up text. Every run has a directory of its own, which is deleted at the end."""

    def __init__(self, copus: str, model: dict, sequence_length: int):
        self.copus = str(pathlib.Path(copus).resolve())
        if not pathlib.Path(self.copus).exists():
            raise SystemExit(f"{self.copus} does not exist; build it first (make build), or name it with --copus")
        self.folder = tempfile.TemporaryDirectory(prefix="copus_layouts_")
        self.path = pathlib.Path(self.folder.name)
        (self.path / "corpus.txt").write_text("".join(f"{i} green bottles, {i * i} on the wall\n" for i in range(20000)))
        lines = ["[model]"] + [f"{key} = {json.dumps(value)}" for key, value in model.items()]
        lines += ["[data]", f'train = "{self.path / "corpus.txt"}"', "held_out_fraction = 0.0",
                  "mask_across_documents = false"]
        lines += ["[train]", f"sequence_length = {sequence_length}", "max_steps = 1", 'precision = "fp32"']
        lines += ["[evaluate]", "interval = 0", "[log]", "tensorboard = false"]
        (self.path / "run.toml").write_text("\n".join(lines) + "\n")
        self.count = 0

    def records(self, steps: int, settings: dict) -> list[dict]:
        """The lines of run.jsonl of a run with these settings."""
        self.count += 1
        directory = self.path / f"run{self.count}"
        command = [self.copus, "train", str(self.path / "run.toml"), "--run-dir", str(directory)]
        for key, value in {"train.max_steps": steps, **settings}.items():
            command += ["--set", f"{key}={value}"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return [json.loads(line) for line in (directory / "run.jsonl").read_text().splitlines()]


def degrees_of(layout: str) -> dict[str, int]:
    """'d=2,t=4,p=1' as settings of [parallel]; a degree that is left out is 1."""
    names = {"d": "parallel.data_parallel", "t": "parallel.tensor_parallel", "p": "parallel.pipeline_parallel"}
    try:
        return {names[symbol]: int(degree) for symbol, degree in (part.split("=") for part in layout.split(","))}
    except (KeyError, ValueError):
        raise SystemExit(f'"{layout}" is no layout; expected degrees such as d=2,t=4,p=1') from None


def median_and_spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)
