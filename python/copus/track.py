"""Sends the steps of a run to an experiment tracker, during the run or afterwards.

    python -m copus.track runs/first --to wandb

The command follows run.jsonl until the run is complete. If the run has had no process for a minute, because it was
killed or stopped, the tracker shows the run as failed until it is resumed and tracked again. Ctrl-C ends the tracking
earlier. Every number of a step keeps its name from run.jsonl. The trackers' own variables choose destination and
account: WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME. For Prometheus, the newest step is
written to a file for the textfile collector of node_exporter (--textfile). The file is replaced as a whole.
"""

import argparse
import fcntl
import hashlib
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 60.0  # a run has no process while it is being restarted

Numbers = dict[str, float]


class Mistake(Exception):
    """A user's mistake."""


class Abandoned(Exception):
    """A run is not complete and has no process."""


class Tracker(Protocol):
    def step(self, number: int, numbers: Numbers) -> None: ...
    def finish(self, has_failed: bool) -> None: ...


class WandbTracker:
    """A run of W&B. Its id follows from the folder, so that interrupted tracking continues in the same run."""

    def __init__(self, run: Path, config: dict[str, Any], _: Path):
        import wandb

        identity = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
        self._run = wandb.init(id=identity, resume="allow", name=run.name, config=config)

    def step(self, number: int, numbers: Numbers) -> None:
        self._run.log(numbers, step=number)

    def finish(self, has_failed: bool) -> None:
        self._run.finish(exit_code=1 if has_failed else 0)


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

    def finish(self, has_failed: bool) -> None:
        self._mlflow.end_run("FAILED" if has_failed else "FINISHED")


class PrometheusTracker:
    """Gauges of the newest step, with the name of the run's folder."""

    def __init__(self, run: Path, _: dict[str, Any], textfile: Path):
        import prometheus_client

        self._client, self._run, self._textfile = prometheus_client, run.name, textfile

    def step(self, number: int, numbers: Numbers) -> None:
        registry = self._client.CollectorRegistry()
        for name, value in numbers.items():
            gauge = self._client.Gauge(f"copus_{name}", f"{name} of the newest step", ["run"], registry=registry)
            gauge.labels(self._run).set(value)
        self._client.write_to_textfile(str(self._textfile), registry)

    def finish(self, has_failed: bool) -> None:
        """Nothing to do: the last values stay."""


TRACKERS = {"wandb": WandbTracker, "mlflow": MlflowTracker, "prometheus": PrometheusTracker}
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny", "prometheus": "prometheus_client"}


class Log:
    """The whole lines of run.jsonl as they are written. A resumed run cuts the log and writes later steps again."""

    def __init__(self, path: Path):
        self._path, self._offset, self._last_line = path, 0, b""
        self.newest = 0  # the step of the last line

    def new_steps(self) -> list[dict[str, Any]]:
        """The steps since the last call, or from the log's start if it was cut. Empty if there is no log."""
        try:
            return self._read()
        except ValueError:  # the log may have been truncated while it was read
            time.sleep(POLL_SECONDS)
        try:
            return self._read()
        except ValueError as error:
            raise Mistake(f"{self._path}: has a damaged line behind byte {self._offset}: {error}") from error

    def _read(self) -> list[dict[str, Any]]:
        try:
            text = self._text_behind(self._offset - len(self._last_line))
        except FileNotFoundError:  # a run recreates its directory if it is deleted
            return []
        if not text.startswith(self._last_line):
            self._offset, self._last_line, self.newest = 0, b"", 0
            text = self._text_behind(0)
        lines = text[len(self._last_line) :].splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):  # being written
            lines.pop()
        steps = [json.loads(line) for line in lines]
        if lines:
            self._offset, self._last_line = self._offset + sum(map(len, lines)), lines[-1]
            self.newest = steps[-1]["step"]
        return steps

    def _text_behind(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read()


def is_locked(path: Path) -> bool | None:
    """Whether some process holds a lock on a file; None if the file system has no locks."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def has_writer(run: Path) -> bool | None:
    """Whether a process is training the run, as far as locks show."""
    locks = [is_locked(run / "checkpoints" / ".lock"), is_locked(run / "run.jsonl")]
    return True if True in locks else None if None in locks else False


def follow(run: Path) -> Iterator[tuple[int, Numbers]]:
    """Yields each step of a run once, although a resumed run repeats steps (bitwise). Raises Abandoned if the run has
    had no process for a while and is not complete."""
    log, summary, last, last_sign = Log(run / "run.jsonl"), run / "summary.json", 0, time.monotonic()
    while True:
        writer = has_writer(run)  # checked before reading: without a writer the log is complete
        end = json.loads(summary.read_text()) if summary.exists() else None
        steps = log.new_steps()
        for step in steps:
            if step["step"] > last:
                last = step["step"]
                yield last, {name: value for name, value in step.items() if isinstance(value, int | float)}
        is_at_end = end is not None and end["steps"] == log.newest  # otherwise the run has been resumed since
        if writer is None:
            writer = not is_at_end
        if is_at_end and end["ended"] == "done" and not writer:
            return
        if writer or steps:
            last_sign = time.monotonic()
        elif time.monotonic() - last_sign > PATIENCE_SECONDS:
            raise Abandoned(f"{run}: no process has been training it for {PATIENCE_SECONDS:.0f} s, and it is not done; "
                            f"tracked until step {last}. Call this again when it goes on")
        time.sleep(POLL_SECONDS)


def track(run: Path, to: str, textfile: Path | None) -> None:
    config = run / "config.toml"
    for path in (run / "run.jsonl", config):
        if not path.is_file():
            raise Mistake(f"{path}: no such file; expected the directory of a run of copus train")
    try:
        settings = tomllib.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:  # neither TOML nor UTF-8
        raise Mistake(f"{config}: is not valid TOML: {error}; expected the config.toml of a run") from error
    try:
        tracker: Tracker = TRACKERS[to](run, settings, textfile or run / "metrics.prom")
    except ImportError as error:
        package = PACKAGES[to]
        raise Mistake(f"--to {to} needs the Python package {package} ({error}): pip install {package}") from error
    has_failed = True  # also if the log or the tracker fails, and after Ctrl-C
    try:
        for number, numbers in follow(run):
            tracker.step(number, numbers)
        has_failed = False
    except Abandoned as error:
        print(error, file=sys.stderr)
    finally:
        tracker.finish(has_failed)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m copus.track", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a run of copus train")
    parser.add_argument("--to", choices=list(TRACKERS), required=True)
    parser.add_argument(
        "--textfile", type=Path, metavar="FILE", help="for --to prometheus: the file to write; default: RUN/metrics.prom"
    )
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
