"""The adviser changes no bit of a job: parameters after every step are those of the job without it, on 1 to 8 ranks."""

from __future__ import annotations

import unittest
import warnings

import torch
from torch import nn

import copus
from processes import run_on_ranks

STEPS = 20  # of which the first shows a sum in another order
MOST_RANKS = 8
SAMPLES = 3  # of a micro-batch
KINDS = ("accumulation", "synchronised", "watched", "watched, bucket view", "watched, static graph", "FSDP2 watched")


class Model(nn.Module):
    """With a matrix, a vector, and gradients of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(7, 19), nn.Tanh(), nn.LayerNorm(19), nn.Linear(19, 5))
        self.scale = nn.Parameter(torch.full((1,), 37.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs) * self.scale


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    if torch.distributed.get_world_size() == 1 and "watched" not in kind:
        return model
    if kind == "FSDP2 watched":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model)
    return nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view="bucket view" in kind, static_graph="static graph" in kind
    )


def trained(kind: str, is_advised: bool) -> list[bytes]:
    """The bytes of this rank's parameters after every step."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(1)
    model = wrapped(kind, Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    micro_batches = 1 if "watched" in kind else 3
    adviser = None
    if is_advised:
        adviser = copus.Adviser(batch=ranks * SAMPLES * micro_batches, sequence_length=1, directory=None, strict=True)
        if "watched" in kind:
            adviser.watch(model)
    random = torch.Generator().manual_seed(rank + 2)
    states = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for index in range(micro_batches):
            inputs, targets = torch.randn(SAMPLES, 7, generator=random), torch.randn(SAMPLES, 5, generator=random)
            is_last = index == micro_batches - 1
            if isinstance(model, nn.parallel.DistributedDataParallel):
                model.require_backward_grad_sync = is_last or kind == "synchronised"
            ((model(inputs) - targets).square().mean() / micro_batches).backward()
            if adviser is not None and index == 0 and micro_batches > 1:
                adviser.first_micro_batch(model.parameters(), samples=SAMPLES)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if adviser is not None:
            adviser.step(norm, samples=ranks * SAMPLES * micro_batches, seconds=0.01)
        local = [each.to_local() if hasattr(each, "to_local") else each for each in model.parameters()]
        states.append(b"".join(each.detach().numpy().tobytes() for each in local))
    if adviser is not None:
        adviser.close()
    return states


def on_each_rank() -> dict[str, int | None]:
    """By kind the first step after which parameters differ; None where none do."""
    warnings.simplefilter("ignore")
    found = {}
    for kind in KINDS:
        if "watched" in kind and torch.distributed.get_world_size() == 1:
            continue  # which a single rank refuses
        plain, advised = trained(kind, False), trained(kind, True)
        found[kind] = next((step for step, pair in enumerate(zip(plain, advised), 1) if pair[0] != pair[1]), None)
    return found


class Bits(unittest.TestCase):
    def test_are_those_of_the_job_without_the_adviser(self):
        for ranks in range(1, MOST_RANKS + 1):
            for rank, found in enumerate(run_on_ranks(ranks, on_each_rank)):
                self.assertEqual(len(found), 2 if ranks == 1 else len(KINDS))
                for kind, step in found.items():
                    with self.subTest(ranks=ranks, rank=rank, kind=kind):
                        self.assertIsNone(step, f"parameters differ from step {step} on")


if __name__ == "__main__":
    unittest.main()
