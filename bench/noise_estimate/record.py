"""Trains the quickstart's model and records, for each step, the inner products of its samples' gradients. The squared
norms of every part of the step follow from them (README.md). Writes one .npz for each seed and batch."""

import argparse
import pathlib
import time

import numpy
import torch
import transformers

LENGTH = 128
SAMPLES = {4: 2048, 16: 4096, 64: 6144}
HELD_STILL = 512


def build_model(seed):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config).float()


class Samples:
    """Sequences of the corpus in an order given by the seed, without repetition."""

    def __init__(self, path, seed):
        self.tokens = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)
        count = (self.tokens.numel() - 1) // LENGTH
        self.order = numpy.random.default_rng(seed).permutation(count)
        self.next = 0

    def take(self):
        begin = int(self.order[self.next]) * LENGTH
        self.next += 1
        tokens = self.tokens[begin:begin + LENGTH + 1].long()
        return tokens[None, :-1], tokens[None, 1:]


def sample_gradients(model, samples, count):
    """Returns the gradients of the mean token loss of `count` samples, [count, parameters]."""
    parameters = list(model.parameters())
    rows = torch.empty(count, sum(p.numel() for p in parameters))
    for row in rows:
        inputs, targets = samples.take()
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[0], targets[0])
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)], out=row)
    return rows


def set_gradient(model, gradient):
    at = 0
    for parameter in model.parameters():
        parameter.grad = gradient[at:at + parameter.numel()].view_as(parameter).clone()
        at += parameter.numel()


def inner_products(rows):
    return (rows @ rows.T).double().numpy()


def record(corpus, seed, batch):
    model, samples = build_model(seed), Samples(corpus, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    steps = []
    for step in range(SAMPLES[batch] // batch):
        rows = sample_gradients(model, samples, batch)
        steps.append(inner_products(rows))
        set_gradient(model, rows.mean(0))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 16)
        optimizer.step()
    return numpy.stack(steps), inner_products(sample_gradients(model, samples, HELD_STILL))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--corpus", default="data/gcide/train.txt")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=list(SAMPLES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        for batch in arguments.batches:
            path = arguments.out / f"seed{seed}-batch{batch}.npz"
            if path.exists():
                continue
            started = time.monotonic()
            steps, held_still = record(arguments.corpus, seed, batch)
            numpy.savez(path, steps=steps, held_still=held_still)
            print(f"{path}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
