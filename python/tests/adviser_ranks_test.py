"""All ranks get the same advice in the same step; ranks that call different things are named instead of waited for."""

from __future__ import annotations

import tempfile
import time
import unittest

import torch

import copus
from processes import run_on_ranks
from recording_core import advises_after, made, recording

BATCH, LENGTH = 8, 16


def step_of(adviser: copus.Adviser, samples: int = BATCH, first: int | None = 2, norm: float = 1.0):
    """A step whose local gradients differ from rank to rank."""
    rank = torch.distributed.get_rank()
    parameter = torch.nn.Parameter(torch.zeros(3, device="cpu"))
    parameter.grad = torch.full((3,), 1.0 + rank, device="cpu")
    if first is not None:
        adviser.first_micro_batch([parameter], samples=first)
    return adviser.step(norm, samples=samples, seconds=1.0, lr=0.1, loss=1.0 + rank)


def outcome_of(run) -> str:
    started = time.monotonic()
    try:
        return str(run())
    except copus.UserError as error:
        assert time.monotonic() - started < 30
        return str(error)


def on_each_rank(folder: str) -> dict[str, object]:
    rank = torch.distributed.get_rank()
    found: dict[str, object] = {}

    def adviser(seconds: float = 60.0, strict: bool = True) -> copus.Adviser:
        return copus.Adviser(batch=BATCH, sequence_length=LENGTH, directory=None, timeout_seconds=seconds,
                             strict=strict)

    with recording():
        advises_after.add(2)
        one = adviser()
        found["advice"] = []
        for number in range(1, 6):
            found["advice"].append(step_of(one))
            if rank == 0 and number == 3:
                one.state_dict()  # a checkpoint that one rank writes takes no advice from it
        found["state"] = one.state_dict()["core"]
        found["told"] = made[0].steps if made else None
        found["settings"] = made[0].settings if made else None

        two = adviser()
        step_of(two)
        for _ in range(2):
            step_of(two, samples=BATCH if rank == 0 else 2 * BATCH)
        found["different samples"] = made[1].steps if rank == 0 else None
        three = adviser()
        step_of(three, first=2 if rank == 0 else None)
        found["first_micro_batch on one rank"] = outcome_of(lambda: step_of(three))
        four = adviser()
        step_of(four, norm=1.0 + rank)
        found["different norms"] = outcome_of(lambda: step_of(four))

        five = adviser(seconds=2.0)
        found["no step on rank 1"] = outcome_of(lambda: step_of(five)) if rank == 0 else ""
        if rank == 1:
            five._exchange = None  # rank 1 made the adviser, as every rank has to, and never calls step
            from copus import exchange

            next(exchange._meetings)
        torch.distributed.barrier()
        six = adviser(seconds=2.0)
        step_of(six)
        found["rank 1 stops"] = ""
        if rank == 0:
            step_of(six)
            found["rank 1 stops"] = outcome_of(lambda: step_of(six))
        torch.distributed.barrier()

        seven = adviser()
        torch.set_default_device("meta")
        for _ in range(3):
            step_of(seven)
        torch.set_default_device("cpu")
        seven.close()
        found["another default device"] = made[-1].steps if rank == 0 else None
        eight = adviser()
        for _ in range(3):
            step_of(eight)
        eight._exchange._sent[-1][0].wait()
        torch.distributed.destroy_process_group()
        count = len(made)
        eight.close()
        found["process group destroyed"] = made[-1].steps if rank == 0 else len(made) - count
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    return found


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.ranks = run_on_ranks(2, on_each_rank, folder)

    def test_get_the_same_advice_in_the_same_step(self):
        for rank, found in enumerate(self.ranks):
            given = [step for step, advice in enumerate(found["advice"], start=1) if advice is not None]
            self.assertEqual(given, [4])  # of step 2, known at step 3, told with it
            advice = found["advice"][3]
            self.assertEqual((advice.batch, advice.learning_rate_factor, advice.gain_high), (16, 1.5, None))
            self.assertEqual(advice.reason, "because" if rank == 0 else "")

    def test_put_their_shares_together(self):
        told, settings = self.ranks[0]["told"][0], self.ranks[0]["settings"]
        # Local gradients of two of four samples a rank: twice as long as they were added up for the mean.
        self.assertEqual(told["small_batch"], 2)
        self.assertAlmostEqual(told["small_squared_norm"], (3 * 1 + 3 * 4) / 2 * 4, delta=1e-5)
        self.assertEqual((told["norm"], told["lr"], told["loss"]), (1.0, 0.1, 1.5))
        self.assertEqual((settings["replicas"], settings["micro_batch"]), (2, 2))
        self.assertIsNone(self.ranks[1]["told"])

    def test_a_state_holds_every_step(self):
        self.assertEqual([found["state"] for found in self.ranks], ["state after 5", None])

    def test_that_differ_are_named_on_all(self):
        for found in self.ranks:
            self.assertIn("rank 0 has 2, rank 1 has none", found["first_micro_batch on one rank"])
            self.assertIn("norm", found["different norms"])

    def test_that_have_different_samples_are_added_up_and_not_measured(self):
        self.assertEqual([step["small_batch"] for step in self.ranks[0]["different samples"]], [2])

    def test_are_added_up_whatever_the_default_device(self):
        self.assertEqual([step["small_batch"] for step in self.ranks[0]["another default device"]], [2, 2, 2])

    def test_close_where_the_process_group_is_gone(self):
        self.assertEqual([step["small_batch"] for step in self.ranks[0]["process group destroyed"]], [2, 2, 2])
        self.assertEqual(self.ranks[1]["process group destroyed"], 0)  # rank 1 does not take itself for the only one

    def test_that_are_missing_are_named(self):
        self.assertIn("rank 1 of 2 called no step within 2 s", self.ranks[0]["no step on rank 1"])
        self.assertIn("rank 1 of 2 did not take part within 2 s", self.ranks[0]["rank 1 stops"])


if __name__ == "__main__":
    unittest.main()
