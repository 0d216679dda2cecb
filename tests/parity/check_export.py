#!/usr/bin/env python3
"""Checks that a model which Copus exported loads in transformers and gives the logits that Copus computed.

Usage: check_export.py MODEL_DIR LOGITS.safetensors [--tolerance 1e-5]

LOGITS.safetensors holds tokens (int64 [B, S]) and logits ([B, S, vocab]). Prints one JSON object with relative_error,
the norm of the difference over the norm of transformers' float32 logits; exits 1 where that exceeds the tolerance, or
where transformers finds weights missing, surplus or of another shape.
"""

import argparse
import json
import sys

import torch
import transformers
from safetensors.torch import load_file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("logits")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    problems = {kind: sorted(map(str, entries)) for kind, entries in loading.items() if entries}
    ours = load_file(arguments.logits)
    with torch.no_grad():
        theirs = model(ours["tokens"]).logits.double()
    if ours["logits"].shape != theirs.shape:
        problems["logits"] = [f"shape {list(ours['logits'].shape)}, expected {list(theirs.shape)}"]
        error = float("inf")
    else:
        error = ((ours["logits"].double() - theirs).norm() / theirs.norm()).item()
    print(json.dumps({"relative_error": error, "architecture": type(model).__name__, "problems": problems}))
    return 0 if error <= arguments.tolerance and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
