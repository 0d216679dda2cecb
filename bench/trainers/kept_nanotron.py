#!/usr/bin/env python3
"""Measures how many bytes nanotron's own Llama layer keeps from its forward to its backward pass.

The layer runs as one rank of a fake process group on CPUs. Three kernels of flash-attn that need a GPU are replaced by
kernels that keep the same data: the norm (its input and a number for each row), attention (queries, keys, values,
output and a number for each row), and the rotation, which works in place.

    bench/trainers/kept_nanotron.py --nanotron FOLDER [--sequences 2]    # with torch 2.13, and a clone in FOLDER

Prints one line for each t, recompute and mode of tensor parallelism.
"""

import argparse
import os

import torch
import torch.distributed as dist

import stubbed
import stubs
from stubbed import HEADS, HIDDEN, KEY_VALUE_HEADS, SEQUENCE


class InPlaceRotation(torch.nn.Module):
    """The rotation of flash-attn: queries in new memory, keys in place. It keeps only its tables."""

    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return rows.clone()

    class RotateInPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            ctx.mark_dirty(rows)
            return rows

    def __init__(self, *others, **named):
        super().__init__()

    def forward(self, query, kv):
        return self.Rotate.apply(query), self.RotateInPlace.apply(kv)


def attention_of_rows(q, k, v, max_seqlen_q, **others):
    """flash_attn_varlen_func: (batch x sequence, heads, width of a head)."""
    batch = q.shape[0] // max_seqlen_q
    states = (rows.unflatten(0, (batch, max_seqlen_q)) for rows in (q, k, v))
    return stubbed.FusedAttention.apply(*states).flatten(0, 1)


def make_layer(llama, ranks, recompute, mode):
    from nanotron.config import LlamaConfig, ParallelismArgs

    config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=stubbed.FEED_FORWARD, num_hidden_layers=1,
                         num_attention_heads=HEADS, num_key_value_heads=KEY_VALUE_HEADS)
    parallel = ParallelismArgs(dp=1, pp=1, tp=ranks, tp_mode=mode, tp_linear_async_communication=mode != "ALL_REDUCE",
                               recompute_layer=recompute)
    return llama.LlamaDecoderLayer(config, parallel, dist.group.WORLD, 0).to(torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanotron", required=True, help="the folder that holds src/nanotron")
    parser.add_argument("--sequences", type=int, default=1, help="of a micro-batch")
    arguments = parser.parse_args()
    llama = stubs.stubbed_import(os.path.join(arguments.nanotron, "src"), "nanotron.models.llama", ["grouped_gemm"])

    import flash_attn.flash_attn_interface
    import flash_attn.layers.rotary

    from nanotron.parallel.tensor_parallel import functional
    flash_attn.flash_attn_interface.flash_attn_varlen_func = attention_of_rows
    flash_attn.layers.rotary.RotaryEmbedding = InPlaceRotation
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    llama.TritonRMSNorm = lambda width, eps: stubbed.Norm(width)
    llama.LlamaRotaryEmbedding = lambda **named: None  # for inference only
    functional.MemoryBuffer = lambda: type("Buffer", (), {"get": lambda self, name, shape, dtype: torch.empty(
        shape, dtype=dtype)})()  # one for all layers, on the GPU
    for ranks in (1, 2, 4, 8):
        for mode in ("ALL_REDUCE", "REDUCE_SCATTER") if ranks > 1 else ("ALL_REDUCE",):
            for recompute in (False, True):
                stubbed.fake_group(ranks)
                layer = make_layer(llama, ranks, recompute, mode)
                rows = SEQUENCE // (ranks if mode == "REDUCE_SCATTER" else 1)
                stream = torch.randn(rows, arguments.sequences, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
                mask = torch.ones(arguments.sequences, SEQUENCE, dtype=torch.bool)
                sizes = stubbed.kept_storages(layer, lambda: layer(stream, mask), lambda tensor: tensor is mask)
                stubbed.print_kept(f"t={ranks} {mode} recompute={'full' if recompute else 'none'}", sizes)


if __name__ == "__main__":
    main()
