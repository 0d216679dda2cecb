"""Tests the death of a rank while a job moves into another configuration. Ranks of a run that switches every few steps
are killed and stopped in every phase of a switch. Without healing, the job must end at once and name the rank and its
place. The run is then resumed from its last checkpoint, and its losses must equal those of an undisturbed run bitwise.

Usage: switch_kill_test.py PATH_TO_COPUS [unittest options]. With COPUS_KILL_ROUNDS=100 it makes 100 rounds (7 without).
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from program_test_support import TIMEOUT, WITH_TORCH, ProgramTest
from rank_processes import Places, is_gone, ranks_of

ROUNDS = int(os.environ.get("COPUS_KILL_ROUNDS", "7"))
GONE_WITHIN = 5  # seconds from a failure to the end of all processes, as docs/design.md promises
RANKS = 4
STEPS = 40
SWITCH_EVERY = 3  # steps; a switch is announced two steps before

# A model with so many parameters and so few tokens that moving the state takes a large part of the run.
MODEL = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 192
intermediate_size = 512
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
[parallel]
tensor_parallel = 2
pipeline_parallel = 2
[cluster]
ranks_per_node = 4
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
device = { matmul_teraflops = 0.1 }
[adapt]
policy = "script"
file = "script.jsonl"
zero_stages = [0, 1]
max_tensor_parallel = 4
"""
# Places of a rank, as the message about its death names them: "switching after step 12: agreeing". Successive rounds
# wait for a rank to come to each of them.
PHASES = ["preparing", "agreeing", "moving the state", "building the model", "verifying"]
ANYWHERE = "at a random moment"


def layouts():
    """Yields layouts of four ranks with their batches."""
    for d, t, p in [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4), (1, 4, 1)]:
        for zero in [0, 1] if d > 1 else [0]:
            for batch in [8, 16]:
                yield f"d={d},t={t},p={p},B={batch},b=2,zero={zero}"


def script(seed):
    """Makes a script with a switch every few steps, nearly all of them re-layouts."""
    chance = random.Random(seed)
    lines, last = [], None
    for step in range(SWITCH_EVERY, STEPS, SWITCH_EVERY):
        last = chance.choice([layout for layout in layouts() if layout != last])
        lines.append(json.dumps({"after_step": step, "configuration": last}))
    return "\n".join(lines) + "\n"


@unittest.skipUnless(WITH_TORCH, "training needs libtorch")
class KilledWhileSwitching(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write("script.jsonl", script(seed=1))
        self.write_run("run.toml", steps=STEPS, checkpoint_interval=10, model=MODEL)
        self.settings = ["--set", "train.micro_batch=2", "--set", "train.sequence_length=16",
                         "--set", "evaluate.interval=0"]

    def start_run(self, name, verify):
        """Starts a run. With `verify`, most of a switch is spent verifying, so the other phases are hard to hit."""
        return self.start("train", "run.toml", "--run-dir", name, *self.settings, "--set",
                          f"adapt.verify={str(verify).lower()}", "--set", "heal.enabled=false")

    def ranks_of(self, process):
        ranks = ranks_of(process.pid, RANKS, lambda: process.poll() is None)
        if ranks is None:
            self.fail(f"no {RANKS} ranks: {process.communicate()}")
        return ranks

    def wait_for_phase(self, phase, name, process, pid, chance):
        """Waits until a rank has just entered the phase, some switches into the run."""
        places, seen = Places(pid), set()
        first = chance.randrange(SWITCH_EVERY, STEPS * 2 // 3)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            now = places.switching()
            if any(int(step) >= first and what.decode().startswith(phase) for step, what in now - seen):
                break
            seen |= now
        places.close()

    def strike(self, round_number, target, chance, name):
        process = self.start_run(name, verify=target == "verifying")
        ranks = self.ranks_of(process)
        self.wait_for_steps(name, 1, process)
        victim = chance.randrange(RANKS)
        kind = chance.choice([signal.SIGKILL, signal.SIGSTOP])
        if target == ANYWHERE:
            time.sleep(chance.uniform(0, 1))
        else:
            self.wait_for_phase(target, name, process, ranks[chance.randrange(RANKS)], chance)
        struck = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # the job may have ended before the kill
            os.kill(ranks[victim], kind)
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail("the job does not end")
        seconds = time.monotonic() - struck
        if process.returncode == 0:
            return "after the end", seconds
        self.assertEqual(process.returncode, 1, output + errors)
        self.assertTrue(all(is_gone(pid) for pid in ranks.values()))
        self.assertLess(seconds, GONE_WITHIN)
        messages = [line for line in errors.splitlines() if "copus: error:" in line]
        self.assertEqual(len(messages), 1, errors)
        cause = "killed by signal 9 (Killed)" if kind == signal.SIGKILL else "stopped (SIGSTOP)"
        named = re.match(rf"copus: error: rank {victim} \(pid {ranks[victim]}\) failed at (.*): {re.escape(cause)}",
                         messages[0])
        self.assertIsNotNone(named, messages[0])
        place = named.group(1)
        phase = re.match(r"switching after step \d+: ([a-z ]+)", place)
        return phase.group(1).strip() if phase else "between switches", seconds

    def test_a_rank_killed_in_any_phase_is_named_and_the_run_goes_on_exactly(self):
        self.assert_done("train", "run.toml", "--run-dir", "expected", *self.settings)
        expected = self.losses("expected")
        chance, tally, slowest = random.Random(2), collections.Counter(), 0
        targets = [*PHASES, ANYWHERE]
        for round_number in range(ROUNDS):
            target, name = targets[round_number % len(targets)], f"run{round_number}"
            with self.subTest(round=round_number, target=target):
                phase, seconds = self.strike(round_number, target, chance, name)
                tally[phase] += 1
                slowest = max(slowest, seconds)
                self.assert_done("train", "--resume", "--run-dir", name)
                self.assertEqual(self.losses(name), expected)
                print(f"round {round_number}: aimed at {target}, struck {phase}, gone after {seconds:.2f} s", flush=True)
        counts = ", ".join(f"{phase} {count}" for phase, count in tally.most_common())
        print(f"{ROUNDS} rounds; the slowest was gone after {slowest:.2f} s; struck: {counts}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
