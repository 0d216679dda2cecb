#!/usr/bin/env python3
"""How long does a run of many steps take to resume, to end, and to be displayed, compared with a new run?

    bench/long_logs/measure.py build/copus [OTHER_PROGRAM ...] [--steps 1000000] [--max-time 30]

The steps are generated, not trained: a run of a few steps gets a log of `--steps` lines, and its checkpoint gets the
matching step number and valid checksums. With --adapting the run decides by Goodput, and decisions.jsonl is generated
as well: a decision after every 100 steps and a state after every 1,000. With --no-states decisions.jsonl has no states,
like the logs of early versions, so the resumed run repeats all steps up to the first difference. Each program makes a
run of its own and prints a row with

- the seconds from the start of the process to the first step, of a new run and of the resumed one,
- the seconds of a run that `--max-time` ends,
- the seconds from SIGTERM to the last checkpoint, and from there to the exit,
- the seconds of `copus watch --once` and of `copus report`,
- the bytes of the log and of the page.
"""

import argparse
import ctypes
import ctypes.util
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
train = "corpus.txt"
mask_across_documents = false
[train]
sequence_length = 32
global_batch = 8
micro_batch = 4
max_steps = 1_000_000_000
threads = 1
precision = "fp32"
[evaluate]
interval = 1000
[log]
interval = 1
tensorboard = false
"""
ADAPTING = """
[adapt]
policy = "copus"
interval_samples = 128
[cluster]
config = "laptop-two-nodes"
"""
STATE_STEPS = 1000  # between two states in decisions.jsonl
COLUMNS = ("new run, first step", "resumed, first step", "with --max-time", "SIGTERM to checkpoint", "to exit", "watch",
           "report", "log, MB", "page, MB")


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def checksum(content):
    """XXH3-128, as in checkpoints, by the library that the program is built with."""
    library = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    library.XXH3_128bits.restype = Hash
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    digest = library.XXH3_128bits(content, len(content))
    return f"{digest.high:016x}{digest.low:016x}"


def moved_on(record, steps):
    """Turns a record of step 2 into one of a later step."""
    factor = steps / record["step"]
    counts = {name: int(record[name] * factor) for name in ("consumed_samples", "consumed_tokens")}
    return record | counts | {"step": steps, "elapsed_seconds": record["elapsed_seconds"] * factor}


def make_long(run, steps):
    """Gives a short run a log of `steps` lines, and sets its checkpoint to that position."""
    record = json.loads((run / "run.jsonl").read_text().splitlines()[1])
    with open(run / "run.jsonl", "w", encoding="ascii") as log:
        for step in range(1, steps + 1):
            loss = 5.0 if step % 1000 == 0 else None
            log.write(json.dumps(moved_on(record, step) | {"held_out_loss": loss}, separators=(",", ":")) + "\n")
    checkpoint = min((run / "checkpoints").glob("step-*"))
    checkpoint = checkpoint.rename(checkpoint.with_name(f"step-{steps:08}"))
    state = moved_on(json.loads((checkpoint / "training_state.json").read_text()), steps)
    text = json.dumps(state | {"optimizer_steps": steps, "observed_samples": state["consumed_samples"]}).encode()
    (checkpoint / "training_state.json").write_bytes(text)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["xxh3_128"]
    manifest["step"] = steps
    manifest["files"]["training_state.json"] = {"bytes": len(text), "xxh3_128": checksum(text)}
    compact = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"xxh3_128": checksum(compact)}))


def make_long_decisions(run, steps, has_states):
    """Gives the run a decisions.jsonl of `steps` steps, with nothing between its last state and its end."""
    log = run / "decisions.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    decision = next(event for event in events if event["event"] == "decision" and not event["moves"])
    state = next(event for event in events if event["event"] == "state")
    with open(log, "w", encoding="ascii") as file:
        file.write(json.dumps(events[0], separators=(",", ":")) + "\n")
        for step in range(100, steps + 1, 100):
            file.write(json.dumps(decision | {"step": step}, separators=(",", ":")) + "\n")
            if has_states and step % STATE_STEPS == 0:
                file.write(json.dumps(state | {"step": step}, separators=(",", ":")) + "\n")


class Process:
    """A training process, and the times at which its lines came."""

    def __init__(self, folder, *command):
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)

    def seconds_to(self, beginning):
        for line in self.process.stdout:
            if line.startswith(beginning):
                return time.monotonic() - self.began
        raise SystemExit(f"there was no line that begins {beginning!r}")

    def seconds_to_end(self):
        self.process.communicate()
        return time.monotonic() - self.began


def seconds_of(folder, *command):
    began = time.monotonic()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def seconds_to_checkpoint(run, process):
    """From SIGTERM until there is a checkpoint of a later step than before."""
    def newest():
        return max(run.glob("checkpoints/step-*/manifest.json"), default=None)

    before, began = newest(), time.monotonic()
    process.send_signal(signal.SIGTERM)
    while newest() == before and process.poll() is None:
        time.sleep(0.005)
    return time.monotonic() - began


def measure(program, folder, steps, max_time, adapting, has_states):
    (folder / "run.toml").write_text(RUN + (ADAPTING if adapting else ""))
    (folder / "corpus.txt").write_text("the sea and the sky and the stars are far away from here\n" * 2000)
    new = Process(folder, program, "train", "run.toml", "--run-dir", "new")
    row = [new.seconds_to("step ")]
    new.process.terminate()
    new.seconds_to_end()
    limits = [f"train.max_steps={STATE_STEPS + 2}", f"checkpoint.interval={STATE_STEPS}"] if adapting else ["train.max_steps=2"]
    subprocess.run([program, "train", "run.toml", "--run-dir", "r", *(part for limit in limits for part in ("--set", limit))],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    run = folder / "r"
    make_long(run, steps)
    if adapting:
        make_long_decisions(run, steps, has_states)
    resume = [program, "train", "--resume", "--run-dir", "r", "--set", "train.max_steps=1000000000"]
    resumed = Process(folder, *resume)
    row.append(resumed.seconds_to("step "))
    of_checkpoint = seconds_to_checkpoint(run, resumed.process)
    ended = time.monotonic()
    resumed.seconds_to_end()
    to_exit = time.monotonic() - ended
    limited = Process(folder, *resume, "--max-time", f"{max_time}s")
    row += [limited.seconds_to_end(), of_checkpoint, to_exit]
    row += [seconds_of(folder, program, "watch", "r", "--once"), seconds_of(folder, program, "report", "r")]
    return row + [(run / name).stat().st_size / 1e6 for name in ("run.jsonl", "report.html")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", nargs="+", help="the programs to measure, such as build/copus")
    parser.add_argument("--steps", type=int, default=1_000_000, help="lines of the log")
    parser.add_argument("--max-time", type=int, default=30, help="seconds of the run that a time limit ends")
    parser.add_argument("--folder", help="where the runs are made: 1 GB for each program (default: with other temporary files)")
    parser.add_argument("--adapting", action="store_true", help="of a run that decides by Goodput")
    parser.add_argument("--no-states", action="store_true", help="leave the states out of its log of decisions")
    options = parser.parse_args()
    print(" | ".join(("program", *COLUMNS)))
    for program in options.programs:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="copus-long-log-", dir=options.folder))
        try:
            row = measure(str(pathlib.Path(program).resolve()), folder, options.steps, options.max_time, options.adapting,
                          not options.no_states)
            print(" | ".join((program, *(f"{value:.2f}" for value in row))), flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
