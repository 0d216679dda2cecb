"""Reads our event files with the real tensorboard package: tensorboard_read_test.py PROGRAM_THAT_WRITES_THEM."""

import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"skipped: {sys.executable} has no tensorboard package ({error}); `make setup` installs it")
    sys.exit(SKIPPED)

import numpy

with tempfile.TemporaryDirectory() as directory:
    subprocess.run([sys.argv[1], directory], check=True)
    events = EventAccumulator(directory, size_guidance={"scalars": 0}).Reload()

assert sorted(events.Tags()["scalars"]) == ["held_out/loss", "train/loss"], events.Tags()
assert events.file_version == 2.0, events.file_version

expected = [(step, 1 / step, 1000 + step) for step in range(1, 7)]
expected += [(step, 100 / step, 2000 + step) for step in range(7, 13)]
expected += [(2**40, -0.5, 3000.25)]
found = [(event.step, event.value, event.wall_time) for event in events.Scalars("train/loss")]
assert found == [(step, float(numpy.float32(value)), time) for step, value, time in expected], found

# The record of step 10 was truncated; that of step 5 remains.
assert [event.step for event in events.Scalars("held_out/loss")] == [5], events.Scalars("held_out/loss")
print("tensorboard reads what was written, and forgets what came after the checkpoint")
