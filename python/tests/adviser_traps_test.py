"""What users get wrong is refused or noticed, and what they rightly do differently does not change the numbers."""

from __future__ import annotations

import unittest
import warnings

import torch
from torch import nn

import copus
from copus.input_checks import InputChecks
from recording_core import advises_after, made, recording

BATCH, LENGTH = 8, 16


def model_of(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32))


class Traps(unittest.TestCase):
    def setUp(self):
        context = recording()
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        self.model = model_of()
        self.generator = torch.Generator().manual_seed(3)

    def adviser(self, **options) -> copus.Adviser:
        return copus.Adviser(**{"batch": BATCH, "sequence_length": LENGTH, "directory": None} | options)

    def train_step(self, adviser, micro_batches=4, scale=1.0, by_tokens=False, clip=None, give_scale=True,
                   clips_first=False, first=True, samples=BATCH):  # fmt: skip
        """A step of random tokens in a plain loop, in one of the ways in which people write it."""
        self.model.zero_grad()
        tokens = torch.randint(32, (BATCH, LENGTH + 1), generator=self.generator)
        size = BATCH // micro_batches
        for index, part in enumerate(tokens.split(size)):
            logits = self.model(part[:, :-1]).flatten(0, 1)
            if by_tokens:
                summed = nn.functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum")
                loss = summed / (BATCH * LENGTH)
            else:
                loss = nn.functional.cross_entropy(logits, part[:, 1:].flatten()) / micro_batches
            (loss * scale).backward()
            if index == 0 and first:
                if clips_first:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
                adviser.first_micro_batch(self.model.parameters(), size, loss_scale=scale if give_scale else 1.0)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip or 1e9)
        return adviser.step(min(norm, torch.tensor(clip)) if clip else norm, samples, seconds=1.0)

    def steps_of(self, **how) -> list[dict]:
        self.model, self.generator = model_of(), torch.Generator().manual_seed(3)
        adviser = self.adviser()
        for _ in range(3):
            self.train_step(adviser, **how)
        return made[-1].steps

    def assert_same(self, steps: list[dict], others: list[dict]) -> None:
        self.assertEqual(len(steps), len(others))
        for step, other in zip(steps, others):
            self.assertEqual(step["small_batch"], other["small_batch"])
            for name in ("norm", "small_squared_norm"):
                self.assertAlmostEqual(step[name] / other[name], 1, delta=1e-5)

    def warned(self, run) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        return "\n".join(str(each.message) for each in caught if each.category is copus.AdviserWarning)

    def test_the_first_micro_batch_is_what_a_step_of_it_alone_would_be(self):
        told = self.steps_of()[0]
        self.assertEqual((told["samples"], told["small_batch"]), (BATCH, 2))
        self.assertEqual({name: made[0].settings[name] for name in ("batch", "micro_batch", "replicas")},
                         {"batch": BATCH, "micro_batch": 2, "replicas": 1})  # fmt: skip
        model = model_of()
        tokens = torch.randint(32, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(3))[:2]
        nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        squared = sum(parameter.grad.double().square().sum().item() for parameter in model.parameters())
        self.assertAlmostEqual(told["small_squared_norm"] / squared, 1, delta=1e-5)

    def test_a_gradient_scaler_changes_nothing(self):
        self.assert_same(self.steps_of(scale=65536.0), self.steps_of())

    def test_weighting_by_tokens_changes_nothing(self):
        self.assert_same(self.steps_of(by_tokens=True), self.steps_of())

    def test_frozen_parameters_and_parameters_without_a_gradient_count_nothing(self):
        expected = self.steps_of()
        self.model, self.generator = model_of(), torch.Generator().manual_seed(3)
        self.model.extra, self.model.frozen = nn.Linear(5, 5), nn.Linear(5, 5).requires_grad_(False)
        self.model.forward = lambda x: self.model[2](self.model[1](self.model[0](x)))
        adviser = self.adviser()
        for _ in range(3):
            self.train_step(adviser)
        self.assert_same(made[-1].steps, expected)

    def test_tied_parameters_count_once(self):
        embedding = nn.Embedding(4, 2)
        embedding.weight.grad = torch.ones(4, 2)
        adviser = self.adviser()
        adviser.first_micro_batch([embedding.weight, embedding.weight], samples=4)
        adviser.step(2.0, samples=8, seconds=1.0)
        self.assertAlmostEqual(made[0].steps[0]["small_squared_norm"] / (8 * 2**2), 1, delta=1e-6)

    def test_half_precision_is_added_up_in_float32(self):
        parameter = nn.Parameter(torch.zeros(100_000, dtype=torch.bfloat16))
        parameter.grad = torch.full_like(parameter, 1.0)
        adviser = self.adviser()
        adviser.first_micro_batch([parameter], samples=4)
        adviser.step(300.0, samples=8, seconds=1.0)
        self.assertAlmostEqual(made[0].steps[0]["small_squared_norm"] / 400_000, 1, delta=1e-5)

    def test_a_norm_after_clipping_is_noticed_once_and_not_measured_with(self):
        adviser = self.adviser()
        said = self.warned(lambda: [self.train_step(adviser, clip=1e-3) for _ in range(30)])
        self.assertEqual(said.count("after clipping"), 1)
        self.assertIsNotNone(made[0].steps[14]["small_batch"])
        self.assertIsNone(made[0].steps[29]["small_batch"])

    def test_norms_that_hardly_differ_are_one_warning(self):
        adviser, norms = self.adviser(), iter(range(60))
        parameter = nn.Parameter(torch.zeros(3))

        def run():
            for step in norms:
                parameter.grad = torch.rand(3, generator=self.generator)
                adviser.first_micro_batch([parameter], samples=2)
                adviser.step(1.0 + 1e-5 * (step % 7) + 1e-6 * step, samples=BATCH, seconds=1.0)

        self.assertEqual(self.warned(run).count("after clipping"), 1)

    def test_a_first_micro_batch_that_was_clipped_is_noticed(self):
        adviser = self.adviser()
        said = self.warned(lambda: [self.train_step(adviser, clips_first=True) for _ in range(20)])
        self.assertIn("before anything changes the gradients", said)
        self.assertIsNone(made[0].steps[19]["small_batch"])

    def test_a_scale_that_was_not_told_is_noticed(self):
        adviser = self.adviser()
        said = self.warned(lambda: [self.train_step(adviser, scale=64.0, give_scale=False) for _ in range(20)])
        self.assertIn("loss_scale", said)
        self.assertIsNone(made[0].steps[19]["small_batch"])

    def test_wrong_samples_are_noticed(self):
        adviser = self.adviser(batch=16 * BATCH)
        said = self.warned(lambda: [self.train_step(adviser, samples=16 * BATCH) for _ in range(20)])
        self.assertIn("`samples`", said)

    def test_nothing_is_objected_to_in_a_sound_loop(self):
        adviser = self.adviser()
        self.assertEqual(self.warned(lambda: [self.train_step(adviser) for _ in range(40)]), "")

    def test_one_micro_batch_is_said_to_be_too_few(self):
        adviser = self.adviser()
        said = self.warned(lambda: [self.train_step(adviser, micro_batches=1) for _ in range(20)])
        self.assertIn("two micro-batches at least", said)
        self.assertEqual(made, [])

    def test_no_gradient_at_all_is_said(self):
        adviser = self.adviser()

        def run():
            for _ in range(20):
                adviser.first_micro_batch(model_of().parameters(), samples=2)
                adviser.step(1.0, samples=BATCH, seconds=1.0)

        self.assertIn("no gradient in p.grad", self.warned(run))

    def test_a_loop_without_first_micro_batch_is_told(self):
        adviser = self.adviser()
        said = self.warned(lambda: [self.train_step(adviser, first=False) for _ in range(20)])
        self.assertIn("first_micro_batch is not called", said)

    def test_steps_may_go_unmeasured(self):
        adviser = self.adviser()
        self.train_step(adviser)
        self.train_step(adviser, first=False)
        self.assertEqual([step["small_batch"] for step in made[0].steps], [2, None])

    def test_first_micro_batch_twice_is_refused(self):
        adviser = self.adviser()
        self.model(torch.zeros(1, 2, dtype=torch.int64)).sum().backward()
        adviser.first_micro_batch(self.model.parameters(), samples=2)
        with self.assertRaisesRegex(copus.UserError, "twice in step 1"):
            adviser.first_micro_batch(self.model.parameters(), samples=2)

    def test_arguments_that_cannot_be_right_are_refused(self):
        adviser = self.adviser()
        for call in (
            lambda: self.adviser(batch=0),
            lambda: self.adviser(batch=2.5),
            lambda: adviser.first_micro_batch(self.model.parameters(), samples=0),
            lambda: adviser.first_micro_batch(self.model, samples=2),
            lambda: adviser.first_micro_batch(self.model.parameters(), samples=2, loss_scale=0.0),
            lambda: adviser.step(1.0, samples=-8, seconds=1.0),
            lambda: adviser.step(1.0, samples=8, seconds=0.0),
            lambda: adviser.watch(self.model),
        ):
            with self.assertRaises(copus.UserError):
                call()

    def test_sparse_gradients_are_refused(self):
        embedding = nn.Embedding(4, 2, sparse=True)
        embedding(torch.tensor([1])).sum().backward()
        with self.assertRaisesRegex(copus.UserError, "sparse"):
            self.adviser().first_micro_batch(embedding.parameters(), samples=1)

    def test_a_changed_model_begins_the_averages_anew(self):
        adviser = self.adviser()
        self.train_step(adviser)
        self.model[1].requires_grad_(False)
        said = self.warned(lambda: self.train_step(adviser))
        self.assertIn("other parameters", said)
        self.assertEqual(made[0].forgotten, 1)
        self.train_step(adviser)
        self.assertEqual(made[0].forgotten, 1)

    def test_a_step_that_is_not_finite_is_a_skipped_one(self):
        adviser = self.adviser()
        self.train_step(adviser)
        next(self.model.parameters()).grad.fill_(float("inf"))
        adviser.first_micro_batch(self.model.parameters(), samples=2)
        self.assertIsNone(adviser.step(float("inf"), samples=BATCH, seconds=1.0))
        self.assertIsNone(made[0].steps[1]["small_batch"])
        self.assertEqual(made[0].steps[1]["norm"], float("inf"))

    def test_the_graph_of_gradients_is_let_go(self):
        adviser = self.adviser()
        parameter = nn.Parameter(torch.ones(3))
        (gradient,) = torch.autograd.grad((parameter**3).sum(), parameter, create_graph=True)
        parameter.grad = gradient  # as after backward(create_graph=True)
        adviser.first_micro_batch([parameter], samples=2)
        self.assertFalse(adviser._first[1].requires_grad)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            adviser.step(gradient.norm(), samples=BATCH, seconds=1.0)

    def test_a_restarted_process_goes_on(self):
        adviser = self.adviser(directory="runs/of-a-test")
        self.train_step(adviser)
        state = adviser.state_dict()
        restarted = copus.Adviser(batch=BATCH, sequence_length=LENGTH)
        restarted.load_state_dict(state)
        self.assertEqual(restarted.state_dict(), state)  # also before its first measured step
        self.train_step(restarted)
        self.assertEqual(made[1].given_state, "state after 1")
        self.assertEqual(made[1].directory, "runs/of-a-test")
        with self.assertRaisesRegex(copus.UserError, "before the first one"):
            restarted.load_state_dict(state)

    def test_a_sequence_with_a_huge_gradient_is_no_mistake(self):
        checks = InputChecks()
        for number in range(17):
            norm = 30.0 if number == 5 else 1.0 + number / 100  # that of the second of two micro-batches
            checks.observe(norm, samples=8, small_batch=4, small_squared_norm=1.5 + number / 100)
        self.assertEqual(checks.objection, "")
        checks = InputChecks()
        for number in range(17):
            checks.observe(1.0 + number / 100, samples=8, small_batch=4, small_squared_norm=0.3 + number / 1000)
        self.assertIn("where 1 to 2 is possible", checks.objection)

    def test_a_slight_mistake_in_much_noise_is_found_in_many_steps_and_forgotten_after_as_many(self):
        """The step is told of twice its samples, so that the small gradient's squared norm counts fourfold."""
        random = torch.Generator().manual_seed(3)
        checks, first, last = InputChecks(), None, None
        for step in range(1, 4097):
            gradients = torch.randn(2, 4, generator=random)
            is_wrong = step <= 2048
            small = gradients[0].square().sum().item() * (4 if is_wrong else 1)
            norm = gradients.mean(0).norm().item()
            checks.observe(norm, samples=16 if is_wrong else 8, small_batch=4, small_squared_norm=small)
            if checks.objection:
                first, last = first or step, step
        self.assertIsNotNone(first)
        self.assertLess(32, first)  # no single short block shows it
        self.assertLessEqual(first, 2048)
        self.assertLess(last, 2048 + 1024)

    def test_a_loss_scale_that_was_not_told_is_found_whatever_the_spread_of_gradients(self):
        random = torch.Generator().manual_seed(4)
        checks = InputChecks()
        for _ in range(17):
            gradients = torch.randn(2, 1, generator=random)  # of a single dimension, which spreads most
            small = gradients[0].square().sum().item() * 1024**2
            checks.observe(gradients.mean(0).norm().item(), samples=8, small_batch=4, small_squared_norm=small)
        self.assertIn("loss_scale=", checks.objection)

    def test_a_state_outlives_the_end(self):
        adviser = self.adviser(directory="runs/of-a-test")
        self.train_step(adviser)
        state = adviser.state_dict()
        adviser.close()
        self.assertEqual(adviser.state_dict(), state)

    def test_advice_is_one_line_with_its_intervals(self):
        adviser = self.adviser()
        self.train_step(adviser)
        advises_after.add(2)
        advice = self.train_step(adviser)
        self.assertEqual((advice.batch, advice.gain_high, advice.noise_scale_high), (2 * BATCH, None, None))
        self.assertEqual(
            str(advice),
            "take batch 16 (4 micro-batches a rank), learning rate x 1.5: +25 % (12.5 .. ?) progress by the second; "
            "noise scale 100 (50 .. ?); because",
        )
        self.assertIsNone(self.train_step(adviser))


if __name__ == "__main__":
    unittest.main()
