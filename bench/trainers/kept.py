#!/usr/bin/env python3
"""Measures how many bytes torchtitan's own Llama layer (0.2.2 or 0.3.0) keeps from its forward to its backward pass.

The layer runs as one rank of a fake process group, sharded and compiled as in torchtitan. Every storage that autograd
saves is counted once, except parameters and rotary tables. With compiler `aot_eager_decomp_partition`, the partitioner
of PyTorch's default compiler decides what is kept, but nothing is compiled for a device.

    bench/trainers/kept.py --torchtitan FOLDER     # with torch 2.13, and torchtitan unpacked in FOLDER

torchtitan is imported without stubs, so it needs its packages: pip install tokenizers einops tensorboard pillow
safetensors torchdata 'datasets<4.8' spmd_types==0.2.3 torch_checkpointing.

Prints one line for each t, recompute and compiler. copus/plan/other_systems_test.cpp has the compiled figures.
"""

import argparse
import contextlib
import logging
import sys
import warnings
from unittest import mock

import stubbed
from stubbed import FEED_FORWARD, HEADS, HIDDEN, KEY_VALUE_HEADS, SEQUENCE, VOCABULARY


def import_torchtitan(folder):
    """Imports torchtitan with a stub for triton. torchtitan's expert layers import triton, which machines without a GPU
    lack and which a dense layer does not use."""
    sys.path.insert(0, folder)
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401  before the stubs, which it would take for triton

    names = ("triton", "triton.language", "triton.testing")
    sys.modules.update({name: mock.MagicMock(__spec__=None) for name in names})
    from torchtitan.models import llama3
    for name in names:
        del sys.modules[name]
    return torch, llama3


def model_of_0_2(torch, ranks, recompute, compiled):
    """The model, and a function that runs its layer on the rows of one rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.config.job_config import ActivationCheckpoint
    from torchtitan.distributed.activation_checkpoint import apply_ac
    from torchtitan.models.llama3.infra.parallelize import _op_sac_save_list, apply_tp
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    model = Transformer(TransformerModelArgs(dim=HIDDEN, n_layers=1, n_heads=HEADS, n_kv_heads=KEY_VALUE_HEADS,
                                             vocab_size=VOCABULARY, multiple_of=256, ffn_dim_multiplier=1.3))
    with torch.no_grad():
        rotary = model._precompute_freqs_cis()[:SEQUENCE].clone()
    if ranks > 1:
        apply_tp(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)), True, False)
    model = model.to(torch.bfloat16)
    model.register_buffer("rotary", rotary)  # not counted as kept by the layer
    if recompute != "none":
        apply_ac(model, ActivationCheckpoint(mode=recompute, selective_ac_option="op"),
                 model_compile_enabled=compiled, op_sac_save_list=_op_sac_save_list)
    return model, lambda rows: model.layers["0"](rows, rotary, None)


def model_of_0_3(torch, ranks, recompute, compiled):
    """Makes the layer of torchtitan 0.3, with PyTorch's fused attention instead of FlexAttention, which needs a
    compiler for the device. Both keep queries, keys, values, the output and a number for each row."""
    from torchtitan.distributed import ParallelDims, parallel_dims, spmd_types
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.distributed.utils import set_spmd_backend
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config

    def fused_attention(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks=None, scale=None, enable_gqa=False, **others):
        query, key, value = (heads.transpose(1, 2) for heads in (q_BLNH, k_BLNH, v_BLNH))
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return output.transpose(1, 2).contiguous()

    FlexAttention.forward = fused_attention
    parallel_dims.device_type = "cpu"
    set_spmd_backend("spmd_types")
    config = llama3.Llama3Model.Config(
        dim=HIDDEN, vocab_size=VOCABULARY,
        tok_embeddings=llama3.Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=HIDDEN),
        norm=llama3.RMSNorm.Config(normalized_shape=HIDDEN),
        lm_head=llama3.Linear.Config(in_features=HIDDEN, out_features=VOCABULARY),
        layers=llama3._build_llama3_layers(
            n_layers=1, dim=HIDDEN, n_heads=HEADS, n_kv_heads=KEY_VALUE_HEADS, hidden_dim=FEED_FORWARD,
            rope=llama3.ComplexRoPE.Config(dim=HIDDEN // HEADS, max_seq_len=4096), attn_backend="flex"))
    set_llama3_sharding_config(config, enable_sp=ranks > 1)
    model = config.build()
    dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=ranks, pp=1, ep=1, world_size=ranks)
    if ranks > 1:
        model.parallelize(dims)
    model = model.to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(stubbed.local(parameter.data))
    if recompute != "none":
        policy = {"full": FullAC, "selective": SelectiveAC}[recompute]
        policy.Config().build(dump_folder="").apply(model)
    positions = torch.arange(SEQUENCE).view(1, SEQUENCE)

    def run(rows):
        mesh = spmd_types.set_current_spmd_mesh(dims.get_mesh("tp")) if ranks > 1 else contextlib.nullcontext()
        with mesh:
            return model.layers["0"](rows, None, positions)

    return model, run


def kept_by_layer(torch, make_model, ranks, recompute, compiled):
    torch._dynamo.reset()
    stubbed.fake_group(ranks)
    model, run = make_model(torch, ranks, recompute, compiled)
    if compiled:
        for name, block in model.layers.named_children():
            model.layers.register_module(
                name, torch.compile(block, backend="aot_eager_decomp_partition", fullgraph=True))
    rows = torch.randn(1, SEQUENCE // ranks, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    if recompute == "selective" and not compiled:
        return stubbed.left_storages(model, rows, lambda: run(rows))
    return stubbed.kept_storages(model, lambda: run(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchtitan", required=True, help="the folder that holds the package, 0.2.2 or 0.3.0")
    folder = parser.parse_args().torchtitan
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch, llama3 = import_torchtitan(folder)
    make_model = model_of_0_3 if hasattr(llama3, "Llama3Model") else model_of_0_2
    for ranks in (1, 2, 4, 8):
        for compiled in (False, True):
            for recompute in ("none", "selective", "full"):
                name = f"t={ranks} recompute={recompute} {'compiled' if compiled else 'eager'}"
                try:
                    stubbed.print_kept(name, kept_by_layer(torch, make_model, ranks, recompute, compiled))
                except Exception as error:  # this PyTorch does not compile it on CPUs
                    print(f"{name}: not measured: {str(error)[:120]!r}", flush=True)


if __name__ == "__main__":
    main()
