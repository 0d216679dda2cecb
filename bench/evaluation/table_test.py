"""Tests the summaries of table.py on made-up runs, some of which miss a target, and the ramps of law.py.

Usage: table_test.py [unittest options].
"""

import contextlib
import io
import json
import math
import pathlib
import tempfile
import unittest

import law
import table


def target(seconds: list, refusal: str | None = None) -> dict:
    mean = None if refusal else math.exp(sum(map(math.log, seconds)) / len(seconds))
    runs = [{"seed": seed, "seconds": time} for seed, time in enumerate(seconds, start=1)]
    return {"held_out_loss": 2.0, "refusal": refusal, "seconds": mean, "runs": runs}


class Statistics(unittest.TestCase):
    def test_QuantilesAreStudents(self):
        for degrees, known in ((1, 12.7062), (4, 2.7764), (11, 2.2010), (19, 2.0930)):
            self.assertAlmostEqual(table.student_quantile(degrees), known, 3)

    def test_SignedRanksAreExact(self):
        self.assertEqual(table.signed_rank_p([1, 2, 3, 4, 5, 6]), 2 / 64)
        # Sums of positive ranks of at least 14 of 15: all, and all but the smallest.
        self.assertEqual(table.signed_rank_p([-1, 2, 3, 4, 5]), 4 / 32)
        self.assertEqual(table.signed_rank_p([1, -1, 0]), 1)
        self.assertEqual(table.signed_rank_p([0, 0]), 1)
        # Equal sizes share their ranks: 1.5 + 3 and all of 6 are as extreme as what was found, of eight signs.
        self.assertEqual(table.signed_rank_p([1, -1, 2]), 2 * 3 / 8)

    def test_CensoredTimesHaveTheLargestRanks(self):
        self.assertEqual(table.signed_rank_p([math.inf, -1, -2]), table.signed_rank_p([9, -1, -2]))

    def test_HolmAdjustsInOrder(self):
        for found, expected in zip(table.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06]):
            self.assertAlmostEqual(found, expected)
        self.assertEqual(table.holm([0.9, 0.8]), [1, 1])
        self.assertEqual(table.holm([]), [])

    def test_MediansHaveTheIntervalOfTheSignTest(self):
        self.assertEqual(table.median_interval(list(range(12))), (5.5, 2, 9))  # 96.1 %
        self.assertEqual(table.median_interval([3, 1, 2]), (2, -math.inf, math.inf))
        self.assertEqual(table.median_interval([1, 2, 3, 4, 5, math.inf]), (3.5, 1, math.inf))


class Censoring(unittest.TestCase):
    def test_OnlyMissesAreCensored(self):
        self.assertTrue(table.is_censored(target([1, None], "seed 2 never reached it")))
        self.assertFalse(table.is_censored(target([1, None], "seed 2 failed")))
        self.assertFalse(table.is_censored(target([1, None, None], "seed 2 failed; seed 3 never reached it")))

    def test_SavingsCountMissesAsTheLengthOfTheRun(self):
        missed = {"targets": [target([50, None], "seed 2 never reached it")]}
        (time, censored), = table.seconds(missed, 200)
        self.assertAlmostEqual(time, 100)
        self.assertEqual(censored, 1)
        self.assertEqual(table.seconds(missed, None), [None])
        self.assertEqual(table.mean_and_peak([(80, 0)], [[(100, 1)], [(160, 0)]]), "+20.0%, +20.0%")
        self.assertEqual(table.mean_and_peak([(80, 1)], [[(100, 0)]]), "+20.0%, +20.0%; at most, runs missed: 1")
        self.assertEqual(table.mean_and_peak([None], [[(100, 0)]]), "none; 1 not known")

    def test_RatiosOfCensoredTimesAreMedians(self):
        other = target([100, 100, 100])
        missed = target([90, 110, None], "seed 3 never reached it")
        self.assertEqual(table.interval(missed, other), "median 1.100 (0.000 to inf); missed by 1 of 3")
        self.assertEqual(table.interval(other, missed), "median 0.909 (0.000 to inf)")
        self.assertEqual(table.interval(target([1, None, 1], "seed 2 failed"), other), "not known")
        self.assertTrue(table.interval(target([90, 110, 100]), other).startswith("0.997 ("))


class Primary(unittest.TestCase):
    def write_run(self, folder: pathlib.Path, evaluations: list) -> None:
        folder.mkdir(parents=True)
        records = [{"elapsed_seconds": time, "held_out_loss": loss} for time, loss in evaluations]
        (folder / "run.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        end = {"train_seconds": evaluations[-1][0], "held_out_loss": evaluations[-1][1]}
        (folder / "summary.json").write_text(json.dumps(end))

    def test_TimesToTheLossOfTheStaticRunAreComparedSeedBySeed(self):
        seeds = list(range(1, 8))
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            names = [{"name": "copus", "arm": "copus"}, {"name": "static", "arm": "static-32"},
                     {"name": "law", "arm": "law"}]
            (directory / "results.json").write_text(json.dumps({"seeds": seeds, "results": names}))
            for seed in seeds:
                self.write_run(directory / f"runs/static-32/seed-{seed}", [(10, 5), (50, None), (100, 2)])
                # From 3 at 60 s to 1 at 100 s: 2 at 80 s. The run with seed 7 never has the loss.
                end = (100, 2.5 if seed == 7 else 1)
                self.write_run(directory / f"runs/copus/seed-{seed}", [(10, 5), (60, 3), end])
                self.write_run(directory / f"runs/law/seed-{seed}", [(10, 5), (100, 2.1)])
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                times = table.times_to_loss_of(directory, "static")
                table.print_primary(json.loads(json.dumps(times)), "copus", "static", ["law"])
            with self.assertRaises(SystemExit):
                table.times_to_loss_of(directory, "static-32")
            with self.assertRaises(SystemExit):
                table.print_primary(times, "copus", "law", [])
        rows = printed.getvalue().splitlines()[2:]
        # Ranks are six times 3.5 and 7. Of 128 signs, 2 * 23 have a sum of at least 21 on one side.
        self.assertEqual(rows[0], "| copus / static, primary | 0.800 (0.800 to inf) | 1 and 0 of 7 | 0.3594 |")
        self.assertEqual(rows[1], "| copus / law, secondary, Holm | 0.000 (0.000 to 1.000) | 1 and 7 of 7 | 0.0312 |")


class Ramps(unittest.TestCase):
    def test_RampsFollowTheLawAndNeverShrink(self):
        self.assertAlmostEqual(law.critical_tokens(1e9) / 2048, 0.0471 * 1e9**0.462)
        # A step takes a second plus a hundredth for each sequence, so larger batches have a higher throughput.
        seconds = {batch: 1 + batch / 100 for batch in (8, 64, 128, 256, 512, 1024)}
        elapsed, schedule = law.ramp(seconds, 2048, 1e10)
        begins, batches = zip(*schedule)
        self.assertEqual(begins[0], 0)
        self.assertEqual(list(batches), sorted(set(batches)))
        self.assertGreater(len(batches), 1)
        for (begin, batch), (end, _) in zip(schedule, schedule[1:]):
            self.assertGreaterEqual(end - begin, 2 * batch)
        # Where the critical batch is smaller throughout, so are the batches.
        smaller = law.ramp(seconds, 2048, 1e10, at_end=100)[1]
        self.assertLess(smaller[-1][1], batches[-1])
        for only in seconds:
            self.assertLessEqual(elapsed, law.ramp({only: seconds[only]}, 2048, 1e10)[0] * 1.001)


if __name__ == "__main__":
    unittest.main()
