"""What the real Trainer of Lightning tells Copus is what a plain loop over the same batches tells it."""

import contextlib
import dataclasses
import io
import json
import unittest
import warnings
from unittest import mock

import lightning
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from tiny_llama import LENGTH, RecordingAdviser, make_model, make_sequences, stack, train_plainly
from torch.utils.data import DataLoader
from transformers import BatchEncoding

import copus
from copus.integrations.lightning import AdviserCallback

MICRO_BATCH, ACCUMULATION, LEARNING_RATE = 2, 4, 0.05


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        logits = self.model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


class Lightning(unittest.TestCase):
    def train(self, sequences, collate_fn=None, callbacks=(), **options):
        options = {"accumulate_grad_batches": ACCUMULATION, "gradient_clip_val": 0.1, "max_epochs": 1} | options
        module, callback = Module(), AdviserCallback(sequence_length=LENGTH, directory=None)
        with (mock.patch.object(copus, "Adviser", RecordingAdviser), contextlib.redirect_stdout(io.StringIO()),
              warnings.catch_warnings(record=True) as caught):
            warnings.simplefilter("always")
            trainer = lightning.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                                        enable_progress_bar=False, enable_model_summary=False,
                                        callbacks=[callback, *callbacks], **options)
            trainer.fit(module, DataLoader(sequences, batch_size=MICRO_BATCH, collate_fn=collate_fn))
        self.warned = [str(each.message) for each in caught if each.category is copus.AdviserWarning]
        return callback, module

    def test_an_accumulation_that_begins_with_training_is_no_single_micro_batch(self):
        scheduler = GradientAccumulationScheduler({0: ACCUMULATION})
        callback, _ = self.train(make_sequences(32), callbacks=[scheduler], accumulate_grad_batches=1)
        self.assertEqual([(step.first_samples, step.samples) for step in callback.adviser.steps], [(2, 8)] * 4)
        self.assertEqual(self.warned, [])
        self.train(make_sequences(32), accumulate_grad_batches=1)
        self.assertIn("accumulate_grad_batches=1", self.warned[0])

    def test_is_told_what_a_plain_loop_tells(self):
        callback, module = self.train(make_sequences(480))
        steps = [module.seen[first:first + ACCUMULATION] for first in range(0, len(module.seen), ACCUMULATION)]
        model = make_model()
        adviser = RecordingAdviser(batch=MICRO_BATCH * ACCUMULATION, sequence_length=LENGTH, directory=None)
        train_plainly(model, steps, adviser, learning_rate=LEARNING_RATE, clip=0.1, by_tokens=False)
        self.assertEqual(len(callback.adviser.steps), 60)
        for step, plain in zip(callback.adviser.steps, adviser.steps):
            self.assertGreater(plain.norm, 0.1)
            self.assertAlmostEqual(step.norm / plain.norm, 1, delta=1e-5)
            self.assertAlmostEqual(step.first_squared_norm / plain.first_squared_norm, 1, delta=1e-5)
            self.assertAlmostEqual(step.loss / plain.loss, 1, delta=1e-5)
            self.assertEqual((step.first_samples, step.samples, step.learning_rate),
                             (plain.first_samples, plain.samples, plain.learning_rate))
        for one, other in zip(module.model.parameters(), model.parameters()):
            torch.testing.assert_close(one, other)
        found, expected = callback.noise_scale, adviser.noise_scale()
        self.assertAlmostEqual(found[0] / expected[0], 1, delta=1e-3)

    def test_short_steps_at_the_end_of_an_epoch_are_left_out(self):
        callback, _ = self.train(make_sequences(27), max_epochs=2)
        self.assertEqual([step.samples for step in callback.adviser.steps], [8] * 6)
        # The adviser leaves out what its micro-batch does not divide.
        callback, _ = self.train(make_sequences(31), max_epochs=2)
        self.assertEqual([step.samples for step in callback.adviser.steps], [8, 8, 8, 7] * 2)

    def test_any_kind_of_batch_trains_and_is_counted(self):
        @dataclasses.dataclass
        class Batch:
            scale: torch.Tensor
            tokens: torch.Tensor

        kinds = {
            "encoding": lambda batch: BatchEncoding(batch),
            "dataclass": lambda batch: Batch(torch.tensor(1.0), batch["input_ids"]),
            "scalar first": lambda batch: {"scale": torch.tensor(1.0), **batch},
            "nested": lambda batch: (torch.tensor(3), [{"deep": batch}]),
        }
        for kind, made in kinds.items():
            with self.subTest(kind), mock.patch.object(Module, "training_step", self.loss_of_any):
                callback, _ = self.train(make_sequences(32), collate_fn=lambda rows, made=made: made(stack(rows)))
                self.assertEqual([(step.first_samples, step.samples) for step in callback.adviser.steps], [(2, 8)] * 4)

    @staticmethod
    def loss_of_any(module, batch, batch_idx):
        return module.model(input_ids=torch.full((2, 4), batch_idx)).logits.square().mean()

    def test_a_batch_that_cannot_be_counted_goes_unmeasured(self):
        with mock.patch.object(Module, "training_step", self.loss_of_any):
            callback, _ = self.train(make_sequences(32), collate_fn=lambda rows: {"rows": len(rows)})
            self.assertIn("count=", callback.adviser.unmeasured)
            self.assertEqual(callback.adviser.steps, [])

    def test_a_training_step_that_returns_none_is_passed_over(self):
        plain = Module.training_step

        def now_and_then(module, batch, batch_idx):
            loss = plain(module, batch, batch_idx)
            return None if batch_idx in (4, 10, 12, 13, 14, 15) else loss

        with mock.patch.object(Module, "training_step", now_and_then):
            callback, module = self.train(make_sequences(48))
        self.assertEqual(len(module.seen), 24)
        # The first, the fifth and the sixth of six.
        self.assertEqual(json.loads(callback.adviser.state_dict()["core"])["step"], 3)
        self.assertIsNone(callback.adviser.unmeasured)

    def test_a_manual_optimization_is_refused(self):
        with mock.patch.object(Module, "automatic_optimization", False):
            with self.assertRaisesRegex(copus.UserError, "automatic optimization"):
                self.train(make_sequences(8), gradient_clip_val=None, accumulate_grad_batches=1)


if __name__ == "__main__":
    unittest.main()
