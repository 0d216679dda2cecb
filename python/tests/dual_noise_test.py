"""Noise scales in dual norms equal those of float64, and the truth while the weights move, in any parallelism."""

from __future__ import annotations

import contextlib
import io
import json
import math
import pathlib
import re
import unittest
from unittest import mock

import torch
from torch import nn

import copus
from copus import _core, dual_noise
from processes import run_on_ranks

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/adviser.md"
BATCH = 8
SHARE = 0.25
EPSILON = 1e-3
NORMS = ("sign", "spectral", "preconditioned")
SHAPES = {"wide": (6, 11), "tall": (13, 5)}


def matrices() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def adamw(parameters: dict) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters.values(), eps=EPSILON, betas=(0.9, 0.99))


def train(parameters: dict, optimizer, noise: copus.DualNoise, steps: range, factor: float = 1.0) -> list[list]:
    """Trains by random gradients. Returns each step's, for each matrix: the part's, the others' and exp_avg_sq."""
    history = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        seen = []
        for parameter in parameters.values():
            part, others = (0.3 + step / 100 + torch.randn(2, *parameter.shape, generator=generator)).unbind()
            parameter.grad = factor * SHARE * part
            squares = optimizer.state.get(parameter, {}).get("exp_avg_sq")
            seen.append([part.double(), others.double(), None if squares is None else squares.double()])
        noise.part(share=SHARE)
        for parameter, (_, others, _) in zip(parameters.values(), seen):
            parameter.grad += factor * (1 - SHARE) * others.float()
        noise.step(loss_scale=factor)
        for parameter in parameters.values():
            parameter.grad /= factor
        optimizer.step()
        history.append(seen)
    return history


def reference(history: list[list], interval: int) -> dict[str, dict[str, float]]:
    """The averages that measurements in float64 by singular value decompositions give."""
    averages: dict[str, dict[str, float]] = {norm: {} for norm in NORMS}
    for matrices_of_step in history[interval - 1 :: interval]:
        noises, signals, squared_mean = dict.fromkeys(NORMS, 0.0), dict.fromkeys(NORMS, 0.0), 0.0
        for gradient, mean, squares in matrices_of_step:
            noise = gradient - mean
            left, _, right = torch.linalg.svd(mean, full_matrices=False)
            noises["sign"] += noise.abs().sum().item()
            signals["sign"] += (gradient * mean.sign()).sum().item()
            noises["spectral"] += torch.linalg.svdvals(noise).sum().item()
            signals["spectral"] += (gradient * (left @ right)).sum().item()
            if squares is not None:
                divisors = squares.sqrt() + EPSILON
                noises["preconditioned"] += (noise.square() / divisors).sum().item()
                signals["preconditioned"] += (gradient * mean / divisors).sum().item()
                squared_mean += (mean.square() / divisors).sum().item()
        if squared_mean > 0:
            noises["preconditioned"] **= 0.5
            signals["preconditioned"] /= squared_mean**0.5
        for norm in NORMS if squared_mean > 0 else NORMS[:2]:
            averages[norm] = _core.observe_dual_noise(
                averages[norm], noises[norm], signals[norm], BATCH * SHARE, SHARE / (1 - SHARE)
            )
    return averages


