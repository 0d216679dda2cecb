"""Whatever goes wrong in the midst of a job, inside the adviser too: training's parameters are bitwise as without it."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import unittest
import warnings
from unittest import mock

import torch
from torch import nn

import copus
from adviser_jobs_test import adviser_of, inputs, loss_of, make_model
from processes import run_on_ranks

STEPS = 2000


def broken(*_, **__):
    raise ZeroDivisionError("inside the adviser")


def wrong_calls(model: nn.Module) -> dict:
    """Mistakes by name: what is given to first_micro_batch and to step in place of what is right."""
    return {
        "norm None": ({}, {"norm": None}),
        "norm a vector": ({}, {"norm": torch.ones(2)}),
        "norm a text": ({}, {"norm": "1.0"}),
        "samples 0": ({}, {"samples": 0}),
        "samples None": ({}, {"samples": None}),
        "samples too many": ({}, {"samples": 1 << 40}),
        "seconds nan": ({}, {"seconds": float("nan")}),
        "first samples -1": ({"samples": -1}, {}),
        "loss_scale None": ({"loss_scale": None}, {}),
        "named_parameters": ({"parameters": list(model.named_parameters())}, {}),
        "no parameters": ({"parameters": []}, {}),
    }


# No mistakes: what a sound job may have in single steps, or what the log alone is for.
UNUSUAL = {
    "norm nan": ({}, {"norm": float("nan")}),
    "norm inf": ({}, {"norm": torch.tensor(float("inf"))}),
    "loss None": ({}, {"loss": None, "lr": None}),
    "loss a vector": ({}, {"loss": torch.ones(2), "lr": "fast", "loss_tokens": -3}),
    "a short step": ({"samples": 3}, {"samples": 7}),
}


def train(steps: int, advised: bool, fault_of=lambda step: None, model=None, adviser=None, begin=0):
    """Trains with a seed; `fault_of` names a step's mistake."""
    model = model or make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    faults = wrong_calls(model) | UNUSUAL
    for step in range(begin, begin + steps):
        first, last = faults.get(fault_of(step), ({}, {}))
        optimizer.zero_grad()
        for index in range(2):
            (loss_of(model, inputs(4, 7 * step + index)) / 2).backward()
            if advised and index == 0:
                adviser.first_micro_batch(**{"parameters": model.parameters(), "samples": 4} | first)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if advised:
            adviser.step(**{"norm": norm, "samples": 8, "seconds": 1.0, "lr": 1e-3} | last)
    return model


def on_two_ranks(steps: int) -> dict:
    """One rank alone makes each mistake; at last one does not report at all."""
    rank, found, trained = torch.distributed.get_rank(), {}, []
    wrong = ["norm None", "samples 0", "named_parameters"]
    for advised in (False, True):
        model = nn.parallel.DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        adviser = adviser_of(batch=16, timeout_seconds=1.0)
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            for step in range(steps):
                fault = wrong[step // 20 % 3] if step >= 20 and step % 20 == 5 and rank == step // 20 % 2 else None
                first, last = wrong_calls(model).get(fault, ({}, {}))
                optimizer.zero_grad()
                for index in range(2):
                    with model.no_sync() if index == 0 else contextlib.nullcontext():
                        (loss_of(model, inputs(4, 1000 * rank + 7 * step + index)) / 2).backward()
                    if advised and index == 0:
                        adviser.first_micro_batch(**{"parameters": model.parameters(), "samples": 4} | first)
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if advised and not (rank == 1 and step >= steps - 5):
                    adviser.step(**{"norm": norm, "samples": 16, "seconds": 1.0} | last)
            adviser.close()
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
        said = [str(each.message) for each in caught if each.category is copus.AdviserWarning]
    found["same"] = all(map(torch.equal, *trained))
    found["said"], found["unmeasured"] = said, adviser.unmeasured
    return found


class Faults(unittest.TestCase):
    def setUp(self):
        logging.getLogger("copus.adviser").addHandler(logging.NullHandler())
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.plain = list(train(STEPS, advised=False).parameters())

    def check(self, adviser, expected: int, fault_of, model=None, begin=0, steps=STEPS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = train(steps, True, fault_of, model=model, adviser=adviser, begin=begin)
            adviser.close()
        said = [str(each.message) for each in caught if each.category is copus.AdviserWarning]
        self.assertEqual(len(said), expected, said)
        self.assertTrue(all(map(torch.equal, self.plain, model.parameters())))
        return said

    def test_random_mistakes_in_the_midst_of_a_job_are_one_warning_each(self):
        names = [*wrong_calls(make_model()), *UNUSUAL]
        choice = random.Random(5)
        faults = {step: choice.choice(names) for step in choice.sample(range(40, STEPS), STEPS // 20)}
        self.assertEqual(set(faults.values()), set(names))
        said = self.check(adviser_of(), len(wrong_calls(make_model())), faults.get)
        self.assertTrue(all("since step" in each and "training goes on" in each for each in said))

    def test_a_sound_job_is_told_nothing(self):
        adviser = adviser_of()
        self.check(adviser, 0, lambda step: None)

    def test_failures_inside_the_adviser_stop_it_with_one_warning(self):
        places = (
            "copus.adviser.squared_norm_share", "copus.adviser.put_together", "copus.adviser._pending",
            "copus.adviser.InputChecks.observe", "copus.adviser.norm_and_share", "copus.adviser.arguments.whole",
            "copus.health.Health.sound", "copus.adviser.BackwardPasses.begin",
        )  # fmt: skip
        self.plain = list(train(60, advised=False).parameters())
        for place in places:
            adviser, model = adviser_of(), make_model()
            optimizer_steps = 60
            with self.subTest(place), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                switch = {"on": False}
                target = mock.patch(place, broken)

                def fault_of(step, target=target, switch=switch):
                    if step == 30:
                        target.start()
                        switch["on"] = True
                    return None

                try:
                    train(optimizer_steps, True, fault_of, model=model, adviser=adviser)
                    adviser.state_dict()
                finally:
                    if switch["on"]:
                        target.stop()
                said = [str(each.message) for each in caught if each.category is copus.AdviserWarning]
                self.assertEqual(len(said), 1, said)
                self.assertIn("ZeroDivisionError: inside the adviser", said[0])
                self.assertIsNone(adviser.noise_scale())
                self.assertTrue(all(map(torch.equal, self.plain, model.parameters())))

    def test_failures_of_the_core_stop_it_with_one_warning(self):
        self.plain = list(train(60, advised=False).parameters())
        for method in ("step", "state", "close"):
            with self.subTest(method), mock.patch.object(copus._core, "Adviser") as core:
                core.return_value.notes = []
                core.return_value.step.return_value = None
                getattr(core.return_value, method).side_effect = RuntimeError("an invariant of the core")
                said = self.check(adviser_of(), 1, lambda step: None, steps=60)
                self.assertIn("an invariant of the core", said[0])

    def test_mistakes_of_one_rank_of_two(self):
        found = run_on_ranks(2, on_two_ranks, 200)
        for rank, of_rank in enumerate(found):
            self.assertTrue(of_rank["same"])
            # Who leaves step out calls first_micro_batch twice in a step.
            ends = ("did not take part", "called twice")
            said = [each for each in of_rank["said"] if not any(end in each for end in ends)]
            self.assertEqual(len(said), 3, said)  # each on the rank that makes it
            self.assertTrue(all("since step" in each for each in said))
        self.assertEqual(sum("did not take part" in each for each in found[0]["said"]), 1)
        self.assertIn("rank 1 of 2 did not take part", found[0]["unmeasured"])


if __name__ == "__main__":
    unittest.main()
