"""Two ranks of the real Trainer under DDP measure what their gradients are, with and without accumulation."""

import contextlib
import io
import os
import pathlib
import socket
import tempfile
import unittest
from unittest import mock

import torch
from tiny_llama import LENGTH, make_model, make_sequences, stack
from transformers import Trainer, TrainingArguments

import copus.adviser
from copus.integrations.hugging_face import AdviserCallback

RANKS, MICRO_BATCH, LEARNING_RATE, STEPS = 2, 2, 0.05, 4


class Core:
    """Keeps the norms that Copus' core is told, and hands them on."""

    told: list[tuple[float, float, float]] = []

    def __init__(self, *arguments):
        self._core = CORE(*arguments)

    def __getattr__(self, name):
        return getattr(self._core, name)

    def step(self, samples, seconds, norm, small_batch, small_squared_norm, *rest):
        self.told.append((norm, small_batch, small_squared_norm))
        return self._core.step(samples, seconds, norm, small_batch, small_squared_norm, *rest)


CORE = copus.adviser._core.Adviser


def train(rank: int, port: int, folder: str, accumulation: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    seen = []

    def collate(features):
        seen.append(stack(features))
        return seen[-1]

    args = TrainingArguments(output_dir=folder, use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no",
                             disable_tqdm=True, logging_steps=1000, per_device_train_batch_size=MICRO_BATCH,
                             gradient_accumulation_steps=accumulation, learning_rate=LEARNING_RATE, optim="sgd",
                             lr_scheduler_type="constant", max_grad_norm=0.1, max_steps=STEPS, seed=5)
    sequences = make_sequences(RANKS * MICRO_BATCH * accumulation * STEPS)
    trainer = Trainer(model=make_model(), args=args, train_dataset=sequences, data_collator=collate)
    with mock.patch.object(copus.adviser._core, "Adviser", Core), contextlib.redirect_stdout(io.StringIO()):
        callback = AdviserCallback(trainer, sequence_length=LENGTH, directory=None)
        trainer.add_callback(callback)
        trainer.train()
    torch.save((seen, Core.told), pathlib.Path(folder) / f"{rank}.pt")


def gradient(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]], tokens: float) -> torch.Tensor:
    """Of the loss of all tokens in the batches, divided by `tokens`."""
    model.zero_grad()
    for batch in batches:
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        labels = batch["labels"][:, 1:].flatten()
        (torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


class TwoRanks(unittest.TestCase):
    def measure(self, accumulation: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(train, (port, folder, accumulation), nprocs=RANKS)
            seen, told = zip(*(torch.load(pathlib.Path(folder) / f"{rank}.pt") for rank in range(RANKS)))
        model, told = make_model(), told[0]
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        self.assertGreaterEqual(len(told), STEPS - 1)  # what the others' last step was, nobody waits for
        for step, (norm, small_batch, small_squared_norm) in enumerate(told):
            batches = [rank[step * accumulation:(step + 1) * accumulation] for rank in seen]
            tokens = sum(int((batch["labels"][:, 1:] != -100).sum()) for rank in batches for batch in rank)
            # A micro-batch is this share of the step, however many of the tokens it has.
            share = 1 / (RANKS * accumulation)
            squares = [float(gradient(model, rank[:1], tokens * share).double().square().sum()) for rank in batches]
            self.assertEqual(small_batch, MICRO_BATCH)
            self.assertAlmostEqual(small_squared_norm / (sum(squares) / RANKS), 1, delta=1e-4)
            whole = gradient(model, [batch for rank in batches for batch in rank], tokens)
            self.assertAlmostEqual(norm / float(whole.norm()), 1, delta=1e-5)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    def test_first_micro_batches_of_all_ranks(self):
        self.measure(accumulation=2)

    def test_a_single_micro_batch_where_it_is_reduced(self):
        self.measure(accumulation=1)


if __name__ == "__main__":
    unittest.main()