class EqualsFloat64(unittest.TestCase):
    def check(self, noise: copus.DualNoise, expected: dict[str, dict[str, float]]) -> None:
        for norm, average in expected.items():
            found = noise.state_dict()[norm]
            self.assertEqual(found.keys(), average.keys())
            for name, value in average.items():
                self.assertAlmostEqual(found[name] / value, 1, delta=2e-5, msg=f"{norm} {name}")
            if average:
                self.assertAlmostEqual(getattr(noise, norm).value / _core.dual_noise_scale(average)[0], 1, delta=1e-4)

    def test_by_singular_values_and_with_a_gradient_scaler(self):
        for factor in (1.0, 1024.0):
            parameters = matrices()
            optimizer = adamw(parameters)
            noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=5)
            self.check(noise, reference(train(parameters, optimizer, noise, range(140), factor), 5))

    def test_second_moments_are_there_from_the_second_step(self):
        parameters = matrices()
        optimizer = adamw(parameters)
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=1)
        history = train(parameters, optimizer, noise, range(1))
        self.assertEqual(noise.state_dict()["preconditioned"], {})
        history += train(parameters, optimizer, noise, range(1, 4))
        self.check(noise, reference(history, 1))

    def test_without_second_moments(self):
        for is_given in (False, True):
            parameters = matrices()
            optimizer = torch.optim.SGD(parameters.values(), lr=0.01, momentum=0.9)
            noise = copus.DualNoise(parameters.items(), optimizer if is_given else None, batch=BATCH, interval=2)
            self.check(noise, reference(train(parameters, optimizer, noise, range(8)), 2))
            self.assertIsNone(noise.preconditioned)


class TruthWhileTraining(unittest.TestCase):
    """A linear regression with the identity as inputs and noisy outputs, at a learning rate that uses up the signal.

    The gradient of one sample is W - target plus independent normal noise of size 1. After a step of SGD with rate r
    and batch B, the stationary W - target has the variance r / (2 - r) / B, so the noise scale is B (2 - r) / r.
    """

    SIZE, WHOLE_BATCH, START, DECAY = 48, 64, 40, 0.9

    def check(self, make, parts: int, truth: float | None = None) -> None:
        generator = torch.Generator().manual_seed(3)
        model = nn.Linear(self.SIZE, self.SIZE, bias=False)
        weight, target = model.weight, model.weight.detach().clone()
        optimizer = make(model.parameters())
        noise = copus.DualNoise(model.named_parameters(), optimizer, batch=self.WHOLE_BATCH, interval=2)
        of_one, of_mean = {norm: 0.0 for norm in NORMS}, {norm: 0.0 for norm in NORMS}
        average, by_average = torch.zeros_like(target), {}
        for step in range(self.START + 160):
            is_measured = step >= self.START and noise.is_due
            model.zero_grad()
            for index in range(parts):
                outputs = torch.randn(self.SIZE, self.SIZE, generator=generator) * (parts / self.WHOLE_BATCH) ** 0.5
                ((model(torch.eye(self.SIZE)) - target.T - outputs).square().sum() / 2 / parts).backward()
                if index == 0 and step >= self.START:
                    noise.part(share=1 / parts)
            if is_measured:
                squares = optimizer.state[weight].get("exp_avg_sq") if step else None
                self.add_truth(weight.detach() - target, squares, of_one, of_mean)
                mean = average / (1 - self.DECAY**step)
                by_average = _core.observe_dual_noise(
                    by_average, (weight.grad - mean).abs().sum().item(), (weight.grad * mean.sign()).sum().item(),
                    self.WHOLE_BATCH, (1 - self.DECAY) / (1 + self.DECAY),
                )  # fmt: skip
            if step >= self.START:
                noise.step()
            average = average.lerp(weight.grad, 1 - self.DECAY)
            optimizer.step()
        for norm in NORMS:
            if of_mean[norm] == 0:
                continue
            measured, ratio = getattr(noise, norm), (of_one[norm] / of_mean[norm]) ** 2
            self.assertTrue(measured.low <= ratio <= measured.high, f"{norm}: {measured}, {ratio}")
            self.assertLess(measured.high / measured.low, 1.4)
            if truth is not None:
                self.assertAlmostEqual(measured.value / truth, 1, delta=0.15, msg=norm)
        # The average of earlier gradients, with which a gradient could be compared instead, points the wrong way.
        self.assertLess(by_average["signal"], 0)
        self.assertIsNone(_core.dual_noise_scale(by_average))

    def add_truth(self, gradient, squares, of_one: dict[str, float], of_mean: dict[str, float]) -> None:
        """Adds the norms of a single sample's noise and of the true gradient."""
        of_mean["sign"] += gradient.abs().sum().item()
        of_mean["spectral"] += torch.linalg.svdvals(gradient).sum().item()
        # Of independent normal elements: the mean of their sizes, and the quarter-circle law.
        of_one["sign"] += self.SIZE**2 * math.sqrt(2 / math.pi)
        of_one["spectral"] += self.SIZE**1.5 * 8 / (3 * math.pi)
        if squares is not None:
            divisors = squares.sqrt() + 1e-8
            of_mean["preconditioned"] += (gradient.square() / divisors).sum().sqrt().item()
            of_one["preconditioned"] += (1 / divisors).sum().sqrt().item()

    def test_by_sgd(self):
        self.check(lambda parameters: torch.optim.SGD(parameters, lr=0.5), parts=4, truth=3 * self.WHOLE_BATCH)

    def test_by_adamw(self):
        self.check(lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0), parts=2)


