"""The adviser beside real trainers: {plain, Accelerate, Trainer, Lightning} x {1, 2, 3 ranks} x {even, uneven, short last
step} x {fresh, resumed with another batch}. Training is bitwise as without it, and what it measures is what gradients in
float64 of the micro-batches that each rank trained give. Packages that are missing are skipped by name.

Ranks and trainers may be chosen: MATRIX_RANKS=1,2 MATRIX_TRAINERS=plain,lightning
"""

import contextlib
import importlib.util
import io
import itertools
import os
import pathlib
import socket
import tempfile
import unittest
import warnings
from unittest import mock

import torch
from torch import nn

import copus
import copus.adviser

ACCUMULATION, STEPS, FEATURES, LEARNING_RATE = 2, 6, 6, 0.01
KINDS = ("even", "uneven", "short")
NEEDS = {"plain": (), "accelerate": ("accelerate",), "trainer": ("accelerate", "transformers"),
         "lightning": ("lightning",)}  # fmt: skip
CORE = copus.adviser._core.Adviser


class Model(nn.Module):
    """Keeps what each micro-batch was, and the parameters that it met."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
        self.seen = []

    def forward(self, x):
        self.seen.append((x.clone(), torch.cat([each.detach().flatten() for each in self.parameters()])))
        return {"loss": (self.layers(x) - x.sum(1, keepdim=True)).square().mean()}


class Core:
    told: list[tuple] = []

    def __init__(self, *given):
        self._core = CORE(*given)

    def __getattr__(self, name):
        return getattr(self._core, name)

    def step(self, samples, seconds, norm, small_batch, small_squared_norm, *rest):
        self.told.append((norm, small_batch, small_squared_norm))
        return self._core.step(samples, seconds, norm, small_batch, small_squared_norm, *rest)


def rows_of(kind: str, batch: int, steps: int, ranks: int) -> list[dict]:
    count = batch * ACCUMULATION * ranks * steps + (1 if kind == "short" else 0)
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(FEATURES, generator=generator)} for _ in range(count)]


class Collate:
    """Of an uneven job's micro-batches every other one is short."""

    def __init__(self, kind: str):
        self.kind, self.calls = kind, 0

    def __call__(self, rows):
        self.calls += 1
        short = self.kind == "uneven" and self.calls % 2 == 0 and len(rows) > 1
        return {"x": torch.stack([row["x"] for row in (rows[:-1] if short else rows)])}


def train_plainly(model, kind, batch, adviser_state, advised, folder, accelerator=None):
    from torch.utils.data import DataLoader, DistributedSampler

    ranks = torch.distributed.get_world_size()
    rows, adviser = rows_of(kind, batch, STEPS, ranks), None
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    if accelerator is None:
        loader = DataLoader(rows, batch, collate_fn=Collate(kind), sampler=DistributedSampler(rows, shuffle=False))
        trained = nn.parallel.DistributedDataParallel(model)
    else:
        loader = DataLoader(rows, batch, collate_fn=Collate(kind))
        trained, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if advised:
        adviser = copus.Adviser(batch=batch * ACCUMULATION * ranks, sequence_length=1, directory=None)
        if adviser_state is not None:
            adviser.load_state_dict(adviser_state)
    batches = list(loader)
    for begin in range(0, len(batches), ACCUMULATION):
        parts = batches[begin : begin + ACCUMULATION]
        optimizer.zero_grad()
        for index, part in enumerate(parts):
            no_sync = getattr(trained, "no_sync", contextlib.nullcontext)
            with contextlib.nullcontext() if index == len(parts) - 1 else no_sync():
                (trained(part["x"])["loss"] / ACCUMULATION).backward()
            if advised and index == 0:
                adviser.first_micro_batch(trained.parameters(), samples=len(part["x"]))
        norm = nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        if advised:
            adviser.step(norm, samples=sum(len(part["x"]) for part in parts) * ranks, seconds=1.0)
    state = adviser.state_dict() if advised else None
    if advised:
        adviser.close()
    return state


def train_by_accelerate(model, kind, batch, adviser_state, advised, folder):
    from accelerate import Accelerator

    return train_plainly(model, kind, batch, adviser_state, advised, folder, Accelerator(cpu=True))


def train_by_trainer(model, kind, batch, resumed, advised, folder):
    from transformers import Trainer, TrainingArguments

    from copus.integrations.hugging_face import AdviserCallback

    ranks = torch.distributed.get_world_size()
    args = TrainingArguments(
        output_dir=folder, use_cpu=True, ddp_backend="gloo", report_to=[], disable_tqdm=True, logging_steps=1000,
        per_device_train_batch_size=batch, gradient_accumulation_steps=ACCUMULATION, learning_rate=LEARNING_RATE,
        optim="sgd", lr_scheduler_type="constant", max_grad_norm=1.0, num_train_epochs=2 if resumed else 1, seed=5,
        save_strategy="no" if resumed else "epoch", remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=rows_of(kind, batch, STEPS, ranks), data_collator=Collate(kind))
    if advised:
        trainer.add_callback(AdviserCallback(trainer, sequence_length=1, directory=None))
    trainer.train(resume_from_checkpoint=bool(resumed) or None)
    return True


