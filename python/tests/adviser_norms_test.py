"""What the adviser measures is the same in every kind of parallelism, and is what single samples give in float64."""

from __future__ import annotations

import contextlib
import unittest
import warnings

import torch
from torch import nn

import copus
from processes import run_on_ranks
from recording_core import recording

BATCH, LENGTH, VOCABULARY = 8, 6, 32
# Gradients in float32 have relative errors of some 2^-24 times the root of the numbers added up, a few hundred here.
TOLERANCE = 1e-5


class Tiny(nn.Module):
    """Tied embeddings, weights that tensor parallelism cuts and such that it replicates, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.feed = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(self.embedding(tokens))
        return self.head(hidden + self.feed(hidden))


def samples() -> torch.Tensor:
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(2))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def reference(small_batches: list[list[int]]) -> tuple[float, float]:
    """Mean squared norm of the small batches' gradients and norm of that of all samples: of single samples, float64."""
    model = Tiny().double()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = []
    for tokens in samples():
        parts = torch.autograd.grad(loss_of(model, tokens[None]), trained, allow_unused=True)
        gradients.append(torch.cat([part.flatten() for part in parts if part is not None]))
    gradients = torch.stack(gradients)
    squares = [gradients[batch].mean(0).square().sum().item() for batch in small_batches]
    return sum(squares) / len(squares), gradients.mean(0).norm().item()


def whole_norm(model: nn.Module) -> torch.Tensor:
    """Where parameters lie on several meshes clip_grad_norm_ gives up; trainers then do something like this."""
    from torch.distributed.tensor import DTensor

    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in gradients]
    return torch.stack([each.norm() for each in whole]).norm()


def cut_in_tensor_parallel(model: Tiny, mesh) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
    )  # fmt: skip

    plan = {
        "feed": PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
        ),
        "feed.0": SequenceParallel(),  # whose gradients are partial sums
        "feed.1": ColwiseParallel(input_layouts=Shard(1)),
        "feed.3": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)


def train_one_step(kind: str, micro_batches: int, watched: bool) -> dict | None:
    """One step of a layout; returns what the core was told, which rank 0 alone has."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")  # PyTorch's own, about hooks
    ranks = torch.distributed.get_world_size()
    model: nn.Module = Tiny()
    replicas, replica, synchronises = ranks, torch.distributed.get_rank(), True
    norm_of = lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # noqa: E731
    if kind.startswith("ddp"):
        model.unused.requires_grad_(False)
        model = nn.parallel.DistributedDataParallel(model)
        synchronises = kind == "ddp"
    elif kind == "fsdp":
        fully_shard(model.feed)
        fully_shard(model)
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard")))
    elif kind == "tp":
        cut_in_tensor_parallel(model, init_device_mesh("cpu", (ranks,)))
        replicas, replica, norm_of = 1, 0, lambda: whole_norm(model)
    elif kind == "fsdp x tp":
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
        cut_in_tensor_parallel(model, mesh["tp"])
        fully_shard(model.feed, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        replicas, replica, norm_of = ranks // 2, mesh["dp"].get_local_rank(), lambda: whole_norm(model)
    size = BATCH // (replicas * micro_batches)
    with recording() as cores:
        adviser = copus.Adviser(batch=BATCH, sequence_length=LENGTH, directory=None)
        if watched:
            adviser.watch(model, micro_batches=micro_batches)
        for index in range(micro_batches):
            begin = index * replicas * size + replica * size
            is_last = index == micro_batches - 1
            with contextlib.nullcontext() if synchronises or is_last else model.no_sync():
                (loss_of(model, samples()[begin : begin + size]) / micro_batches).backward()
            if index == 0 and not watched:
                adviser.first_micro_batch(model.parameters(), samples=size)
        adviser.step(norm_of(), samples=BATCH, seconds=1.0)
        adviser.close()
        return cores[0].steps[0] if cores else None


# Kind of parallelism, micro-batches, whether the reductions are watched; and the samples of each small batch.
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
OF_TWO_RANKS = {
    ("ddp no_sync", 2, False): PAIRS[:2],
    ("ddp", 2, False): HALVES[:1],
    ("ddp", 1, True): HALVES,
    ("fsdp", 2, False): HALVES[:1],
    ("fsdp", 1, True): HALVES,
    ("fsdp", 2, True): PAIRS[:2],
    ("tp", 2, False): HALVES[:1],
}
OF_FOUR_RANKS = {
    ("fsdp x tp", 2, False): HALVES[:1],
    ("fsdp x tp", 1, True): HALVES,
    ("hsdp", 2, False): HALVES[:1],
}


def train_each(cases: list[tuple[str, int, bool]]) -> list[dict | None]:
    return [train_one_step(*case) for case in cases]


class AgreesWithSingleSamples(unittest.TestCase):
    def check(self, ranks: int, cases: dict) -> None:
        first, *others = run_on_ranks(ranks, train_each, list(cases))
        for (case, small_batches), told, *of_others in zip(cases.items(), first, *others):
            with self.subTest(case):
                small_squared_norm, norm = reference(small_batches)
                self.assertEqual(told["small_batch"], len(small_batches[0]))
                self.assertLess(abs(told["small_squared_norm"] / small_squared_norm - 1), TOLERANCE)
                self.assertLess(abs(told["norm"] / norm - 1), TOLERANCE)
                self.assertTrue(all(told is None for told in of_others))

    def test_on_two_ranks(self):
        self.check(2, OF_TWO_RANKS)

    def test_on_four_ranks(self):
        self.check(4, OF_FOUR_RANKS)


if __name__ == "__main__":
    unittest.main()
