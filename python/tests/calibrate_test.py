"""A calibration finds the c that made the losses, goes on where it was interrupted, and refuses files of others."""

import math
import pathlib
import random
import tempfile
import unittest

from copus.integrations.calibrate import Branch, calibrate, plan_branches, samples_per_repetition

REFERENCE, PHI = 8, 30.0


def efficiency(batch: float, critical_batch: float) -> float:
    return (critical_batch + REFERENCE) / (critical_batch + batch)


class Trainer:
    """A trainer whose losses follow from the efficiency of batches alone: a sample of the ladder is worth a sample."""

    def __init__(self, c: float, noise: float = 0.0, fails_after: int | None = None):
        self.c, self.noise, self.fails_after = c, noise, fails_after
        self.random = random.Random(1)
        self.calls: list[tuple[int, float, int, int]] = []

    def branch(self, batch: int, learning_rate_factor: float, samples: int, repetition: int) -> float:
        if self.fails_after is not None and len(self.calls) == self.fails_after:
            raise KeyboardInterrupt
        self.calls.append((batch, learning_rate_factor, samples, repetition))
        worth = efficiency(batch, self.c * PHI)
        if batch != REFERENCE:
            # The square root of the batch is the best rate here, and a lower one loses a tenth for each quarter.
            exponent = math.log(learning_rate_factor) / math.log(batch / REFERENCE)
            worth *= math.exp(self.random.gauss(0, self.noise)) * 0.9 ** ((0.5 - exponent) * 4)
        return 4 - 0.3 * math.log(samples * worth)


class Calibrates(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "branches.jsonl"

    def calibrate(self, trainer: Trainer, **options):
        options = {"reference_batch": REFERENCE, "noise_scale": PHI, "consumed_samples": 4000, "file": self.file,
                   "report": lambda text: None} | options
        return calibrate(trainer.branch, **options)

    def test_finds_the_c_that_made_the_losses(self):
        for c in (0.5, 2.0, 5.0):
            self.file.unlink(missing_ok=True)
            found = self.calibrate(Trainer(c))
            self.assertAlmostEqual(found.calibration.value / c, 1, delta=0.02)
            self.assertAlmostEqual(found.free_alpha.value, 0, delta=0.03)
            self.assertEqual(found.rate_exponent.value, 0.5)
            self.assertEqual((found.branches, found.outside), (8 * (5 + 3 + 6), 0))

    def test_the_interval_of_noisy_branches_holds_it(self):
        found = self.calibrate(Trainer(2.0, noise=0.05))
        self.assertLess(found.calibration.low, 2.0)
        self.assertGreater(found.calibration.high, 2.0)
        self.assertLess(found.calibration.high / found.calibration.low, 1.5)

    def test_what_the_updates_bound_is_not_laid_to_the_noise_scale(self):
        # Of a critical batch of 2 phi, where the updates alone would allow 4 phi, the noise scale has c = 4.
        found = self.calibrate(Trainer(2.0), updates=25, consumed_samples=int(25 * 4 * PHI))
        self.assertAlmostEqual(found.calibration.value / 4, 1, delta=0.04)

    def test_goes_on_where_it_was_interrupted(self):
        whole = self.calibrate(Trainer(2.0))
        uninterrupted = self.file.read_text()
        self.file.unlink()
        interrupted = Trainer(2.0, fails_after=20)
        with self.assertRaises(KeyboardInterrupt):
            self.calibrate(interrupted)
        with self.file.open("a") as lines:
            lines.write('{"batch": 16, "rate_ex')  # as kill -9 may leave it
        rest = Trainer(2.0)
        self.assertEqual(self.calibrate(rest), whole)
        self.assertEqual(len(interrupted.calls) + len(rest.calls), whole.branches)
        self.assertFalse(set(interrupted.calls) & set(rest.calls))
        self.assertEqual(self.file.read_text(), uninterrupted)

    def test_runs_what_an_interval_needs_and_no_more_where_time_is_short(self):
        trainer = Trainer(2.0)
        found = self.calibrate(trainer, seconds=0)
        self.assertEqual((len(trainer.calls), found.branches), (16, 16))
        self.assertIsNone(found.rate_exponent)
        self.assertAlmostEqual(found.calibration.value / 2, 1, delta=0.02)

    def test_a_branch_that_diverges_is_outside(self):
        class Diverging(Trainer):
            def branch(self, batch, learning_rate_factor, samples, repetition):
                loss = super().branch(batch, learning_rate_factor, samples, repetition)
                return math.inf if batch == 64 else loss

        found = self.calibrate(Diverging(2.0), seconds=0)
        self.assertEqual(found.outside, 2)
        self.assertIn('"loss": null', self.file.read_text())
        self.assertEqual(self.calibrate(Diverging(2.0), seconds=0), found)  # also when they are read again

    def test_nothing_to_fit_is_said(self):
        with self.assertRaisesRegex(ValueError, "nothing can be fitted"):
            calibrate(lambda batch, factor, samples, repetition: math.nan, reference_batch=8, noise_scale=30,
                      consumed_samples=0, file=self.file, seconds=0, report=lambda text: None)

    def test_a_file_of_another_calibration_is_refused(self):
        self.calibrate(Trainer(2.0), seconds=0)
        with self.assertRaisesRegex(ValueError, "another calibration"):
            self.calibrate(Trainer(2.0), reference_batch=4)
        for mistake in (b"[]\n", b'{"results": 1}', b"\xff\xfe\n", b"a\nb"):
            self.file.write_bytes(mistake)
            with self.assertRaisesRegex(ValueError, "no branch"):
                self.calibrate(Trainer(2.0))
            self.assertEqual(self.file.read_bytes(), mistake, "unchanged")

    def test_impossible_arguments_are_refused(self):
        for options in ({"reference_batch": 0}, {"noise_scale": 0.0}, {"noise_scale": math.nan}, {"repetitions": 1}):
            with self.assertRaises(ValueError):
                self.calibrate(Trainer(2.0), **options)


class Plan(unittest.TestCase):
    def test_no_branch_has_fewer_than_32_updates_and_each_runs_once(self):
        planned = plan_branches(6, 4)
        self.assertEqual(len(set(planned)), 4 * (5 + 3 + 6))
        for branch in planned:
            self.assertGreaterEqual(branch.samples, 32 * branch.batch)
            self.assertEqual(branch.samples % branch.batch, 0)
            self.assertLessEqual(branch.samples, samples_per_repetition(6))

    def test_the_ladder_of_its_repetition_is_before_every_branch(self):
        rungs: dict[int, int] = {}
        for branch in plan_branches(8, 3):
            if branch.batch == 8:
                rungs[branch.repetition] = rungs.get(branch.repetition, 0) + 1
            else:
                self.assertEqual(rungs[branch.repetition], 5)

    def test_the_first_branches_are_those_of_the_program(self):
        # What `copus calibrate` runs for a reference batch of 8 (copus/cli/noise/calibration_plan.cpp).
        ladder = [Branch(8, 0.5, samples, 0) for samples in (256, 512, 1024, 2048, 3072)]
        larger = [Branch(batch, 0.5, samples, 0) for batch, samples in ((16, 1024), (32, 1024), (64, 2048))]
        self.assertEqual(plan_branches(8)[:8], ladder + larger)


if __name__ == "__main__":
    unittest.main()
