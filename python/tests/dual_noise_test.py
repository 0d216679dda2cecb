"""Noise scales in dual norms equal those of singular value decompositions in float64, whatever the optimizer."""

from __future__ import annotations

import json
import math
import unittest
from unittest import mock

import torch
from torch import nn

import copus
from copus import _core, dual_noise
from processes import run_on_ranks

BATCH = 4
SHAPES = {"wide": (6, 11), "tall": (13, 5)}


class SumMuon(torch.optim.Optimizer):
    """Someone's optimizer, whose buffer is a sum of gradients."""

    def __init__(self, parameters, momentum: float = 0.9):
        super().__init__(parameters, {"momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                buffer = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                buffer.mul_(group["momentum"]).add_(parameter.grad)


def matrices() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def train(parameters: dict, optimizer, noise: copus.DualNoise, steps: range, seen=lambda g, p: g) -> list[list]:
    """Trains by random gradients around a drifting mean. Returns those that the optimizer averages, in float64."""
    history = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters.values():
            parameter.grad = 0.3 + step / 100 + torch.randn(parameter.shape, generator=generator)
        history.append([seen(p.grad.double(), p.detach().double()) for p in parameters.values()])
        noise.step()
        optimizer.step()
    return history


def reference(history: list[list], decay: float, interval: int, first: int) -> dict[str, dict[str, float]]:
    """The averages that measurements in float64 by singular value decompositions give."""
    averages: dict[str, dict[str, float]] = {"sign": {}, "spectral": {}}
    for step in range(interval, len(history) + 1, interval):
        if step <= first:
            continue
        sums = dict.fromkeys(["sign noise", "sign signal", "spectral noise", "spectral signal"], 0.0)
        weights = torch.tensor([decay**age for age in range(step - 1)], dtype=torch.float64)
        weights /= weights.sum()
        for matrix, gradient in enumerate(history[step - 1]):
            earlier = torch.stack([each[matrix] for each in reversed(history[: step - 1])])
            mean = torch.einsum("t,tij->ij", weights, earlier)
            left, _, right = torch.linalg.svd(mean, full_matrices=False)
            sums["sign noise"] += (gradient - mean).abs().sum().item()
            sums["sign signal"] += (gradient * mean.sign()).sum().item()
            sums["spectral noise"] += torch.linalg.svdvals(gradient - mean).sum().item()
            sums["spectral signal"] += (gradient * (left @ right)).sum().item()
        variance = weights.square().sum().item()
        for norm, average in averages.items():
            averages[norm] = _core.observe_dual_noise(
                average, sums[f"{norm} noise"], sums[f"{norm} signal"], BATCH, variance
            )
    return averages


class EqualsFloat64(unittest.TestCase):
    def check(self, make, decay: float, first: int = 1, seen=lambda g, p: g, **named) -> None:
        parameters = matrices()
        optimizer = make(list(parameters.values()))
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=5, **named)
        history = train(parameters, optimizer, noise, range(140), seen)
        for norm, expected in reference(history, decay, 5, first).items():
            found = noise.state_dict()[norm]
            for name, value in expected.items():
                self.assertAlmostEqual(found[name] / value, 1, delta=2e-5, msg=f"{norm} {name}")
            self.assertAlmostEqual(getattr(noise, norm).value / _core.dual_noise_scale(expected)[0], 1, delta=1e-4)

    def test_adamw(self):
        self.check(lambda parameters: torch.optim.AdamW(parameters, betas=(0.9, 0.99)), 0.9)

    def test_adam_whose_average_includes_weight_decay(self):
        self.check(lambda parameters: torch.optim.Adam(parameters, lr=0.02, betas=(0.8, 0.99), weight_decay=0.3), 0.8,
                   seen=lambda g, p: g + 0.3 * p)

    def test_sgd_once_the_start_of_its_momentum_is_forgotten(self):
        first = math.ceil(math.log(0.01) / math.log(0.9))
        self.check(lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9), 0.9, first)
        options = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.3, "maximize": True}
        self.check(lambda parameters: torch.optim.SGD(parameters, **options), 0.9, first, lambda g, p: 0.3 * p - g)

    @unittest.skipUnless(hasattr(torch.optim, "Muon"), "this PyTorch has no Muon")
    def test_muon_of_pytorch(self):
        self.check(lambda parameters: torch.optim.Muon(parameters, lr=0.01, momentum=0.95), 0.95, 90)

    def test_buffers_of_other_optimizers(self):
        self.check(SumMuon, 0.9, 44, buffer_is_average=False)

    def test_a_dampening_makes_an_average_of_the_buffer(self):
        parameters = matrices()
        optimizer = torch.optim.SGD(parameters.values(), lr=0.0, momentum=0.9, dampening=0.9)
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=5)
        expected = reference(train(parameters, optimizer, noise, range(300)), 0.9, 5, 44)
        # It begins with the whole first gradient, which has some weight left in the first measurements.
        self.assertAlmostEqual(noise.state_dict()["sign"]["noise"] / expected["sign"]["noise"], 1, delta=1e-3)


