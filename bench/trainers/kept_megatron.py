#!/usr/bin/env python3
"""Measures how many bytes Megatron-Core's own layer (0.16.1) keeps from its forward to its backward pass.

The layer runs as one rank of a fake process group on CPUs. Three kernels that need a GPU are replaced by ones that keep
the same: the norm (its input and a number for each row), attention (queries, keys, values, output and a number for each
row), and the rotation, whose tables do not count.

    bench/trainers/kept_megatron.py --megatron FOLDER     # with torch 2.13, and megatron-core unpacked in FOLDER

Prints one line for each t, with sequence parallelism where t > 1. copus/performance/memory_test.cpp holds the figures.
"""

import argparse
import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
import types
import typing
import warnings
from unittest import mock

import torch
import torch.distributed as dist

HIDDEN, FEED_FORWARD, HEADS, KEY_VALUE_HEADS, SEQUENCE = 512, 1792, 16, 8, 256


class Stub(types.ModuleType):
    __path__ = []
    __version__ = "99.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.root:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def import_megatron(folder):
    """Stubs what is not installed."""
    sys.path.insert(0, folder)
    typing.override = getattr(typing, "override", lambda function: function)
    while True:
        try:
            return importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
        except ModuleNotFoundError as error:
            root = error.name.split(".")[0]
            if root == "megatron":
                raise
            sys.meta_path.insert(0, Stubs(root))
            for name in [name for name in sys.modules if name.startswith("megatron")]:
                del sys.modules[name]


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        scale = torch.rsqrt(rows.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(rows, scale, weight)
        return (rows.float() * scale * weight).to(rows.dtype)


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, rows):
        return FusedNorm.apply(rows, self.weight)


def fused_attention(self, query, key, value, *others, **named):
    query, key, value = (heads.permute(1, 2, 0, 3) for heads in (query, key, value))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return output.permute(2, 0, 1, 3).flatten(2).contiguous()


def make_layer(specs, ranks):
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, ffn_hidden_size=FEED_FORWARD, num_attention_heads=HEADS,
        num_query_groups=KEY_VALUE_HEADS, kv_channels=HIDDEN // HEADS, use_cpu_initialization=True,
        params_dtype=torch.bfloat16, bf16=True, pipeline_dtype=torch.bfloat16, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, normalization="RMSNorm", hidden_dropout=0.0,
        attention_dropout=0.0, tensor_model_parallel_size=ranks, sequence_parallel=ranks > 1,
        gradient_accumulation_fusion=False, bias_activation_fusion=True, bias_dropout_fusion=False,
        apply_rope_fusion=False, perform_initialization=False)
    spec = specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    return build_module(spec, config=config, layer_number=1).to(torch.bfloat16)


def kept_bytes(specs, ranks):
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    layer = make_layer(specs, ranks)
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept, alive = {}, []

    def keep(tensor):
        alive.append(tensor)  # or its address is used again
        is_table = tuple(tensor.shape) == (SEQUENCE, 1, 1, HIDDEN // HEADS)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and not is_table:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = torch.randn(SEQUENCE // ranks, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(rows, attention_mask=None, rotary_pos_emb=torch.randn(SEQUENCE, 1, 1, HIDDEN // HEADS))
    return kept.values()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, help="the folder that holds the package megatron")
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    specs = import_megatron(parser.parse_args().megatron)
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    torch.cuda.current_device = lambda: "cpu"
    DotProductAttention.forward = fused_attention
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(lambda cls, config, hidden_size, *others, **named: Norm(hidden_size))
    for ranks in (1, 2, 4, 8):
        sizes = kept_bytes(specs, ranks)
        print(f"t={ranks}: {sum(sizes)} bytes ({', '.join(str(size) for size in sorted(sizes, reverse=True))})", flush=True)


if __name__ == "__main__":
    main()
