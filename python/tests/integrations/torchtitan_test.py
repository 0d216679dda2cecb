"""What torchtitan's own train_step tells Copus is what a plain loop tells it, also while its accumulation changes.

torchtitan's Trainer cannot be built without a GPU. Here its class is real, and so are train_step and
forward_backward_step, the loss and the clipping; model, optimizer, schedule and mesh are put into an empty instance.
"""

import contextlib
import types
import unittest
from unittest import mock

import torch
from tiny_llama import LENGTH, RecordingAdviser, make_model, make_sequences, stack, train_plainly

import copus

try:
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.trainer import Trainer
except ImportError:
    Trainer = None
else:
    from copus.integrations.torchtitan import Following

LOCAL_BATCH, LEARNING_RATE = 2, 0.05


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.llama = make_model()

    def forward(self, tokens):
        return self.llama(input_ids=tokens).logits


def make_trainer(accumulation: int):
    """A trainer with a schedule that halves the learning rate after four steps."""
    trainer = Trainer.__new__(Trainer)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 4 else 0.5)

    class Optimizers(list):
        def zero_grad(self, set_to_none):
            optimizer.zero_grad(set_to_none)

        def step(self):
            optimizer.step()

    trainer.model_parts, trainer.optimizers = [model], Optimizers([optimizer])
    trainer.lr_schedulers = types.SimpleNamespace(schedulers=[schedule], step=schedule.step, get_metrics=dict)
    trainer.parallel_dims = types.SimpleNamespace(
        dp_enabled=False, pp_enabled=False, cp_enabled=False, ep_enabled=False, dp_cp_enabled=False, tp_enabled=False,
        cp=1, get_optional_mesh=lambda name: None)
    trainer.config = types.SimpleNamespace(
        training=types.SimpleNamespace(local_batch_size=LOCAL_BATCH, seq_len=LENGTH, max_norm=0.1,
                                       disable_cuda_graphs=True),
        parallelism=types.SimpleNamespace(spmd_backend="default"))
    trainer.model_config, trainer.device, trainer.step = types.SimpleNamespace(), torch.device("cpu"), 0
    trainer.gradient_accumulation_steps, trainer.num_pipeline_parallel_microbatches = accumulation, 1
    trainer.ntokens_seen, trainer.train_context = 0, contextlib.nullcontext
    trainer.loss_fn, trainer.fwd_bwd_fn = CrossEntropyLoss(CrossEntropyLoss.Config()), trainer._forward_backward_body
    trainer.checkpointer = types.SimpleNamespace(maybe_wait_for_staging=lambda: None)
    trainer.metrics_processor = types.SimpleNamespace(should_log=lambda step: False)
    return trainer


def micro_batches(count: int):
    sequences = make_sequences(count * LOCAL_BATCH)
    return [stack(sequences[first:first + LOCAL_BATCH]) for first in range(0, len(sequences), LOCAL_BATCH)]


def as_torchtitan(batches):
    for batch in batches:
        yield {"input": batch["input_ids"][:, :-1]}, batch["labels"][:, 1:]


class AdvisingAdviser(RecordingAdviser):
    """Advises twice the batch after the second step, at a learning rate of 1.5 times the schedule's."""

    def step(self, norm, **told):
        super().step(norm, **told)
        if len(self.steps) == 2:
            return types.SimpleNamespace(batch=2 * told["samples"], micro_batches=4, learning_rate_factor=1.5)
        return None


@unittest.skipIf(Trainer is None, "torchtitan is not installed")
class Torchtitan(unittest.TestCase):
    def assert_alike(self, steps, expected):
        self.assertEqual(len(steps), len(expected))
        for step, plain in zip(steps, expected):
            self.assertAlmostEqual(step.norm / plain.norm, 1, delta=1e-5)
            self.assertAlmostEqual(step.first_squared_norm / plain.first_squared_norm, 1, delta=1e-5)
            self.assertAlmostEqual(step.loss / plain.loss, 1, delta=1e-5)
            self.assertEqual((step.first_samples, step.samples), (plain.first_samples, plain.samples))

    def test_is_told_what_a_plain_loop_tells(self):
        trainer, batches = make_trainer(accumulation=4), micro_batches(16)
        with mock.patch.object(copus, "Adviser", RecordingAdviser):
            following = Following(trainer, directory=None)
        data = as_torchtitan(batches)
        for _ in range(4):
            trainer.train_step(data)
        adviser, model = RecordingAdviser(batch=8, sequence_length=LENGTH, directory=None), make_model()
        steps = [batches[first:first + 4] for first in range(0, 16, 4)]
        train_plainly(model, steps, adviser, learning_rate=LEARNING_RATE, clip=0.1, by_tokens=True)
        self.assert_alike(following.adviser.steps, adviser.steps)
        for one, other in zip(trainer.model_parts[0].parameters(), model.parameters()):
            torch.testing.assert_close(one, other)

    def test_follows_advice_from_the_next_step_on(self):
        trainer, batches = make_trainer(accumulation=2), micro_batches(16)
        with mock.patch.object(copus, "Adviser", AdvisingAdviser):
            following = Following(trainer, directory=None)
        data = as_torchtitan(batches)
        for _ in range(5):
            trainer.train_step(data)
        self.assertEqual([step.samples for step in following.adviser.steps], [4, 4, 8, 8, 8])
        # The schedule's own halving, behind the fourth step, is in the rate of the fifth, and the factor only once.
        for step, factor in zip(following.adviser.steps, [1, 1, 1.5, 1.5, 0.75]):
            self.assertAlmostEqual(step.learning_rate, LEARNING_RATE * factor)
        adviser, model = RecordingAdviser(batch=4, sequence_length=LENGTH, directory=None), make_model()
        for steps, factor in (([batches[0:2], batches[2:4]], 1), ([batches[4:8], batches[8:12]], 1.5),
                              ([batches[12:16]], 0.75)):
            train_plainly(model, steps, adviser, learning_rate=factor * LEARNING_RATE, clip=0.1, by_tokens=True)
        self.assert_alike(following.adviser.steps, adviser.steps)
        for one, other in zip(trainer.model_parts[0].parameters(), model.parameters()):
            torch.testing.assert_close(one, other)

    def test_a_version_that_divides_by_the_first_accumulation_is_refused(self):
        trainer = make_trainer(accumulation=2)
        trainer.forward_backward_step = lambda input_dict, labels: None
        with self.assertRaisesRegex(copus.UserError, "global_valid_tokens"):
            Following(trainer, directory=None)


if __name__ == "__main__":
    unittest.main()
