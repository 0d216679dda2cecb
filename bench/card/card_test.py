#!/usr/bin/env python3
"""Tests the logic of card.py without a GPU: what runs, what is skipped, what an interruption leaves, what the tables
say."""

import contextlib
import dataclasses
import io
import json
import math
import pathlib
import sys
import tarfile
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import card  # noqa: E402
import cases  # noqa: E402
import tables  # noqa: E402

CRITICAL_BATCH = 12
SEEDS = len(cases.SEEDS)

# Answers like the program. A branch ends with the loss that follows from CRITICAL_BATCH; slopes other than 1/2 lose. A
# run ends with a loss that depends on its arm and its rate.
PROGRAM = """#!{python} -SE
import json, math, pathlib, sys, time
here = pathlib.Path(sys.argv[0]).parent
word = lambda name: sys.argv[sys.argv.index(name) + 1]
if sys.argv[1] == "plan":
    layout = dict.fromkeys({layout}, 1)
    plans = [(int(batch), layout | {{"step_seconds": 1 if batch == "64" else 999}})
             for batch in word("--global-batch").split(",")]
    print(json.dumps({{"batches": [{{"global_batch": batch, "layouts": [plan]}} for batch, plan in plans]}}))
    sys.exit()
if sys.argv[1] == "gns":
    print(json.dumps({{"noise_scale": 6.0, "noise_scale_low": 5.0, "noise_scale_high": 7.0}}))
    sys.exit()
settings = dict(one.split("=", 1) for flag, one in zip(sys.argv, sys.argv[1:]) if flag == "--set")
name = word("--run-dir")
run = pathlib.Path(name)
run.mkdir(exist_ok=True)
batch = int(settings["train.global_batch"])
log = (run / "run.jsonl").open("a")
def step(number, loss, seconds=0.0):
    print(json.dumps({{"step": number, "consumed_tokens": 1000 * number, "consumed_samples": 10 * number,
                      "global_batch": batch, "held_out_loss": loss, "elapsed_seconds": seconds}}), file=log, flush=True)
if settings.get("train.max_steps"):
    for number in range(1, 100000):
        step(number, None)
        time.sleep(0.002)
if (here / "hangs").exists() and (here / "hangs").read_text() in name:
    time.sleep(60)
if (here / "fails").exists() and (here / "fails").read_text() in name:
    sys.exit(1)
if name.startswith("branch"):
    samples = int(name.split("-n")[1])
    worth = ({critical} + 2) / ({critical} + batch) * (1 if "-e0.5" in name or batch == 2 else 0.9)
    loss = 9 - math.log(samples * worth)
else:
    loss = 5 + (0 if "-r1-" in name else 0.2) + (0 if "copus" in name else 0.1)
step(1, None)
step(2, 9.0, 10.0)
if (here / "diverges").exists() and (here / "diverges").read_text() in name:
    sys.exit(1)
step(3, loss, 20.0)
(run / "config.toml").write_text("")
(run / "checkpoints" / "step-00000003").mkdir(parents=True, exist_ok=True)
(run / "summary.json").write_text(json.dumps({{"held_out_loss": loss, "relayouts": 1}}))
"""