class Documentation(unittest.TestCase):
    def test_its_loop_runs_and_steps_of_one_micro_batch_are_cut_in_two(self):
        section = DOCUMENT.read_text(encoding="utf-8").split("## Noise scales in dual norms")[1]
        block = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
        cut = re.search(r"`(micro_batches = [^`]*is_due[^`]*)`", section).group(1)
        one = block.replace("for micro_batches in steps:", f"for tokens in steps:\n    {cut}")
        self.assertNotEqual(one, block)
        whole = torch.randn(4, 512, 5, generator=torch.Generator().manual_seed(2))
        for loop, steps in ((block, [step.chunk(8) for step in whole]), (one, whole)):
            model = nn.Linear(5, 3)
            names = {"copus": copus, "torch": torch, "model": model, "steps": [*steps] * 16}
            names["optimizer"] = torch.optim.AdamW(model.parameters())
            names["loss_of"] = lambda model, tokens: (model(tokens) - tokens[:, :3] - 1).square().mean()
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(loop, names)
            self.assertEqual(printed.getvalue().count("DualNoiseScale(value="), 3)
            self.assertEqual(names["noise"].state_dict()["steps"], 64)


class Resuming(unittest.TestCase):
    def test_continues_exactly(self):
        def job():
            parameters = matrices()
            optimizer = adamw(parameters)
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
        self.assertGreater(whole[2].preconditioned.high, whole[2].preconditioned.low)


PARTS = 3
KINDS = {2: ("ddp", "ddp, no_sync", "fsdp", "fsdp, first and last reduced", "tp"), 4: ("fsdp x tp", "hsdp", "stages")}


def shard(model: nn.Sequential, kind: str) -> tuple[nn.Module, int, int]:
    """Returns the model in a kind of parallelism, this rank's share of the samples and the number of shares."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if kind.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(model), rank, ranks
    if kind.startswith("fsdp,") or kind == "fsdp":
        return fully_shard(model), rank, ranks
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    if kind == "stages":  # the pairs along "tp" train something else each
        return nn.parallel.DistributedDataParallel(model, process_group=mesh["tp"].get_group()), rank % 2, 2
    if kind == "hsdp":
        return fully_shard(model, mesh=mesh), rank, ranks
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
        size = torch.distributed.get_rank() // 2 + 1 if kind == "stages" else 1
        optimizer = torch.optim.AdamW(model.parameters(), eps=EPSILON)
        noise = copus.DualNoise(
            model.named_parameters(), optimizer, batch=PARTS * BATCH, interval=1,
            group=model.process_group if kind == "stages" else None,
        )  # fmt: skip
        for step in range(4):
            inputs = size * torch.randn(PARTS, BATCH, 6, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            for index in range(PARTS):
                is_last = index == PARTS - 1
                if kind == "fsdp, first and last reduced":
                    model.set_requires_gradient_sync(index == 0 or is_last)
                is_local = kind in ("ddp, no_sync", "stages") and not is_last
                with model.no_sync() if is_local else contextlib.nullcontext():
                    (model(inputs[index][share::shares]).square().mean() / PARTS).backward()
                if index == 0:
                    noise.part(share=1 / PARTS)
            noise.step()
            optimizer.step()
        states.append(noise.state_dict())
    return states


def refused_without_reduction() -> str:
    """The message where FSDP2 has not reduced the part's gradients."""
    model, _, _ = shard(nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4)), "fsdp")
    noise = copus.DualNoise(model.named_parameters(), batch=BATCH, interval=1)
    model.set_requires_gradient_sync(False)
    model(torch.ones(2, 6)).sum().backward()
    try:
        noise.part(share=0.5)
    except copus.UserError as error:
        return str(error)
    return ""


