#!/usr/bin/env python3
"""Checks models that Copus exported against transformers in float64 throughout.

Usage: check_combinations.py DIR

DIR/<i>/ is an exported model, and DIR/<i>.safetensors what Copus computes with it in float64: tokens and targets (int64
[B, S]), logits ([B, S, vocab]), and grad.<name>, the gradients of the mean token loss. Rotary angles alone are float32
in Copus by definition, and float64 here.

Prints a line for each model; exits 1 where an error, the norm of the difference over the norm, is above TOLERANCE.
"""

import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file

from generate import load_float64, mean_loss, name_in_file

TOLERANCE = 3e-6


def check(folder: pathlib.Path) -> bool:
    ours = load_file(folder.with_name(f"{folder.name}.safetensors"))
    model = load_float64(folder)
    logits = model(ours["tokens"]).logits
    mean_loss(logits, ours["targets"]).backward()
    logits_error = ((ours["logits"] - logits).norm() / logits.norm()).item()
    gradients = {name_in_file(model, name): parameter.grad for name, parameter in model.named_parameters()}
    missing = {name for name in ours if name.startswith("grad.")} ^ {f"grad.{name}" for name in gradients}
    # Of biases that softmax does not see the gradient is zero, but for rounding.
    largest = max(gradient.norm().item() for gradient in gradients.values())
    worst = ("", 0.0)
    for name, gradient in gradients.items():
        if f"grad.{name}" in missing:
            continue
        size = max(gradient.norm().item(), 1e-4 * largest)
        worst = max(worst, (name, (ours[f"grad.{name}"] - gradient).norm().item() / size), key=lambda entry: entry[1])
    is_same = not missing and logits_error <= TOLERANCE and worst[1] <= TOLERANCE
    print(
        f"combination {folder.name}: {type(model).__name__}: logits {logits_error:.1e}, gradients {worst[1]:.1e} "
        f"({worst[0]}){'' if is_same else ' DIFFERS ' + ' '.join(sorted(missing))}"
    )
    return is_same


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: check_combinations.py DIR")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    folders = [folder for folder in pathlib.Path(sys.argv[1]).iterdir() if folder.is_dir()]
    results = [check(folder) for folder in sorted(folders, key=lambda folder: int(folder.name))]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