class CardBench(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "copus"
        self.program.write_text(PROGRAM.format(python=sys.executable, layout=cases.law.LAYOUT,
                                               critical=CRITICAL_BATCH))
        self.program.chmod(0o755)
        self.out = self.folder / "out.jsonl"
        scale = dataclasses.replace(cases.CPU, branch_seeds=(1,), speed_seconds=0.02, startup_seconds=0.1)
        tokens = self.write_tokens("tokens.tar.xz", 4000)
        for name, value in {"CPU": scale, "TOKENS": tokens, "COPIES": (1, 2), "MARGIN": 0}.items():
            self.enterContext(unittest.mock.patch.object(card, name, value))
        self.scale = scale

    def write_tokens(self, name: str, count: int) -> pathlib.Path:
        path = self.folder / name
        with tarfile.open(path, "w:xz") as archive:
            for member in card.PAIRS:
                information = tarfile.TarInfo(member)
                information.size = 2 * count
                archive.addfile(information, io.BytesIO(bytes(2 * count)))
        return path

    def run_card(self, *arguments) -> str:
        sys.argv = ["card.py", "--program", str(self.program), "--out", str(self.out), "--dry-run", *arguments]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(card.main(), 0)
        return printed.getvalue()

    def rows(self, stage: str) -> list[dict]:
        return [row for row in card.read_rows([self.out]) if row["stage"] == stage]

    def test_runs_all_stages_then_nothing(self):
        text = self.run_card()
        self.assertEqual([len(self.rows(stage)) for stage in ("G0", "trunk", "G1", "G2")],
                         [4, 4, 4 * 17, 5 * 3 + 3 * SEEDS])
        branch = self.rows("G1")[-1]
        self.assertEqual(branch["reads"], [branch["point"], branch["point"] + branch["samples"]])
        self.assertEqual(branch["epochs"][1], round(branch["reads"][1] * self.scale.sequence_length / 4000, 2))
        self.assertIn("| static-8 | 1 | 5.1000 | chosen |", text)
        self.assertIn("| copus / static | 4 | 0 | -0.1000 (-0.1000 to -0.1000) | 0.988 | 0 and 0 |", text)
        self.assertIn("G1: 68 of 68 branches; G2: 27 of 27 runs known so far; failed: none", text)
        for line in text.splitlines():  # the fake's critical batch and noise scale
            if line.endswith("| 6 | 2.00 |"):
                self.assertIn(f"| 1 | {CRITICAL_BATCH} |", line)
        self.assertEqual(text.count("| 6 | 2.00 |"), 4)
        self.run_card()
        self.assertEqual(len(card.read_rows([self.out])), 4 + 4 + 68 + 27)

    def test_interrupted_runs_are_left_for_the_next_call(self):
        (self.folder / "hangs").write_text("-B16-")
        with unittest.mock.patch.object(card.Plan, "run_tasks", lambda *_: []):
            text = self.run_card("--seconds", "4")
            self.assertIn("-B16-e0-n32: interrupted", text)
            first = {row["case"] for row in self.rows("G1")}
            self.assertTrue(first)
            self.assertFalse(any("-B16-" in case for case in first))
            (self.folder / "hangs").unlink()
            earlier = self.out.rename(self.folder / "earlier.jsonl")
            self.run_card("--earlier", str(earlier))
        self.assertEqual(first & {row["case"] for row in self.rows("G1")}, set())
        self.assertEqual(len(first) + len(self.rows("G1")), 68)

    def test_a_failure_is_a_result_only_after_the_first_step(self):
        (self.folder / "fails").write_text("branch-s1-at-16-B16")
        (self.folder / "diverges").write_text("run-static-16-r2")
        text = self.run_card()
        self.assertEqual(len(self.rows("G1")), 68 - 3)
        self.assertIn("FAILED without a result: Broken", text)
        self.assertIn("failed: run-static-16-r2-s301", text)
        self.assertIn("| static-16 | 2 | failed |", text)

    def test_what_cannot_fit_into_a_call_is_named_and_not_begun(self):
        rows = [{"case": f"speed-{model}-x{copies}", "stage": "G0", "model": model, "copies": copies,
                 "tokens_per_second": 10 * copies} for model in ("85M", "30M") for copies in (1, 2)]
        with tempfile.TemporaryDirectory() as folder:
            bench = card.Bench(self.program, self.scale, pathlib.Path(folder), card.TOKENS, card.time.monotonic() + 9)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                card.run_tasks(bench, card.Plan(bench, 9), rows, self.out)
        self.assertIn("run-static-8-r0.5-s301 needs about 4915 s, more than --seconds", printed.getvalue())
        self.assertFalse(self.out.exists())

    def test_the_width_is_the_fastest_in_which_a_run_fits(self):
        rows = [{"stage": "G0", "model": "30M", "copies": copies, "tokens_per_second": speed}
                for copies, speed in ((1, 100), (2, 180), (4, 200))]
        plan = card.Plan(unittest.mock.Mock(scale=self.scale), 100)
        self.assertEqual(plan.width(rows, "30M", 1000)[0], 4)
        self.assertEqual(plan.width(rows, "30M", 8000)[0], 2)
        self.assertEqual(plan.width(rows, "30M", 80_000)[0], 1)

    def test_results_of_other_tokens_are_refused(self):
        self.run_card("--seconds", "2")
        with unittest.mock.patch.object(card, "TOKENS", self.write_tokens("others.tar.xz", 5000)):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as error:
                self.run_card()
        self.assertEqual(error.exception.code, 2)

    def test_grids_of_rates_grow_while_the_best_is_at_an_end(self):
        self.assertEqual(cases.rates_of({}), [0.5, 1, 2])
        self.assertEqual(cases.rates_of({0.5: 3.0, 1: 2.0, 2: 2.5}), [0.5, 1, 2])
        self.assertEqual(cases.rates_of({0.5: 3.0, 1: 2.0, 2: 1.5}), [0.5, 1, 2, 4])
        self.assertEqual(cases.rates_of({0.5: 1.0, 1: 2.0, 2: math.inf}), [0.5, 1, 2, 0.25])
        self.assertEqual(cases.rates_of({0.5: 5, 1: 4, 2: 3, 4: 2, 8: 1}), [0.5, 1, 2, 4, 8])

    def test_time_to_a_loss_is_censored_if_it_is_never_reached(self):
        row = {"evaluations": [[10, 4.0], [20, 3.0], [30, 3.5], [40, 2.5]]}
        self.assertEqual(tables.seconds_to(row, 3.5), 15)
        self.assertEqual(tables.seconds_to(row, 2.75), 37.5)
        self.assertIsNone(tables.seconds_to(row, 2.0))

    def test_a_loss_outside_of_the_ladder_has_no_worth(self):
        ladder = {10: 4.0, 40: 2.0}
        self.assertAlmostEqual(tables.samples_at(ladder, 3.0), 20)
        self.assertIsNone(tables.samples_at(ladder, 4.1))
        self.assertIsNone(tables.samples_at(ladder, 1.9))


if __name__ == "__main__":
    unittest.main()