def train_by_lightning(model, kind, batch, resumed, advised, folder):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    from copus.integrations.lightning import AdviserCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(batch["x"])["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)

    ranks = torch.distributed.get_world_size()
    callbacks = [AdviserCallback(sequence_length=1, directory=None)] if advised else []
    trainer = lightning.Trainer(
        accelerator="cpu", devices=ranks, strategy=DDPStrategy(process_group_backend="gloo"), logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, callbacks=callbacks,
        accumulate_grad_batches=ACCUMULATION, gradient_clip_val=1.0, max_epochs=2 if resumed else 1,
    )  # fmt: skip
    loader = DataLoader(rows_of(kind, batch, STEPS, ranks), batch, collate_fn=Collate(kind))
    trainer.fit(Module(), loader, ckpt_path=f"{folder}/last.ckpt" if resumed else None, weights_only=False)
    trainer.save_checkpoint(f"{folder}/last.ckpt")
    return True


TRAIN = {"plain": train_plainly, "accelerate": train_by_accelerate, "trainer": train_by_trainer,
         "lightning": train_by_lightning}  # fmt: skip


def run_cases(rank: int, ranks: int, port: int, trainer: str, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                   "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "matrix",
                   "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    results = {}
    for kind in KINDS:
        trained = {}
        for advised in (False, True):
            case, state, model = f"{folder}/{kind}-{advised}", None, Model()
            for phase, batch in (("fresh", 2), ("resumed", 4)):
                Core.told, model.seen = [], []
                with (mock.patch.object(copus.adviser._core, "Adviser", Core),
                      contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True) as caught):
                    warnings.simplefilter("always")
                    state = TRAIN[trainer](model, kind, batch, state, advised, case)
                said = [str(each.message) for each in caught if each.category is copus.AdviserWarning]
                trained[phase, advised] = [each.detach().clone() for each in model.parameters()]
                if advised:
                    is_same = all(map(torch.equal, trained[phase, False], trained[phase, True]))
                    results[kind, phase] = (is_same, model.seen, Core.told, said)
    torch.save(results, pathlib.Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def gradient(x: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    model, begin = Model().double(), 0
    for parameter in model.parameters():
        parameter.data = flat[begin : begin + parameter.numel()].view_as(parameter).double()
        begin += parameter.numel()
    parts = torch.autograd.grad(model(x.double())["loss"], list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


class Matrix(unittest.TestCase):
    def check(self, of_ranks: list, kind: str) -> None:
        (_, _, told, said), ranks = of_ranks[0], len(of_ranks)
        for is_same, *_ in of_ranks:
            self.assertTrue(is_same)
        seen = [each[1] for each in of_ranks]
        steps = []
        for begin in range(0, len(seen[0]), ACCUMULATION):
            parts = [rank[begin : begin + ACCUMULATION] for rank in seen]
            whole = sum(gradient(x, flat) for rank in parts for x, flat in rank) / (ranks * ACCUMULATION)
            sizes = {len(x) for rank in parts for x, _ in rank}
            first = sum(float(gradient(*rank[0]).square().sum()) for rank in parts) / ranks
            steps.append((float(whole.norm()), sizes, len(parts[0][0][0]), first))
        measured = 0
        for norm, small_batch, small_squared_norm in told:
            expected = min(steps, key=lambda step: abs(step[0] - norm))
            self.assertAlmostEqual(norm / expected[0], 1, delta=1e-4)
            if small_batch is None:
                continue
            measured += 1
            self.assertEqual((small_batch, expected[1]), (expected[2], {expected[2]}))
            self.assertAlmostEqual(small_squared_norm / expected[3], 1, delta=1e-3)
        # Fewer steps than are looked at before anything is said of them.
        self.assertTrue(all(kind == "uneven" and "holds no measurements" in each for each in said), said)
        if kind == "uneven":
            self.assertEqual(measured, 0, told)
        else:
            self.assertGreaterEqual(measured, STEPS - 1)  # what the others' last step was, nobody waits for

    def run_matrix(self, trainer: str) -> None:
        missing = [name for name in NEEDS[trainer] if importlib.util.find_spec(name) is None]
        if missing:
            self.skipTest(f"{', '.join(missing)} is not installed")
        for ranks in map(int, os.environ.get("MATRIX_RANKS", "1,2,3").split(",")):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(run_cases, (ranks, port, trainer, folder), nprocs=ranks)
                results = [torch.load(pathlib.Path(folder) / f"{rank}.pt") for rank in range(ranks)]
            for kind, phase in itertools.product(KINDS, ("fresh", "resumed")):
                with self.subTest(trainer=trainer, ranks=ranks, kind=kind, phase=phase):
                    self.check([each[kind, phase] for each in results], kind)


for _trainer in os.environ.get("MATRIX_TRAINERS", ",".join(TRAIN)).split(","):
    setattr(Matrix, f"test_{_trainer}", lambda self, trainer=_trainer: self.run_matrix(trainer))

if __name__ == "__main__":
    unittest.main()
