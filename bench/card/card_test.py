#!/usr/bin/env python3
"""Tests the logic of card.py without a GPU: what runs, what is skipped, what an interruption leaves, what the tables
say."""

import contextlib
import dataclasses
import hashlib
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
def told(what):
    return (here / what).exists() and (here / what).read_text() in name
if told("hangs"):
    time.sleep(600)
if name.startswith("branch"):
    samples = int(name.split("-n")[1])
    worth = ({critical} + 2) / ({critical} + batch) * (1 if "-e0.5" in name or batch == 2 else 0.9)
    loss = 9 - math.log(samples * worth)
else:
    loss = 5 + (0 if "-r1-" in name else 0.2) + (0 if "copus" in name else 0.1)
step(1, None)
step(2, 9.0, 10.0)
if told("diverges"):
    sys.exit(print("error: training has diverged: the last 10 steps had no finite loss") or 2)
if told("crashes"):
    sys.exit(print("step 2" + chr(10) + "CUDA out of memory") or 1)
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
        self.outs: list[pathlib.Path] = []
        scale = dataclasses.replace(cases.CPU, branch_seeds=(1,), speed_seconds=0.02, startup_seconds=0.1)
        tokens = self.write_tokens("tokens.tar.xz", 4000)
        self.data = hashlib.sha256(bytes(2 * 4000)).hexdigest()[:12]
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
        """Runs a call, with the rows of the calls before it."""
        earlier = [str(path) for path in self.outs]
        self.outs.append(self.folder / f"rows-{len(self.outs)}.jsonl")
        sys.argv = ["card.py", "--program", str(self.program), "--out", str(self.outs[-1]), "--dry-run",
                    *(["--earlier", *earlier] if earlier else []), *arguments]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(card.main(), 0)
        return printed.getvalue()

    def leave_out(self, tasks: str) -> None:
        self.enterContext(unittest.mock.patch.object(card.Plan, tasks, lambda *_: []))

    def refusal(self, *arguments) -> str:
        sys.argv = ["card.py", "--program", str(self.program), "--dry-run", *map(str, arguments)]
        with contextlib.redirect_stderr(io.StringIO()) as printed, self.assertRaises(SystemExit) as error:
            card.main()
        self.assertEqual(error.exception.code, 2)
        return printed.getvalue()

    def write_rows(self, rows: list[dict]) -> pathlib.Path:
        """Writes the rows of an earlier call."""
        common = {"share": 1.0, "wall_seconds": 1.0, "call": "1", "data": self.data, "device": "cpu", "program": "p"}
        path = self.folder / f"rows-{len(self.outs)}.jsonl"
        path.write_text("".join(json.dumps(common | row) + "\n" for row in rows))
        self.outs.append(path)
        return path

    def rows(self, stage: str) -> list[dict]:
        return [row for row in card.read_rows(self.outs) if row["stage"] == stage]

    def bench(self, seconds: float) -> card.Bench:
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        return card.Bench(self.program, self.scale, folder, card.TOKENS, card.time.monotonic() + seconds)

    def test_runs_all_stages_then_nothing(self):
        text = self.run_card()
        self.assertEqual([len(self.rows(stage)) for stage in ("G0", "trunk", "G1", "G2")],
                         [4, 4, 4 * 17, 5 * 3 + 3 * SEEDS])
        branch = self.rows("G1")[-1]
        self.assertEqual(branch["reads"], [branch["point"], branch["point"] + branch["samples"]])
        self.assertEqual(branch["epochs"][1], round(branch["reads"][1] * self.scale.sequence_length / 4000, 2))
        self.assertIn("| static-8 | 1 | 5.1000 | chosen |", text)
        self.assertIn("| copus / static | 4 of 4 | 0 and 0 | -0.1000 (-0.1000 to -0.1000) | 0.988 | 0 and 0 |", text)
        self.assertIn("Primary comparison: copus wins.", text)
        self.assertIn("G1: 68 of 68 branches; G2: 27 of 27 runs known so far", text)
        self.assertIn("diverged: none\nfailed, no result: none\ninterrupted, no result: none", text)
        # The fake's critical batch and noise scale.
        self.assertEqual(text.count(f"| {CRITICAL_BATCH} | {CRITICAL_BATCH} | 6 | 2.00 |"), 4)
        self.run_card()
        self.assertEqual(self.outs[1].read_text(), "")

    def test_interrupted_runs_are_left_for_the_next_call(self):
        call_program = card.Bench.call_program

        def interrupted(bench, command):
            if any("-B16-" in word for word in command):
                raise card.OutOfTime
            return call_program(bench, command)

        self.leave_out("run_tasks")
        with unittest.mock.patch.object(card.Bench, "call_program", interrupted):
            text = self.run_card()
        self.assertRegex(text, r"-B16-e0-n32: .* interrupted")
        self.assertRegex(text, "interrupted, no result: .*-B16-")
        self.assertEqual([len(self.rows(stage)) for stage in ("G1", "interrupted")], [68 - 4 * 3, 4 * 3])
        self.assertIn("interrupted, no result: none", self.run_card())
        self.assertEqual(len(self.rows("G1")), 68)
        self.assertEqual(self.outs[1].read_text().count('"G1"'), 4 * 3)

    def test_the_end_of_a_call_kills_what_runs(self):
        (self.folder / "hangs").write_text("branch")
        bench = self.bench(0)
        with self.assertRaises(card.OutOfTime):
            bench.call_program(bench.command("branch", {"train.global_batch": 2}))

    def test_a_divergence_is_a_result(self):
        self.leave_out("branch_tasks")
        (self.folder / "diverges").write_text("run-static-16-r2")
        text = self.run_card()
        self.assertIn("diverged: run-static-16-r2-s401", text)
        self.assertIn("| static-16 | 2 | diverged |", text)
        self.assertIn("G2: 27 of 27 runs", text)

    def test_a_failure_is_tried_again_once_and_is_no_result(self):
        self.leave_out("branch_tasks")
        (self.folder / "crashes").write_text("run-static-16-r2-")
        for call, text in enumerate((self.run_card(), self.run_card(), self.run_card())):
            self.assertEqual("failed without a result: " in text, call < 2)
            self.assertEqual("not begun again after 2 failures" in text, call > 0)
            self.assertIn("failed, no result: run-static-16-r2-s401-n1536 (exit code 1: CUDA out of memory)", text)
            self.assertIn("not before all screening runs have a result", text)
        self.assertEqual([row["output"] for row in self.rows("failed")], [["step 2", "CUDA out of memory"]] * 2)
        self.assertNotIn(2, cases.screened(self.scale, card.read_rows(self.outs), "static-16"))

    def speed_rows(self, speed: int = 1000) -> list[dict]:
        return [{"case": f"speed-{model}-x{copies}", "kind": "", "stage": "G0", "model": model, "copies": copies,
                 "tokens_per_second": speed * copies, "each": []} for model in ("85M", "30M") for copies in (1, 2)]

    def test_what_cannot_fit_into_a_call_is_named_and_not_begun(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            bench = self.bench(9)
            card.run_tasks(bench, card.Plan(bench, 9), self.speed_rows(10), self.folder / "none.jsonl")
        self.assertIn("run-static-8-r0.5-s401-n1536 needs about 5898 s, more than --seconds", printed.getvalue())
        self.assertFalse((self.folder / "none.jsonl").exists())

    def test_what_a_call_interrupted_is_not_begun_in_a_call_of_the_same_length(self):
        kind = "run-static-8-n1536"
        rows = self.speed_rows() + [{"case": "", "kind": kind, "stage": "interrupted", "share": share,
                                     "wall_seconds": 95} for share in (0.5, 1.0)]
        plan = card.Plan(unittest.mock.Mock(scale=self.scale), 100)
        self.assertEqual(plan.width(rows, "30M", kind, 10, 100), (1, 1.2 * 95))
        self.assertEqual(plan.width(rows, "30M", "run-static-16-n1536", 10, 100)[0], 2)
        rows.append({"case": "", "kind": kind, "stage": "G2", "share": 0.5, "wall_seconds": 50})
        del rows[-3]  # the interrupted run that shared the card
        self.assertEqual(plan.width(rows, "30M", kind, 10, 100), (2, 50))

    def test_a_branch_that_does_not_fit_after_its_trunk_is_named_and_the_others_train(self):
        branch = cases.branches(self.scale, 1, 16)[-1]
        rows = self.speed_rows() + [{"case": branch["case"], "kind": f"branch-B{branch['batch']}-n{branch['samples']}",
                                     "stage": "interrupted", "share": share, "wall_seconds": 83} for share in (0.5, 1)]
        plan = card.Plan(self.bench(100), 100)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            names = [task.name for task in plan.branch_tasks(rows, set(), 1)]
        self.assertEqual(names, ["trunk-s1-at-16"])
        self.assertIn(f"{branch['case']} needs about 100 s, more than a call has after the trunk", printed.getvalue())

    def test_the_width_is_the_fastest_in_which_a_run_fits(self):
        rows = [{"stage": "G0", "kind": "speed", "model": "30M", "copies": copies, "tokens_per_second": speed}
                for copies, speed in ((1, 100), (2, 180), (4, 200))]
        plan = card.Plan(unittest.mock.Mock(scale=self.scale), 100)
        self.assertEqual(plan.width(rows, "30M", "", 1000, 100)[0], 4)
        self.assertEqual(plan.width(rows, "30M", "", 6000, 100)[0], 2)
        self.assertEqual(plan.width(rows, "30M", "", 80_000, 100)[0], 1)

    def test_results_of_other_tokens_are_refused(self):
        rows = self.write_rows([self.speed_rows()[0] | {"data": "others"}])
        self.assertIn("other tokens", self.refusal("--out", self.folder / "new.jsonl", "--earlier", rows))

    def test_files_are_new_named_once_and_in_folders_that_exist(self):
        rows = self.write_rows([])
        self.assertIn("File exists", self.refusal("--out", rows))
        self.assertIn("No such file", self.refusal("--out", self.folder / "none" / "rows.jsonl"))
        self.assertIn("once", self.refusal("--report", rows, self.folder / "." / rows.name))

    def test_of_repeated_rows_the_first_counts(self):
        trunk = {"stage": "trunk", "case": "trunk", "loss": 1}
        branch = {"stage": "G1", "case": "branch", "loss": 1}
        failure = {"stage": "failed", "case": "run"}
        path = self.write_rows([trunk, branch, failure, trunk | {"call": "2", "loss": 2}])
        again = self.write_rows([trunk, branch | {"call": "2", "loss": 2}, failure, failure | {"call": "2"}])
        with again.open("a") as file:
            file.write('{"stage": "G1", "ca')
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            rows = card.read_rows([path, again, self.folder / "none.jsonl"])
        self.assertEqual([(row["case"], row["call"]) for row in rows],
                         [("trunk", "1"), ("branch", "1"), ("run", "1"), ("trunk", "2"), ("run", "2")])
        self.assertEqual(rows[1]["loss"], 1)
        self.assertIn("rows-1.jsonl: the last line is incomplete", printed.getvalue())
        self.assertIn("none.jsonl: its rows are not used", printed.getvalue())

    def test_a_trunk_that_does_not_repeat_gets_no_branches(self):
        self.write_rows([*self.speed_rows(), {"case": "trunk-s1-at-16", "stage": "trunk", "loss": 3.0, "seed": 1,
                                              "point": 16, "noise_scale": 6.0, "noise_scale_low": 5.0,
                                              "noise_scale_high": 7.0, "epochs": [0, 1], "kind": "trunk"}])
        self.leave_out("run_tasks")
        text = self.run_card()
        self.assertEqual([len(self.rows(stage)) for stage in ("trunk", "G1")], [2, 0])
        self.assertIn("trunk-s1-at-16 has the loss 5.3 in call", text)
        self.assertIn("(program p)", text)

    def test_runs_of_another_length_are_other_runs(self):
        run = cases.run_case(self.scale, "copus", 1, cases.SCREENING_SEED)
        rows = [{"stage": "G2", **run, "loss": 3.0}]
        self.assertEqual(cases.screened(self.scale, rows, "copus"), {1: 3.0})
        shorter = dataclasses.replace(self.scale, samples_divisor=128)
        self.assertEqual(cases.screened(shorter, rows, "copus"), {})
        self.assertNotEqual(cases.run_case(shorter, "copus", 1, cases.SCREENING_SEED)["case"], run["case"])

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

    def test_a_loss_outside_of_the_ladder_is_a_bound(self):
        def worth(loss: float | None) -> tables.Estimate:
            return tables.worth_of({10: 4.0, 40: 2.0}, {"samples": 20, "loss": loss})

        self.assertEqual(worth(3.0).text(2), "1.00")
        self.assertEqual([worth(loss).text(2) for loss in (4.1, None, 1.9)],
                         ["at most 0.50", "at most 0.50", "at least 2.00"])
        self.assertEqual(tables.mean_of([worth(4.1), worth(3.0)]).text(2), "at most 0.71")
        self.assertEqual(tables.mean_of([worth(4.1), worth(1.9)]).text(2), "unknown")

    def test_the_critical_batch_inherits_bounds(self):
        def text(small: tables.Estimate, large: tables.Estimate) -> str:
            return tables.critical_batch(8, {4: small, 32: large}).text(0)

        small, large = tables.Estimate(20 / 16), tables.Estimate(20 / 44)
        self.assertEqual(text(small, large), "12")
        self.assertEqual(text(small, dataclasses.replace(large, low=1)), "at most 12")
        self.assertEqual(text(dataclasses.replace(small, low=1), large), "at least 12")

    def test_a_run_that_diverges_loses_its_pair(self):
        infinite, not_a_number = math.inf, math.nan
        self.assertIn("copus wins", tables.verdict("copus", [-0.1, -0.2, -0.1, -0.2]))
        self.assertIn("is not inferior", tables.verdict("copus", [0.001, -0.001, 0.002, 0.001]))
        self.assertIn("is not shown", tables.verdict("copus", [0.1, -0.2, 0.1, 0.2]))
        self.assertIn("no verdict before all 4 seeds", tables.verdict("copus", [-0.1, -0.2, -0.1]))
        for diverged in (infinite, -infinite, not_a_number):
            self.assertIn("no interval", tables.verdict("copus", [-0.1, -0.2, -0.1, diverged]))

    def test_the_comparison_names_pairs_that_diverged(self):
        self.leave_out("branch_tasks")
        (self.folder / "diverges").write_text("run-copus-r1-s413")
        text = self.run_card()
        self.assertIn("| copus / static | 3 of 4 | 1 and 0 |  |  |  |", text)
        self.assertIn("copus is not shown to win or to be not inferior: a run diverged", text)


if __name__ == "__main__":
    unittest.main()