class Truth(unittest.TestCase):
    """A linear regression with the identity as inputs and noisy outputs, whose weights stay where they are."""

    SIZE, NOISE, SIGNAL = 48, 0.05, 0.01

    def measured(self, make, batch: int, steps: int) -> copus.DualNoise:
        generator = torch.Generator().manual_seed(3)
        model = nn.Linear(self.SIZE, self.SIZE, bias=False)
        target = model.weight.detach() + self.SIGNAL * torch.randn(self.SIZE, self.SIZE, generator=generator)
        optimizer = make(model.parameters())
        noise = copus.DualNoise(model.named_parameters(), optimizer, batch=batch, interval=8)
        for _ in range(steps):
            samples = target.T + self.NOISE * torch.randn(batch, self.SIZE, self.SIZE, generator=generator)
            model.zero_grad()
            loss = (model(torch.eye(self.SIZE)) - samples).square().sum() / (2 * batch)
            loss.backward()
            noise.step()
            optimizer.step()
        self.gradient = target - model.weight.detach()
        return noise

    def check(self, make, steps: int) -> None:
        found = [self.measured(make, batch, steps) for batch in (8, 64)]
        # E|noise| of independent normal elements: the mean of their sizes, and the quarter-circle law.
        truth = {
            "sign": self.SIZE**2 * math.sqrt(2 / math.pi) / self.gradient.abs().sum().item(),
            "spectral": self.SIZE**1.5 * 8 / (3 * math.pi) / torch.linalg.svdvals(self.gradient).sum().item(),
        }
        for norm, ratio in truth.items():
            small, large = (getattr(noise, norm) for noise in found)
            for each in (small, large):
                self.assertTrue(each.low <= (self.NOISE * ratio) ** 2 <= each.high, f"{norm}: {each}, {ratio}")
                self.assertLess(each.high / each.low, 1.5)
            self.assertTrue(small.low <= large.value <= small.high, f"{norm}: {small} and {large}")

    def test_both_batches_find_it_by_adamw(self):
        self.check(lambda parameters: torch.optim.AdamW(parameters, lr=0.0), 400)

    def test_both_batches_find_it_by_momentum(self):
        self.check(lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9), 440)


class Resuming(unittest.TestCase):
    def test_continues_exactly(self):
        def job():
            parameters = matrices()
            optimizer = torch.optim.SGD(parameters.values(), lr=0.01, momentum=0.9)
            return parameters, optimizer, copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=4)

        whole = job()
        train(*whole, range(100))
        first = job()
        train(*first, range(61))
        second = job()
        for name, parameter in second[0].items():
            parameter.data.copy_(first[0][name].data)
        second[1].load_state_dict(first[1].state_dict())
        second[2].load_state_dict(json.loads(json.dumps(first[2].state_dict())))
        train(*second, range(61, 100))
        self.assertEqual(second[2].state_dict(), whole[2].state_dict())
        self.assertEqual(second[2].spectral, whole[2].spectral)
        self.assertGreater(whole[2].sign.high, whole[2].sign.low)

    def test_without_a_state_it_waits_until_old_gradients_are_forgotten(self):
        parameters = matrices()
        optimizer = torch.optim.SGD(parameters.values(), lr=0.01, momentum=0.9)
        train(parameters, optimizer, copus.DualNoise(parameters.items(), optimizer, batch=BATCH), range(10))
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=1)
        train(parameters, optimizer, noise, range(44))
        self.assertEqual(noise.state_dict()["sign"], {})
        train(parameters, optimizer, noise, range(2))
        self.assertIsNotNone(noise.sign)


