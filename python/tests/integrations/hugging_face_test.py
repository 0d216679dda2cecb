"""What the real Trainer tells Copus is what a plain loop over the same batches tells it."""

import contextlib
import io
import tempfile
import unittest
from unittest import mock

import torch
from tiny_llama import LENGTH, RecordingAdviser, make_model, make_sequences, stack, train_plainly
from transformers import Trainer, TrainingArguments

import copus
from copus.integrations.hugging_face import AdviserCallback

MICRO_BATCH, ACCUMULATION, LEARNING_RATE = 2, 4, 0.05


class HuggingFace(unittest.TestCase):
    def train(self, sequences, **arguments):
        """Returns the callback, the micro-batches that were trained and the model."""
        seen = []

        def collate(features):
            batch = stack(features)
            seen.append(batch)
            return batch

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        arguments = {"per_device_train_batch_size": MICRO_BATCH, "gradient_accumulation_steps": ACCUMULATION,
                     "learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant", "optim": "sgd",
                     "max_grad_norm": 0.1, "num_train_epochs": 1, "seed": 5} | arguments
        args = TrainingArguments(output_dir=folder.name, use_cpu=True, report_to=[], save_strategy="no",
                                 disable_tqdm=True, logging_steps=1000, **arguments)
        model = make_model()
        trainer = Trainer(model=model, args=args, train_dataset=sequences, data_collator=collate)
        with (mock.patch.object(copus, "Adviser", RecordingAdviser),
              contextlib.redirect_stdout(io.StringIO()) as printed):
            callback = AdviserCallback(trainer, sequence_length=LENGTH, directory=None)
            trainer.add_callback(callback)
            trainer.train()
        self.printed = printed.getvalue()
        return callback, seen, model

    def plainly(self, seen, accumulation=ACCUMULATION, clip=0.1):
        steps = [seen[first:first + accumulation] for first in range(0, len(seen), accumulation)]
        model = make_model()
        adviser = RecordingAdviser(batch=MICRO_BATCH * accumulation, sequence_length=LENGTH, directory=None)
        train_plainly(model, steps, adviser, learning_rate=LEARNING_RATE, clip=clip, by_tokens=True)
        return adviser, model

    def assert_alike(self, steps, expected):
        self.assertEqual(len(steps), len(expected))
        for step, plain in zip(steps, expected):
            self.assertAlmostEqual(step.norm / plain.norm, 1, delta=1e-5)
            self.assertAlmostEqual(step.first_squared_norm / plain.first_squared_norm, 1, delta=1e-5)
            self.assertEqual((step.first_samples, step.samples, step.learning_rate),
                             (plain.first_samples, plain.samples, plain.learning_rate))

    def test_is_told_what_a_plain_loop_tells(self):
        callback, seen, model = self.train(make_sequences(480))
        adviser, plain = self.plainly(seen)
        self.assertEqual(len(adviser.steps), 60)
        self.assertTrue(all(step.norm > 0.1 for step in adviser.steps))  # all of them are clipped
        self.assert_alike(callback.adviser.steps, adviser.steps)
        for one, other in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(one, other)
        found, expected = callback.noise_scale, adviser.noise_scale()
        self.assertAlmostEqual(found[0] / expected[0], 1, delta=1e-3)
        self.assertTrue(all(0 < seconds < 60 for seconds in callback.adviser.seconds))

    def test_without_clipping_too(self):
        callback, seen, _ = self.train(make_sequences(48), max_grad_norm=0)
        self.assert_alike(callback.adviser.steps, self.plainly(seen, clip=0)[0].steps)

    def test_short_steps_at_the_end_of_an_epoch_are_left_out(self):
        # 27 sequences are three steps of 8 and two micro-batches.
        callback, _, _ = self.train(make_sequences(27), num_train_epochs=2)
        self.assertEqual([step.samples for step in callback.adviser.steps], [8] * 6)
        # 31 end in a step whose last micro-batch is short; the adviser leaves out what its micro-batch does not divide.
        callback, _, _ = self.train(make_sequences(31), num_train_epochs=2)
        self.assertEqual([step.samples for step in callback.adviser.steps], [8, 8, 8, 7] * 2)
        callback, _, _ = self.train(make_sequences(32), num_train_epochs=2)
        self.assertEqual([step.samples for step in callback.adviser.steps], [8] * 8)

    def test_a_resumed_job_with_another_batch_counts_what_it_trains(self):
        sequences = make_sequences(64)
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(copus, "Adviser", RecordingAdviser):
            for micro_batch, resume in ((MICRO_BATCH, None), (4 * MICRO_BATCH, True)):
                args = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, optim="sgd",
                                         save_steps=3, max_steps=3 if resume is None else 5, logging_steps=1000,
                                         per_device_train_batch_size=micro_batch, learning_rate=LEARNING_RATE,
                                         gradient_accumulation_steps=2, lr_scheduler_type="constant", seed=5)
                trainer = Trainer(model=make_model(), args=args, train_dataset=sequences, data_collator=stack)
                with contextlib.redirect_stdout(io.StringIO()):
                    callback = AdviserCallback(trainer, sequence_length=LENGTH, directory=None)
                    trainer.add_callback(callback)
                    trainer.train(resume_from_checkpoint=resume)
        self.assertEqual([(step.first_samples, step.samples) for step in callback.adviser.steps], [(8, 16)] * 2)

    def test_training_twice_in_one_directory_goes_on(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            args = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], save_strategy="no", max_steps=3,
                                     disable_tqdm=True, per_device_train_batch_size=MICRO_BATCH,
                                     gradient_accumulation_steps=2, logging_steps=1000)
            trainer = Trainer(model=make_model(), args=args, train_dataset=make_sequences(16), data_collator=stack)
            callback = AdviserCallback(trainer, sequence_length=LENGTH, directory=f"{folder}/logs")
            trainer.add_callback(callback)
            for expected in ("logs", "logs-2"):
                trainer.train()
                self.assertEqual(callback.adviser.directory.name, expected)

    def test_the_learning_rate_is_that_of_the_step(self):
        callback, _, _ = self.train(make_sequences(32), lr_scheduler_type="linear")
        self.assertEqual([step.learning_rate for step in callback.adviser.steps],
                         [LEARNING_RATE * (4 - step) / 4 for step in range(4)])


if __name__ == "__main__":
    unittest.main()
