"""Hands the steps of a run to an experiment tracker, while it runs or afterwards.

    python -m copus.track runs/first --to wandb

It follows run.jsonl until summary.json says that the run has ended; Ctrl-C ends it before. Every number of a step goes
by its name in run.jsonl. Where and as whom is for the trackers' own variables: WANDB_PROJECT, WANDB_MODE,
MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME. For Prometheus the newest step stands in a file for the textfile collector
of node_exporter (--textfile), which is replaced whole.
"""

import argparse
import hashlib
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

POLL_SECONDS = 1.0

Numbers = dict[str, float]


class Mistake(Exception):
    """A mistake of the user."""


class Tracker(Protocol):
    def step(self, number: int, numbers: Numbers) -> None: ...
    def finish(self) -> None: ...


class WandbTracker:
    """A run of W&B whose id follows from the folder, so that tracking can begin again and go on in the same one."""

    def __init__(self, run: Path, config: dict[str, Any], _: Path):
        import wandb

        identity = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
        self._run = wandb.init(id=identity, resume="allow", name=run.name, config=config)

    def step(self, number: int, numbers: Numbers) -> None:
        self._run.log(numbers, step=number)

    def finish(self) -> None:
        self._run.finish()


class MlflowTracker:
    """A new run of MLflow."""

    def __init__(self, run: Path, config: dict[str, Any], _: Path):
        import mlflow

        self._mlflow = mlflow
        mlflow.start_run(run_name=run.name)
        mlflow.log_params(
            {f"{section}.{key}": value for section, keys in config.items() for key, value in keys.items()}
        )

    def step(self, number: int, numbers: Numbers) -> None:
        self._mlflow.log_metrics(numbers, step=number)

    def finish(self) -> None:
        self._mlflow.end_run()


class PrometheusTracker:
    """Gauges of the newest step, by the name of the run's folder."""

    def __init__(self, run: Path, _: dict[str, Any], textfile: Path):
        import prometheus_client

        self._client, self._run, self._textfile = prometheus_client, run.name, textfile

    def step(self, number: int, numbers: Numbers) -> None:
        registry = self._client.CollectorRegistry()
        for name, value in numbers.items():
            gauge = self._client.Gauge(f"copus_{name}", f"{name} of the newest step", ["run"], registry=registry)
            gauge.labels(self._run).set(value)
        self._client.write_to_textfile(str(self._textfile), registry)

    def finish(self) -> None:
        """What was written last stays."""


TRACKERS = {"wandb": WandbTracker, "mlflow": MlflowTracker, "prometheus": PrometheusTracker}


def read_steps(log: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The whole lines behind an offset, and where they end. A log that a resumed run has cut is read from its start."""
    with log.open("rb") as file:
        if log.stat().st_size < offset:
            offset = 0
        file.seek(offset)
        text = file.read()
    text = text[: text.rfind(b"\n") + 1]
    try:
        return [json.loads(line) for line in text.splitlines()], offset + len(text)
    except ValueError as error:
        raise Mistake(f"{log}: has a damaged line behind byte {offset}: {error}") from error


def follow(run: Path) -> Iterator[tuple[int, Numbers]]:
    """Yields the steps of a run, each once: a resumed run repeats what it does again bit by bit."""
    log, summary, offset, last = run / "run.jsonl", run / "summary.json", 0, 0
    while True:
        end = json.loads(summary.read_text())["steps"] if summary.exists() else None
        steps, offset = read_steps(log, offset)
        for step in steps:
            if step["step"] > last:
                last = step["step"]
                yield last, {name: value for name, value in step.items() if isinstance(value, int | float)}
        if last == end:  # otherwise the run has been resumed since
            return
        time.sleep(POLL_SECONDS)


def track(run: Path, to: str, textfile: Path | None) -> None:
    config = run / "config.toml"
    for path in (run / "run.jsonl", config):
        if not path.is_file():
            raise Mistake(f"{path}: no such file; expected the directory of a run of copus train")
    try:
        tracker: Tracker = TRACKERS[to](run, tomllib.loads(config.read_text()), textfile or run / "metrics.prom")
    except ImportError as error:
        raise Mistake(f"--to {to} needs the Python package {error.name} (pip install 'copus[{to}]')") from error
    try:
        for number, numbers in follow(run):
            tracker.step(number, numbers)
    finally:
        tracker.finish()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m copus.track", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--to", choices=list(TRACKERS), required=True)
    parser.add_argument("--textfile", type=Path, metavar="FILE", help="of prometheus; default: RUN/metrics.prom")
    arguments = parser.parse_args()
    try:
        track(arguments.run, arguments.to, arguments.textfile)
    except Mistake as error:
        parser.error(str(error))  # exit code 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
