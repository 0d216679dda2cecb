"""A tiny Hugging Face Llama, sequences for it, and the plain loop that integrations are held against."""

import dataclasses

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import copus

VOCABULARY, LENGTH = 61, 24


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(7)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, attn_implementation="eager"))


def make_sequences(count: int, seed: int = 3) -> list[dict[str, torch.Tensor]]:
    """Sequences with something to learn, of which between an eighth and all tokens carry loss."""
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for _ in range(count):
        start, stride, kept = (int(torch.randint(low, high, (1,), generator=generator))
                               for low, high in ((0, 7), (1, 3), (LENGTH // 8, LENGTH + 1)))
        tokens = (start + stride * torch.arange(LENGTH)) % VOCABULARY
        noise = torch.rand(LENGTH, generator=generator) < 0.2
        tokens = torch.where(noise, torch.randint(VOCABULARY, (LENGTH,), generator=generator), tokens)
        labels = torch.where(torch.arange(LENGTH) < kept, tokens, -100)
        sequences.append({"input_ids": tokens, "labels": labels})
    return sequences


def stack(sequences: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A micro-batch of sequences."""
    return {name: torch.stack([sequence[name] for sequence in sequences]) for name in sequences[0]}


@dataclasses.dataclass
class Step:
    """What an adviser is told of one step."""

    first_squared_norm: float  # of the gradients as they are behind the first micro-batch
    first_samples: int
    norm: float
    samples: int
    learning_rate: float
    loss: float | None


class RecordingAdviser(copus.Adviser):
    """An adviser that keeps what it is told."""

    def __init__(self, **options):
        super().__init__(**options)
        self.steps: list[Step] = []
        self.seconds: list[float] = []
        self._measured_first = (0.0, 0)

    def first_micro_batch(self, parameters, samples, **options):
        parameters = list(parameters)
        scale = options.get("loss_scale", 1.0)
        gradients = [parameter.grad.double() for parameter in parameters if parameter.grad is not None]
        squares = sum(float(gradient.square().sum()) for gradient in gradients)
        self._measured_first = (squares / scale**2, samples)
        super().first_micro_batch(parameters, samples=samples, **options)

    def step(self, norm, *, samples, seconds, lr=None, loss=None, **options):
        self.steps.append(Step(*self._measured_first, float(norm), samples, lr, None if loss is None else float(loss)))
        self._measured_first = (0.0, 0)
        self.seconds.append(seconds)
        return super().step(norm, samples=samples, seconds=seconds, lr=lr, loss=loss, **options)


def train_plainly(model, steps, adviser, *, learning_rate, clip, by_tokens):
    """Trains on steps, lists of micro-batches, with SGD, and tells the adviser what a plain loop would."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for micro_batches in steps:
        optimizer.zero_grad()
        tokens = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in micro_batches)
        losses = []
        for index, batch in enumerate(micro_batches):
            logits = model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(),
                                                     reduction="sum" if by_tokens else "mean")
            loss = loss / (tokens if by_tokens else len(micro_batches))
            loss.backward()
            losses.append(float(loss.detach()))
            if index == 0 and len(micro_batches) > 1:
                adviser.first_micro_batch(model.parameters(), samples=len(batch["input_ids"]))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        optimizer.step()
        samples = sum(len(batch["input_ids"]) for batch in micro_batches)
        adviser.step(norm, samples=samples, seconds=1.0, lr=learning_rate, loss=sum(losses))
