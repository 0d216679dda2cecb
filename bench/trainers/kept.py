#!/usr/bin/env python3
"""Measures how many bytes torchtitan 0.2.2's own Llama layer keeps from its forward to its backward pass, on CPUs.

The layer runs as one rank of a fake process group, cut and compiled as torchtitan cuts and compiles it. Every storage
that autograd saves counts once, parameters and rotary tables not at all. `aot_eager_decomp_partition` decides what is
kept by the partitioner that the default compiler uses, and compiles nothing for a device.

    bench/trainers/kept.py --torchtitan FOLDER     # with torch 2.13, and torchtitan 0.2.2 unpacked in FOLDER

Prints one line for each t, recompute and compiler. copus/performance/memory_test.cpp holds the compiled figures.
"""

import argparse
import collections
import logging
import sys
import warnings
from unittest import mock

HIDDEN, HEADS, KEY_VALUE_HEADS, SEQUENCE, VOCABULARY = 512, 16, 8, 256, 1024


def import_torchtitan(folder):
    """Its experts import triton, which machines without a GPU lack and a dense layer does not use."""
    sys.path.insert(0, folder)
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401  before the stubs, which it would take for triton

    names = ("triton", "triton.language")
    sys.modules.update({name: mock.MagicMock(__spec__=None) for name in names})
    import torchtitan.models.moe.kernels  # noqa: F401
    for name in names:
        del sys.modules[name]
    return torch


def local(tensor):
    while hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    return tensor


def make_layer(torch, ranks, recompute, compiled):
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
    if recompute != "none":
        apply_ac(model, ActivationCheckpoint(mode=recompute, selective_ac_option="op"),
                 model_compile_enabled=compiled, op_sac_save_list=_op_sac_save_list)
    if compiled:
        for name, block in model.layers.named_children():
            model.layers.register_module(
                name, torch.compile(block, backend="aot_eager_decomp_partition", fullgraph=True))
    return model, rotary


def kept_storages(torch, ranks, recompute, compiled):
    """Bytes of each storage that is kept, by its address."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    model, rotary = make_layer(torch, ranks, recompute, compiled)
    own = {local(parameter).untyped_storage().data_ptr() for parameter in model.parameters()}
    own.add(rotary.untyped_storage().data_ptr())
    kept, alive = {}, []

    def keep(tensor):
        alive.append(local(tensor))  # or its address is used again
        storage = alive[-1].untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows = torch.randn(1, SEQUENCE // ranks, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.layers["0"](rows, rotary, None)
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchtitan", required=True, help="the folder that holds the package torchtitan 0.2.2")
    folder = parser.parse_args().torchtitan
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch = import_torchtitan(folder)
    for ranks in (1, 2, 4, 8):
        for compiled in (False, True):
            for recompute in ("none", "full"):
                name = f"t={ranks} recompute={recompute} {'compiled' if compiled else 'eager'}"
                try:
                    kept = kept_storages(torch, ranks, recompute, compiled)
                except AssertionError as error:  # torch 2.13 does not compile a checkpointed layer of DTensors here
                    print(f"{name}: not measured: {str(error)[:80]}", flush=True)
                    continue
                sizes = collections.Counter(kept.values())
                parts = ", ".join(f"{count} x {size}" for size, count in sorted(sizes.items(), reverse=True))
                print(f"{name}: {sum(kept.values())} bytes ({parts})", flush=True)


if __name__ == "__main__":
    main()