def shard(model: nn.Sequential, kind: str) -> tuple[nn.Module, int, int]:
    """Returns the model in a kind of parallelism, this rank's share of the samples and the number of shares."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model), rank, ranks
    if kind == "fsdp":
        return fully_shard(model), rank, ranks
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if kind == "fsdp x tp":
        fully_shard(model, mesh=mesh["dp"])
    return model, mesh["dp"].get_local_rank(), ranks // 2


def train_in_parallel(*kinds: str) -> list[dict]:
    """What some steps of a small model measure, in each kind of parallelism; "" is a single process."""
    states = []
    for kind in kinds:
        torch.manual_seed(5)
        model: nn.Module = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
        model, share, shares = shard(model, kind) if kind else (model, 0, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        noise = copus.DualNoise(model.named_parameters(), optimizer, batch=BATCH, interval=1)
        for step in range(4):
            inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(inputs[share::shares]).square().mean().backward()
            noise.step()
            optimizer.step()
        states.append(noise.state_dict())
    return states


class Calls(unittest.TestCase):
    def test_every_rank_measures_the_same_in_any_parallelism(self):
        [expected] = train_in_parallel("")
        for ranks, kinds in ((2, ("ddp", "fsdp", "tp")), (4, ("fsdp x tp",))):
            for states in run_on_ranks(ranks, train_in_parallel, *kinds):
                for kind, state in zip(kinds, states):
                    for name, value in expected["spectral"].items():
                        self.assertAlmostEqual(state["spectral"][name] / value, 1, delta=1e-4, msg=f"{kind} {name}")

    def test_measures_some_matrices_in_turn(self):
        parameters = {f"layer.{i}.weight": nn.Parameter(torch.randn(2, 3)) for i in range(33)}
        parameters |= {"embed_tokens.weight": nn.Parameter(torch.randn(2, 3)), "norm": nn.Parameter(torch.ones(3))}
        optimizer = torch.optim.AdamW(parameters.values())
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=2)
        train(parameters, optimizer, noise, range(3))
        with mock.patch.object(dual_noise, "_dual_norms", wraps=dual_noise._dual_norms) as measure:
            counts = []
            for step in range(4):
                train(parameters, optimizer, noise, range(step, step + 1))
                counts.append(measure.call_count)
        self.assertEqual(counts, [17, 17, 33, 33])

    def test_ignores_a_step_that_is_not_finite(self):
        parameters = matrices()
        optimizer = torch.optim.AdamW(parameters.values())
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=1)
        train(parameters, optimizer, noise, range(5))
        before = noise.state_dict()
        parameters["tall"].grad.fill_(float("inf"))
        noise.step()
        self.assertEqual(noise.state_dict(), before | {"steps": 6})

    def test_a_step_may_have_another_batch(self):
        parameters = matrices()
        optimizer = torch.optim.AdamW(parameters.values())
        pair = [copus.DualNoise(parameters.items(), optimizer, batch=batch, interval=1) for batch in (4, 8)]
        train(parameters, optimizer, pair[0], range(1))
        pair[0].step(batch=8)
        pair[0].step(batch=8)
        pair[1].step()
        pair[1].step()
        self.assertEqual(pair[0].sign, pair[1].sign)
        self.assertEqual(pair[0].state_dict()["steps"], 3)


class Mistakes(unittest.TestCase):
    def refused(self, message: str, call) -> None:
        with self.assertRaisesRegex(copus.UserError, message) as raised:
            call()
        self.assertIn("expected", str(raised.exception))

    def test_arguments(self):
        parameters = matrices()
        values = list(parameters.values())
        adamw = torch.optim.AdamW(values)
        make = copus.DualNoise
        self.refused(r"batch=0", lambda: make(parameters.items(), adamw, batch=0))
        self.refused(r"interval=0\.5", lambda: make(parameters.items(), adamw, batch=1, interval=0.5))
        self.refused(r"Adagrad has no known average", lambda: make(parameters.items(), torch.optim.Adagrad(values), 1))
        self.refused(r"SGD has momentum 0", lambda: make(parameters.items(), torch.optim.SGD(values, lr=1), 1))
        self.refused(r"SumMuon has no known.*buffer_is_average", lambda: make(parameters.items(), SumMuon(values), 1))
        self.refused(r"optimizer=None", lambda: make(parameters.items(), None, 1))
        self.refused(r"named_parameters\(\)", lambda: make(values, adamw, 1))
        self.refused(r"named_parameters\(\)", lambda: make(nn.Linear(2, 2), adamw, 1))
        self.refused(r"there is no matrix", lambda: make([("norm", nn.Parameter(torch.ones(3)))], adamw, 1))
        self.refused(r"there is no matrix", lambda: make(parameters.items(), adamw, 1, select=lambda name, _: False))
        self.refused(r"step\(batch=-1\)", lambda: make(parameters.items(), adamw, 1).step(batch=-1))

    def test_sparse_gradients(self):
        embedding = nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1, momentum=0.1)
        noise = copus.DualNoise([("table", embedding.weight)], optimizer, batch=1, interval=1)

        def steps():
            for _ in range(4):
                embedding(torch.tensor([1, 2])).sum().backward()
                noise.step()
                optimizer.step()

        with self.assertRaisesRegex(copus.UserError, "table is sparse.*sparse=False"):
            steps()

    def test_states_of_an_optimizer(self):
        parameters = matrices()
        optimizer = torch.optim.AdamW(parameters.values())
        noise = copus.DualNoise(parameters.items(), optimizer, batch=1, interval=1)
        train(parameters, optimizer, noise, range(1))
        for state in optimizer.state.values():
            del state["step"]
        self.refused(r"AdamW keeps only exp_avg, exp_avg_sq of", noise.step)

    def test_states_to_load(self):
        parameters = matrices()
        noise = copus.DualNoise(parameters.items(), torch.optim.AdamW(parameters.values()), batch=1)
        good = noise.state_dict()
        self.refused("was given None", lambda: noise.load_state_dict(None))
        self.refused("of version 1", lambda: noise.load_state_dict(good | {"version": 2}))
        self.refused("damaged", lambda: noise.load_state_dict(good | {"sign": None}))
        self.refused("no number square_weight", lambda: noise.load_state_dict(good | {"sign": {"weight": 1.0}}))


if __name__ == "__main__":
    unittest.main()