class Parallelism(unittest.TestCase):
    def test_every_rank_measures_the_same_in_any(self):
        [expected] = train_in_parallel("")
        for ranks, kinds in KINDS.items():
            for rank, states in enumerate(run_on_ranks(ranks, train_in_parallel, *kinds)):
                for kind, state in zip(kinds, states):
                    if kind == "stages" and rank >= 2:
                        self.assertNotAlmostEqual(state["sign"]["noise"] / expected["sign"]["noise"], 1, delta=0.1)
                        continue
                    for norm in NORMS:
                        for name, value in expected[norm].items():
                            self.assertAlmostEqual(state[norm][name] / value, 1, delta=1e-4,
                                                   msg=f"{kind} {norm} {name}")  # fmt: skip

    def test_fsdp_has_to_reduce_the_part(self):
        for message in run_on_ranks(2, refused_without_reduction):
            self.assertIn("set_requires_gradient_sync(False)", message)


class Calls(unittest.TestCase):
    def test_measures_some_matrices_in_turn(self):
        parameters = {f"layer.{i}.weight": nn.Parameter(torch.randn(2, 3)) for i in range(33)}
        parameters |= {"embed_tokens.weight": nn.Parameter(torch.randn(2, 3)), "norm": nn.Parameter(torch.ones(3))}
        optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
        noise = copus.DualNoise(parameters.items(), batch=BATCH, interval=2)
        train(parameters, optimizer, noise, range(3))
        with mock.patch.object(dual_noise, "_dual_norms", wraps=dual_noise._dual_norms) as measure:
            counts, due = [], []
            for step in range(4):
                due.append(noise.is_due)
                train(parameters, optimizer, noise, range(step, step + 1))
                counts.append(measure.call_count)
        self.assertEqual(counts, [17, 17, 33, 33])
        self.assertEqual(due, [True, False, True, False])

    def test_training_is_bitwise_the_same(self):
        weights = []
        for interval in (1, 1000):
            parameters = matrices()
            optimizer = adamw(parameters)
            train(parameters, optimizer, copus.DualNoise(parameters.items(), optimizer, batch=8, interval=interval),
                  range(5))  # fmt: skip
            weights.append(torch.cat([parameter.detach().flatten() for parameter in parameters.values()]))
        self.assertTrue(torch.equal(*weights))

    def test_a_matrix_without_a_gradient_counts_as_zero(self):
        def measured(idle) -> dict:
            parameters = matrices()
            noise = copus.DualNoise(parameters.items(), batch=BATCH, interval=1)
            parameters["tall"].grad, parameters["wide"].grad = torch.ones(13, 5), idle(6, 11)
            noise.part(share=SHARE)
            parameters["tall"].grad = torch.full((13, 5), 3.0)
            noise.step()
            parameters["tall"].grad = None
            parameters["wide"].grad = torch.ones(6, 11)
            noise.part(share=SHARE)
            noise.step()
            return noise.state_dict()

        self.assertEqual(measured(lambda *shape: None), measured(torch.zeros))

    def test_ignores_a_step_that_is_not_finite(self):
        parameters = matrices()
        optimizer = adamw(parameters)
        noise = copus.DualNoise(parameters.items(), optimizer, batch=BATCH, interval=1)
        train(parameters, optimizer, noise, range(5))
        before = noise.state_dict()
        noise.part(share=SHARE)
        parameters["tall"].grad.fill_(float("inf"))
        noise.step()
        self.assertEqual(noise.state_dict(), before | {"steps": 6})

    def test_a_step_may_have_another_batch(self):
        parameters = matrices()
        optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
        pair = [copus.DualNoise(parameters.items(), batch=batch, interval=1) for batch in (4, 8)]
        train(parameters, optimizer, pair[0], range(1))
        train(parameters, optimizer, pair[1], range(1))
        for noise, batch in zip(pair, (8, None)):
            noise.load_state_dict(noise.state_dict() | {"sign": {}})
            for _ in range(2):
                noise.part(share=SHARE)
                noise.step(batch=batch)
        self.assertEqual(pair[0].state_dict()["sign"], pair[1].state_dict()["sign"])
        self.assertNotEqual(pair[0].state_dict()["spectral"], pair[1].state_dict()["spectral"])


