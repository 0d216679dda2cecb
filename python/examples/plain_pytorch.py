"""A plain PyTorch loop that changes its gradient accumulation as Copus advises.

A byte model of 0.1 million parameters learns the sources of Python's standard library. Its batch is too large for the
beginning of a run. Once the gradient noise scale shows this, Copus recommends the batch with more progress per second,
with its reason and an interval. The loop follows: fewer micro-batches per step, and the matching learning rate. It runs
in seconds on a laptop:

    python plain_pytorch.py --directory runs/example
    copus report runs/example
"""

import argparse
import json
import pathlib
import time

import torch

import copus

LENGTH, MICRO_BATCH, LEARNING_RATE, WIDTH = 64, 4, 3e-3, 64


class Model(torch.nn.Module):
    """Two layers of causal self-attention over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = torch.nn.Embedding(256, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.layers(self.bytes(text) + self.places.weight, mask=mask, is_causal=True))


def standard_library() -> torch.Tensor:
    sources = sorted(pathlib.Path(json.__file__).parents[1].glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(source.read_bytes() for source in sources)), dtype=torch.uint8)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--directory", help="where Copus logs the run, for `copus report` and `copus replay`")
    options = arguments.parse_args()

    torch.manual_seed(1)
    text, model = standard_library(), Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    accumulation = 16
    adviser = copus.Adviser(batch=MICRO_BATCH * accumulation, sequence_length=LENGTH, directory=options.directory,
                             batches=[8, 16, 32, 64, 128])
    for step in range(1, options.steps + 1):
        begin = time.perf_counter()
        step_loss = 0.0
        for micro_batch in range(accumulation):
            first = torch.randint(len(text) - LENGTH, (MICRO_BATCH,))
            sample = text[first[:, None] + torch.arange(LENGTH + 1)].long()
            loss = torch.nn.functional.cross_entropy(model(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
            (loss / accumulation).backward()
            step_loss += loss.item() / accumulation
            if micro_batch == 0:
                adviser.first_micro_batch(model.parameters(), samples=MICRO_BATCH)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        advice = adviser.step(norm, samples=MICRO_BATCH * accumulation, seconds=time.perf_counter() - begin,
                              lr=optimizer.param_groups[0]["lr"], loss=step_loss)
        if step % 25 == 0:
            print(f"step {step}: loss {step_loss:.3f}, batch {MICRO_BATCH * accumulation}")
        if advice is not None:
            print(f"step {step}: {advice}")
            # A step needs two micro-batches to be measured, as the batches above have.
            accumulation = advice.batch // MICRO_BATCH
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * advice.learning_rate_factor


if __name__ == "__main__":
    main()
