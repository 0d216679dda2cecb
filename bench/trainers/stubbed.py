"""Shared by the scripts that measure what trainers' layers keep: kernels that keep the same data as GPU kernels, and
functions that count the bytes."""

import gc
import weakref

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

# The measured layer, which is also that of the test of planned bytes: copus/plan/other_systems_test.cpp.
HIDDEN, FEED_FORWARD, HEADS, KEY_VALUE_HEADS, SEQUENCE, VOCABULARY = 512, 1792, 16, 8, 256, 1024


class FusedNorm(torch.autograd.Function):
    """Keeps its input and a number for each row."""

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


class FusedAttention(torch.autograd.Function):
    """Keeps queries, keys, values, the output and a number for each row and head. Takes and returns
    (batch, sequence, heads, width of a head)."""

    @staticmethod
    def forward(ctx, query, key, value):
        heads = [states.transpose(1, 2) for states in (query, key, value)]
        output = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        output = output.transpose(1, 2).contiguous()
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:3], dtype=torch.float))
        return output


def fake_group(ranks):
    """Makes this process rank 0 of a job whose collectives move no data."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())


def local(tensor):
    while hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    return tensor


def kept_storages(layer, run, is_table=lambda tensor: False):
    """Returns the bytes of each storage that `run` keeps for its backward pass, the largest first. The
    layer's parameters and buffers are not counted, nor are the tables of rotations, which all layers share."""
    own = {local(tensor).untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    kept, alive = {}, []

    def keep(tensor):
        alive.append(local(tensor))  # otherwise its address is reused
        storage = alive[-1].untyped_storage()
        if storage.data_ptr() not in own and not is_table(alive[-1]):
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sorted(kept.values(), reverse=True)


class _Made(TorchDispatchMode):
    """Records the bytes of each storage that operations created and that still exists."""

    def __init__(self):
        super().__init__()
        self.alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(made)[0]:
            if isinstance(tensor, torch.Tensor):
                storage = local(tensor).untyped_storage()
                if storage._cdata not in self.alive:
                    self.alive[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, storage._cdata, None)
        return made


def left_storages(layer, stream, run):
    """Like kept_storages, but counts everything that is still allocated after a forward pass, except its result. This
    is needed for selective recompute, which keeps data that autograd's hooks do not see."""
    owned = {local(tensor).untyped_storage()._cdata for tensor in (*layer.parameters(), *layer.buffers(), stream)}
    with _Made() as made:
        result = run()
    gc.collect()
    left = {key: size for key, size in made.alive.items() if key not in owned}
    left.pop(local(result).untyped_storage()._cdata, None)
    return sorted([*left.values(), local(stream).untyped_storage().nbytes()], reverse=True)


def print_kept(name, sizes):
    print(f"{name}: {sum(sizes)} bytes ({', '.join(str(size) for size in sizes)})", flush=True)