class Mistakes(unittest.TestCase):
    def refused(self, message: str, call) -> None:
        with self.assertRaisesRegex(copus.UserError, message) as raised:
            call()
        self.assertIn("expected", str(raised.exception))

    def test_arguments(self):
        parameters = matrices()
        values = list(parameters.values())
        make = copus.DualNoise
        self.refused(r"batch=0", lambda: make(parameters.items(), batch=0))
        self.refused(r"interval=0\.5", lambda: make(parameters.items(), batch=1, interval=0.5))
        self.refused(r"optimizer=3", lambda: make(parameters.items(), 3, batch=1))
        self.refused(r"updates none of the matrices", lambda: make(parameters.items(), adamw(matrices()), batch=1))
        self.refused(r"named_parameters\(\)", lambda: make(values, batch=1))
        self.refused(r"named_parameters\(\)", lambda: make(nn.Linear(2, 2), batch=1))
        self.refused(r"there is no matrix", lambda: make([("norm", nn.Parameter(torch.ones(3)))], batch=1))
        self.refused(r"there is no matrix", lambda: make(parameters.items(), batch=1, select=lambda name, _: False))
        noise = make(parameters.items(), batch=1, interval=1)
        self.refused(r"step\(batch=-1\)", lambda: noise.step(batch=-1))
        self.refused(r"step\(loss_scale=0\)", lambda: noise.step(loss_scale=0))
        self.refused(r"part\(share=0\)", lambda: noise.part(share=0))
        self.refused(r"part\(share=1.0\).*two micro-batches", lambda: noise.part(share=1))

    def test_order_of_calls(self):
        parameters = matrices()
        noise = copus.DualNoise(parameters.items(), batch=1, interval=2)
        noise.part(share=1)
        noise.step()
        self.refused(r"step 2 is measured, but part\(\) was not called", noise.step)
        self.refused(r"part: no measured matrix has a gradient in step 2", lambda: noise.part(share=0.5))
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        noise.part(share=0.5)
        self.refused(r"part was called twice in step 2", lambda: noise.part(share=0.5))
        for parameter in parameters.values():
            parameter.grad = None
        self.refused(r"step: no measured matrix has a gradient.*before zero_grad", noise.step)

    def test_sparse_gradients(self):
        embedding = nn.Embedding(5, 3, sparse=True)
        noise = copus.DualNoise([("table", embedding.weight)], batch=1, interval=1)
        embedding(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex(copus.UserError, "table is sparse.*sparse=False"):
            noise.part(share=0.5)

    def test_states_to_load(self):
        parameters = matrices()
        noise = copus.DualNoise(parameters.items(), batch=1)
        good = noise.state_dict()
        self.refused("was given None", lambda: noise.load_state_dict(None))
        self.refused("of version 1", lambda: noise.load_state_dict(good | {"version": 2}))
        self.refused("damaged", lambda: noise.load_state_dict(good | {"sign": None}))
        self.refused("no number square_weight", lambda: noise.load_state_dict(good | {"sign": {"weight": 1.0}}))


if __name__ == "__main__":
    unittest.main()
