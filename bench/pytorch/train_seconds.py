#!/usr/bin/env python3
"""Which model is better after the same time of training: Copus's, or PyTorch's (transformers' LlamaForCausalLM, eager)?

Trains the run configuration with `copus train` for some seconds. Then it trains the same model in PyTorch for as many
seconds, on the same data with the same batch, optimizer and learning rate schedule, and evaluates both on all of the
held-out text. Run nothing else meanwhile. Prints one JSON object; held_out_loss is in nats per token.

All settings of PyTorch's run are read from the resolved config.toml in Copus's run directory. Supported: text corpora
without blending, data.held_out given, fp32, a time limit, the cosine schedule with warm-up as a share of the run.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import time
import tomllib

import numpy
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
END_OF_DOCUMENT = 0xFF
IGNORED_TARGET = -100


class Windows:
    """A text file as Copus reads it: bytes, an end mark after each document, in windows that overlap by one token."""

    def __init__(self, path: str, data: dict, sequence: int):
        text = pathlib.Path(path).read_bytes()
        separator = data["document_separator"].encode()
        documents = text.split(separator) if separator else [text]
        mark = bytes([END_OF_DOCUMENT])
        stream = b"".join(document + mark for document in documents if document)
        self.stream = torch.from_numpy(numpy.frombuffer(stream, dtype=numpy.uint8).copy())
        self.sequence = sequence
        self.mask_document_ends = data["mask_document_ends"]
        if data["mask_across_documents"]:
            sys.exit("train_seconds.py: documents attend to each other here; set data.mask_across_documents = false")
        self.count = math.ceil((len(stream) - 1) / sequence)

    def batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens and targets, int64 [len(indices), sequence]; the incomplete end of the file has no loss."""
        tokens = torch.zeros((len(indices), self.sequence), dtype=torch.int64)
        targets = torch.full_like(tokens, IGNORED_TARGET)
        for row, index in enumerate(indices):
            window = self.stream[index * self.sequence : (index + 1) * self.sequence + 1].long()
            tokens[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
        if self.mask_document_ends:
            targets[tokens == END_OF_DOCUMENT] = IGNORED_TARGET
        return tokens, targets


class WindowOrder:
    """Window indices without end; every epoch has its own order."""

    def __init__(self, count: int, seed: int):
        self.count, self.generator, self.pending = count, torch.Generator().manual_seed(seed), []

    def take(self, count: int) -> list[int]:
        while len(self.pending) < count:
            self.pending += torch.randperm(self.count, generator=self.generator).tolist()
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken


def make_model(description: dict) -> transformers.PreTrainedModel:
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings initializer_range"
    ).split()
    config = transformers.LlamaConfig(
        **{name: description[name] for name in names},
        rope_parameters={"rope_type": "default", "rope_theta": description["rope_theta"]},
        use_cache=False,
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def sum_of_losses(model: transformers.PreTrainedModel, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
    )


def learning_rate(optimizer: dict, share: float) -> float:
    """Returns the rate's factor: a linear warm-up, then half a cosine down to the floor
    (copus/train/learning_rate.cpp).

    `share` is the fraction of the run's time that has passed when the weights are updated.
    """
    warm_up = optimizer["warmup_tokens"]
    if share < warm_up:
        return optimizer["lr"] * share / warm_up
    floor = optimizer["lr"] * optimizer["min_lr_ratio"]
    done = (share - warm_up) / (1 - warm_up)
    return floor + (optimizer["lr"] - floor) * 0.5 * (1 + math.cos(math.pi * done))


def train_pytorch(config: dict) -> dict:
    settings, optimizer_settings = config["train"], config["optimizer"]
    if settings["threads"] > 0:
        torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    model = make_model(config["model"])
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": optimizer_settings["weight_decay"]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    betas = (optimizer_settings["beta1"], optimizer_settings["beta2"])
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=optimizer_settings["epsilon"], fused=True)
    corpus = Windows(source_path(config["data"]["train"][0]), config["data"], settings["sequence_length"])
    order = WindowOrder(corpus.count, settings["seed"])
    samples = settings["global_batch"]

    steps = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < settings["max_seconds"]:
        tokens, targets = corpus.batch(order.take(samples))
        loss_tokens = (targets != IGNORED_TARGET).sum()
        optimizer.zero_grad()
        for chunk in torch.arange(samples).split(settings["micro_batch"]):
            (sum_of_losses(model, tokens[chunk], targets[chunk]) / loss_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        share = min(1.0, (time.perf_counter() - started) / settings["max_seconds"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(optimizer_settings, share)
        optimizer.step()
        steps += 1
    return {
        "held_out_loss": held_out_loss(model, config),
        "steps": steps,
        "train_seconds": elapsed,
        "tokens_per_second": steps * samples * settings["sequence_length"] / elapsed,
    }


@torch.no_grad()
def held_out_loss(model: transformers.PreTrainedModel, config: dict) -> float:
    """Nats per token over every window of the held-out file, in file order."""
    held_out = Windows(config["data"]["held_out"][0], config["data"], config["train"]["sequence_length"])
    loss, loss_tokens = 0.0, 0
    for begin in range(0, held_out.count, config["train"]["micro_batch"]):
        end = min(held_out.count, begin + config["train"]["micro_batch"])
        tokens, targets = held_out.batch(list(range(begin, end)))
        loss += sum_of_losses(model, tokens, targets).item()
        loss_tokens += (targets != IGNORED_TARGET).sum().item()
    return loss / loss_tokens


def source_path(source: str | dict) -> str:
    return source if isinstance(source, str) else source["path"]


def check_supported(config: dict) -> None:
    data, settings, optimizer = config["data"], config["train"], config["optimizer"]
    supported = {
        "one data.train": isinstance(data["train"], list) and len(data["train"]) == 1,
        "one data.held_out": len(data["held_out"]) == 1,
        "train.max_seconds alone": settings["max_seconds"] > 0 and not settings["max_steps"] + settings["max_tokens"],
        "optimizer.schedule = cosine": optimizer["schedule"] == "cosine",
        "optimizer.warmup_tokens as a share": optimizer["warmup_tokens"] < 1,
        "a Llama without rope scaling": config["model"]["architecture"] == "llama"
        and not config["model"].get("rope_scaling"),
    }
    if missing := [name for name, given in supported.items() if not given]:
        sys.exit(f"error: the comparison needs {', '.join(missing)} in the run configuration")


def train_copus(config_path: str, run_directory: pathlib.Path, seconds: float | None) -> dict:
    # All held-out text, once, at the end.
    settings = ["evaluate.interval=0", "evaluate.max_batches=0", "train.precision=fp32",
                "data.mask_across_documents=false"]
    if seconds is not None:
        settings.append(f"train.max_seconds={seconds}")
    command = [str(ROOT / "build/copus"), "train", config_path, "--run-dir", str(run_directory)]
    for setting in settings:
        command += ["--set", setting]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        sys.exit("error: copus train failed; its message is above")
    summary = json.loads((run_directory / "summary.json").read_text(encoding="utf-8"))
    return {name: summary[name] for name in ("held_out_loss", "steps", "train_seconds", "tokens_per_second")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/runs/quickstart.toml")
    parser.add_argument("--seconds", type=float, help="of training, each (default: train.max_seconds of the config)")
    parser.add_argument("--only-pytorch", metavar="CONFIG", help="train only PyTorch, from a run's resolved config.toml")
    arguments = parser.parse_args()

    result = {}
    if arguments.only_pytorch:
        resolved = pathlib.Path(arguments.only_pytorch)
    else:
        run_directory = pathlib.Path(f"runs/beside-pytorch-{time.strftime('%Y%m%d-%H%M%S')}")
        result["ours"] = train_copus(arguments.config, run_directory, arguments.seconds)
        resolved = run_directory / "config.toml"
    config = tomllib.loads(resolved.read_text(encoding="utf-8"))
    if arguments.seconds is not None:
        config["train"]["max_seconds"] = arguments.seconds
    check_supported(config)
    print("Training with PyTorch (eager) ...", file=sys.stderr)
    result["pytorch"] = train_pytorch(config)
    if "ours" in result:
        result["held_out_loss_difference"] = result["ours"]["held_out_loss"] - result["pytorch"]["held_out_loss"]
    print(json.dumps({"seconds": config["train"]["max_seconds"], **result}))


if __name__ == "__main__":
    main()
