#!/usr/bin/env python3
"""Measures how many bytes torchtitan's own Llama layer (0.2.2 or 0.3.0) keeps from its forward to its backward pass.

The layer runs as one rank of a fake process group, cut and compiled as torchtitan cuts and compiles it. Every storage
that autograd saves counts once, parameters and rotary tables not at all. `aot_eager_decomp_partition` decides what is
kept by the partitioner that the default compiler uses, and compiles nothing for a device.

    bench/trainers/kept.py --torchtitan FOLDER     # with torch 2.13, and torchtitan unpacked in FOLDER

Prints one line for each t, recompute and compiler. copus/performance/memory_test.cpp holds the compiled figures.
"""

import argparse
import collections
import contextlib
import logging
import sys
import warnings
from unittest import mock

HIDDEN, FEED_FORWARD, HEADS, KEY_VALUE_HEADS, SEQUENCE, VOCABULARY = 512, 1792, 16, 8, 256, 1024


def import_torchtitan(folder):
    """Its experts import triton, which machines without a GPU lack and a dense layer does not use."""
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


def local(tensor):
    while hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    return tensor


def model_of_0_2(torch, ranks, recompute, compiled):
    """The model, and a function that runs its layer on the rows of a rank."""
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
    model.register_buffer("rotary", rotary)  # not kept for the layer's sake
    if recompute != "none":
        apply_ac(model, ActivationCheckpoint(mode=recompute, selective_ac_option="op"),
                 model_compile_enabled=compiled, op_sac_save_list=_op_sac_save_list)
    return model, lambda rows: model.layers["0"](rows, rotary, None)


def model_of_0_3(torch, ranks, recompute, compiled):
    """Likewise, with PyTorch's fused attention in the place of FlexAttention, which needs a compiler for the device: both
    keep queries, keys, values, the output and a number for each row."""
    from torchtitan.distributed import ParallelDims, parallel_dims, spmd_types
    from torchtitan.distributed.activation_checkpoint import FullAC
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
        torch.nn.init.normal_(local(parameter.data))
    if recompute == "full":
        FullAC.Config().build(dump_folder="").apply(model)
    positions = torch.arange(SEQUENCE).view(1, SEQUENCE)

    def run(rows):
        mesh = spmd_types.set_current_spmd_mesh(dims.get_mesh("tp")) if ranks > 1 else contextlib.nullcontext()
        with mesh:
            return model.layers["0"](rows, None, positions)

    return model, run


def kept_storages(torch, make_model, ranks, recompute, compiled):
    """Bytes of each storage that is kept, by its address."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    model, run = make_model(torch, ranks, recompute, compiled)
    if compiled:
        for name, block in model.layers.named_children():
            model.layers.register_module(
                name, torch.compile(block, backend="aot_eager_decomp_partition", fullgraph=True))
    own = {local(tensor).untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept, alive = {}, []

    def keep(tensor):
        alive.append(local(tensor))  # or its address is used again
        storage = alive[-1].untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = torch.randn(1, SEQUENCE // ranks, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(rows)
    return kept


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
            for recompute in ("none", "full"):
                name = f"t={ranks} recompute={recompute} {'compiled' if compiled else 'eager'}"
                try:
                    kept = kept_storages(torch, make_model, ranks, recompute, compiled)
                except AssertionError as error:  # torch 2.13 does not compile a checkpointed layer of DTensors here
                    print(f"{name}: not measured: {str(error)[:80]}", flush=True)
                    continue
                sizes = collections.Counter(kept.values())
                parts = ", ".join(f"{count} x {size}" for size, count in sorted(sizes.items(), reverse=True))
                print(f"{name}: {sum(kept.values())} bytes ({parts})", flush=True)


if __name__ == "__main__":
    main()
