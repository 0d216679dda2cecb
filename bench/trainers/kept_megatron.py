#!/usr/bin/env python3
"""Measures how many bytes Megatron-Core's own layer (0.16.1) keeps from its forward to its backward pass.

The layer runs as one rank of a fake process group on CPUs. Three kernels that need a GPU are replaced by kernels that
keep the same data: the norm (its input and a number for each row), attention (queries, keys, values, output and a
number for each row), and the rotation, whose tables are not counted.

    bench/trainers/kept_megatron.py --megatron FOLDER     # with torch 2.13, and megatron-core unpacked in FOLDER

Prints one line for each t and recompute, with sequence parallelism if t > 1; without recompute also a line for norms of
query and key heads (--qk-layernorm). copus/plan/other_systems_test.cpp has the figures.
"""

import argparse

import torch
import torch.distributed as dist

import stubbed
import stubs
from stubbed import FEED_FORWARD, HEADS, HIDDEN, KEY_VALUE_HEADS, SEQUENCE


def fused_attention(self, query, key, value, *others, **named):
    states = (heads.transpose(0, 1) for heads in (query, key, value))  # (sequence, batch, heads, width of a head)
    return stubbed.FusedAttention.apply(*states).transpose(0, 1).flatten(2)


def make_layer(specs, ranks, normed_heads):
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, ffn_hidden_size=FEED_FORWARD, num_attention_heads=HEADS,
        num_query_groups=KEY_VALUE_HEADS, kv_channels=HIDDEN // HEADS, use_cpu_initialization=True,
        params_dtype=torch.bfloat16, bf16=True, pipeline_dtype=torch.bfloat16, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, normalization="RMSNorm", hidden_dropout=0.0,
        attention_dropout=0.0, tensor_model_parallel_size=ranks, sequence_parallel=ranks > 1,
        gradient_accumulation_fusion=False, bias_activation_fusion=True, bias_dropout_fusion=False,
        apply_rope_fusion=False, perform_initialization=False, qk_layernorm=normed_heads)
    spec = specs.get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=normed_heads)
    return build_module(spec, config=config, layer_number=1).to(torch.bfloat16)


def kept_by_layer(specs, ranks, recompute, normed_heads):
    from megatron.core import parallel_state, tensor_parallel

    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
    stubbed.fake_group(ranks)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, create_gloo_process_groups=False)
    layer = make_layer(specs, ranks, normed_heads)
    tables = torch.randn(SEQUENCE, 1, 1, HIDDEN // HEADS)
    rows = torch.randn(SEQUENCE // ranks, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)

    def forward(stream):
        return layer(stream, attention_mask=None, rotary_pos_emb=tables)[0]

    def run():  # recomputes as megatron/core/transformer/transformer_block.py does
        return tensor_parallel.checkpoint(forward, False, rows) if recompute else forward(rows)

    return stubbed.kept_storages(layer, run, lambda tensor: tensor.shape == tables.shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, help="the folder that holds the package megatron")
    specs = stubs.stubbed_import(parser.parse_args().megatron, "megatron.core.models.gpt.gpt_layer_specs")
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    torch.cuda.current_device = lambda: "cpu"
    random._get_all_rng_states = lambda: ()  # states of random numbers on the GPU, which do not count
    DotProductAttention.forward = fused_attention
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(
        lambda cls, config, hidden_size, *others, **named: stubbed.Norm(hidden_size))
    for ranks in (1, 2, 4, 8):
        for recompute, normed_heads in ((False, False), (True, False), (False, True)):
            sizes = kept_by_layer(specs, ranks, recompute, normed_heads)
            stubbed.print_kept(f"t={ranks} recompute={'full' if recompute else 'none'}"
                               f"{' norms of heads' if normed_heads else ''}", sizes)


if __name__ == "__main__":
    main()
