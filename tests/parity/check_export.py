#!/usr/bin/env python3
"""Checks that transformers finds the models it wrote itself in what Copus exported of them.

Usage: check_export.py REFERENCE_DIR EXPORTS_DIR

REFERENCE_DIR/<arch>/ is a model that transformers wrote, EXPORTS_DIR/<arch>/<export>/ is it after Copus has read and
written it, and EXPORTS_DIR/<arch>/<export>.safetensors holds tokens (int64 [B, S]) and the logits ([B, S, vocab]) that
Copus computes with the export. An export must load as the same class without missing, surplus or misshapen weights;
bit for bit have the original's weights, rounded to its own dtype, and so the logits of those; and Copus's logits must
be those of transformers, in float32, to TOLERANCE: the norm of the difference over the norm.

Prints a line for each export; exits 1 where one fails.
"""

import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-5


def load(folder: pathlib.Path) -> tuple[transformers.PreTrainedModel, dict]:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager", output_loading_info=True
    )


def round_weights(model: transformers.PreTrainedModel, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The model in float32 with its weights rounded to `dtype`."""
    model = model.float()
    for parameter in model.parameters():
        # Weights need memory of their own, since matrix products over a loaded file's memory round differently by its
        # alignment.
        parameter.data = parameter.data.to(dtype).float().clone()
    return model


def check(original_folder: pathlib.Path, folder: pathlib.Path) -> bool:
    export, loading = load(folder)
    dtype = export.dtype
    problems = [f"{kind}: {sorted(map(str, entries))}" for kind, entries in loading.items() if entries]
    original = round_weights(load(original_folder)[0], dtype)
    export = round_weights(export, dtype)
    if type(export) is not type(original):
        problems.append(f"is a {type(export).__name__}, expected {type(original).__name__}")

    weights, original_weights = export.state_dict(), original.state_dict()
    names = weights.keys() | original_weights.keys()
    different = sorted(
        name
        for name in names
        if name not in weights or name not in original_weights or not torch.equal(weights[name], original_weights[name])
    )
    if different:
        problems.append(f"weights differ: {different}")

    ours = load_file(folder.parent / f"{folder.name}.safetensors")
    with torch.no_grad():
        logits, original_logits = export(ours["tokens"]).logits, original(ours["tokens"]).logits
    if not torch.equal(logits, original_logits):
        problems.append("logits differ from the original's")
    error = ((ours["logits"].double() - logits.double()).norm() / logits.double().norm()).item()
    if not error <= TOLERANCE:
        problems.append("Copus computes other logits")

    verdict = "; ".join(problems) or "the original's weights and logits"
    name = f"{folder.parent.name} {folder.name}"
    print(f"{name}: {type(export).__name__}, {dtype}: {verdict}; Copus's logits differ by {error:.1e}")
    return not problems


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit("usage: check_export.py REFERENCE_DIR EXPORTS_DIR")
    reference, exports = map(pathlib.Path, sys.argv[1:])
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    folders = sorted(folder for folder in exports.glob("*/*") if folder.is_dir())
    results = [check(reference / folder.parent.name, folder) for folder in folders]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
