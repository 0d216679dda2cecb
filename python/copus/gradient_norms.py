"""Computes this rank's part of the squared norm of a gradient, for any parallelism of the parameters.

A local gradient is one complete gradient of the model, on one rank or sharded over several. With data parallelism each
rank holds one, with FSDP2 all ranks together hold one, and with tensor parallelism the ranks of each replica together
hold one. The parts of all ranks add up to the mean squared norm of the local gradients; each element of the model is
counted once. After an all-reduce the local gradients are equal, so the mean is the squared norm itself.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

try:
    from torch.distributed.tensor import DTensor, Replicate
except ImportError:  # PyTorch without its distributed package
    DTensor = Replicate = None  # type: ignore[assignment, misc]

from copus._core import UserError

# Names of mesh dimensions along which ranks read different samples. If all dimensions of a mesh have names, its other
# dimensions are taken as model parallelism.
DATA_PARALLEL_NAMES = frozenset(
    "dp data data_parallel ddp fsdp dp_shard dp_replicate dp_shard_cp shard replicate hsdp batch replica".split()
)


_NARROW = (torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which of a job's ranks read which samples."""

    ranks: int = 1
    replicas: int = 1  # of the model; different replicas read different samples
    shards: int = 1  # replicas that hold one gradient among them, in shards, which is reduced as it is written (FSDP2)
    pipeline_stages: int = 1

    @property
    def copies(self) -> int:
        """Copies of the gradient in the job. Local ones differ, reduced ones are equal."""
        return self.replicas // self.shards

    @property
    def tensor_parallel(self) -> int:
        return self.ranks // (self.replicas * self.pipeline_stages)


def find_layout(
    parameters: list[Tensor], ranks: int, data_parallel: int | None = None, pipeline_stages: int = 1
) -> Layout:
    """Returns the number of replicas of the model that `ranks` ranks hold, from the parameters' meshes.

    If the meshes do not determine it, `data_parallel` must be given.
    """
    sharded_by_fsdp = _data_parallelism_of_fsdp()
    model_parallel, shards = 1, 1
    for parameter in parameters:
        if DTensor is None or not isinstance(parameter, DTensor):
            continue
        if id(parameter) in sharded_by_fsdp:
            replicas, shards_here = sharded_by_fsdp[id(parameter)]
            shards = max(shards, shards_here)
            model_parallel = max(model_parallel, parameter.device_mesh.size() // replicas)
        elif data_parallel is None:
            model_parallel = max(model_parallel, _model_parallelism(parameter.device_mesh))
    if data_parallel is None:
        data_parallel, rest = divmod(ranks, model_parallel * pipeline_stages)
        if rest:
            raise UserError(
                f"{ranks} ranks are no multiple of tensor parallelism {model_parallel} x pipeline_parallel "
                f"{pipeline_stages}: give Adviser(data_parallel=...), the number of ranks that read different samples"
            )
    elif ranks % (data_parallel * pipeline_stages) or data_parallel % shards:
        raise UserError(
            f"data_parallel={data_parallel} and pipeline_parallel={pipeline_stages} do not fit {ranks} ranks"
            + (f" of which {shards} share out the parameters by FSDP" if shards > 1 else "")
        )
    return Layout(ranks, data_parallel, shards, pipeline_stages)


def _data_parallelism_of_fsdp() -> dict[int, tuple[int, int]]:
    """Returns, by id of each parameter that fully_shard manages, its data-parallel ranks and how many shards they hold.

    PyTorch marks neither the parameters nor their meshes, so this reads its register of modules, which is private and
    may disappear.
    """
    try:
        from torch.distributed._composable_state import _module_state_mapping
    except ImportError:
        return {}
    found = {}
    for reference in list(_module_state_mapping.values()):
        for group in fsdp_groups(reference()):
            replicas, shards = group.mesh_info.mesh.size(), getattr(group.mesh_info, "shard_mesh_size", 1)
            for managed in group.fsdp_params:
                found[id(managed.sharded_param)] = replicas, shards
    return found


def fsdp_groups(state: object) -> list:
    """The parameter groups of a module's FSDP2 state; before PyTorch 2.13 there may be only one."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def _model_parallelism(mesh: "torch.distributed.DeviceMesh") -> int:
    """How many ranks of a mesh together hold one replica."""
    names = mesh.mesh_dim_names
    if names is None:
        if mesh.ndim == 1:
            return mesh.size()  # a mesh that was passed to parallelize_module only
        raise UserError(
            f"the parameters lie on a mesh of {mesh.ndim} dimensions without names: give them names, such as "
            'mesh_dim_names=("dp", "tp"), or say Adviser(data_parallel=...), the number of ranks that read different '
            "samples"
        )
    size = 1
    for dimension, name in enumerate(names):
        if name not in DATA_PARALLEL_NAMES:
            size *= mesh.size(dimension)
    return size


def squared_norm_share(parameters: list[Tensor], layout: Layout) -> Tensor | None:
    """Returns this rank's part of the squared norm, a float64 scalar on the gradients' device; None if no parameter has
    a gradient.

    A parameter without a gradient is taken as zero. Norms of single tensors are accumulated in float32, their squares
    in float64. The function does not wait for the device. Gradients that are partial sums over a mesh (as for
    sequence-parallel weights) are first summed by a collective of the mesh's ranks, so all of these ranks must call it.
    """
    gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
    if not gradients:
        return None
    if _are_plain(gradients):
        return squared_norm(gradients) * weight_of_part(1, layout)
    by_weight: dict[float, list[Tensor]] = {}
    for gradient in gradients:
        local, weight = _local_part(gradient, layout)
        by_weight.setdefault(weight, []).append(local)
    shares = [weight * squared_norm(tensors) for weight, tensors in by_weight.items()]
    return sum(shares[1:], start=shares[0])


def _are_plain(gradients: list[Tensor]) -> bool:
    """Whether each is whole and dense, as usual: none then needs to be examined separately."""
    return {type(each) for each in gradients} == {Tensor} and {each.layout for each in gradients} == {torch.strided}


def _local_part(gradient: Tensor, layout: Layout) -> tuple[Tensor, float]:
    """This rank's part of a gradient, and the weight of its squares with which every number counts once."""
    if DTensor is not None and isinstance(gradient, DTensor):
        if any(placement.is_partial() for placement in gradient.placements):
            gradient = gradient.redistribute(
                placements=[Replicate() if placement.is_partial() else placement for placement in gradient.placements]
            )
        parts = 1
        for dimension, placement in enumerate(gradient.placements):
            if not placement.is_replicate():
                parts *= gradient.device_mesh.size(dimension)
        return gradient.to_local(), weight_of_part(parts, layout)
    if gradient.layout != torch.strided:
        raise UserError(
            f"a gradient of shape {tuple(gradient.shape)} is sparse, which is not supported: build the embedding with "
            "sparse=False"
        )
    return gradient, weight_of_part(1, layout)


def weight_of_part(parts: int, layout: Layout) -> float:
    """Returns the weight of a rank's squares if a copy of the tensor is split into `parts`: 1 / the number of copies.

    With a pipeline, a tensor is only on the ranks of one stage.
    """
    return parts * layout.pipeline_stages / layout.ranks


def squared_norm(tensors: list[Tensor]) -> Tensor:
    """Returns the sum of all squares, a float64 scalar on the device of the first tensor, without waiting for the
    device.

    Each tensor's norm is computed as in clip_grad_norm_. On CPUs float32 loses up to 0.2 % of the norm of a tensor with
    tens of millions of numbers. Both norms of a step lose the same, so their ratio is hardly affected.
    """
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) == 1:
        dtype = torch.float32 if tensors[0].dtype in _NARROW else None
        norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype))
        # Gradients of backward(create_graph=True) have a graph, which is not needed here.
        return torch.linalg.vector_norm(norms, dtype=torch.float64).square().detach()
    device = tensors[0].device
    ordered = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)  # alike in every run
    parts = [squared_norm([tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]) for kind in ordered]
    return torch.stack([part.to(device, non_blocking=True) for part in parts]).sum()


def norm_and_share(norm: Tensor | float, layout: Layout) -> tuple[Tensor | float | None, Tensor | float | None]:
    """Returns the norm if it is the norm of the whole gradient; otherwise None and this rank's part of the squared
    norm.

    FSDP2's clip_grad_norm_ returns a DTensor of partial norms, which are used directly, without a collective.
    """
    if DTensor is None or not isinstance(norm, DTensor):
        return norm, None
    parts = 1
    for dimension, placement in enumerate(norm.placements):
        if placement.is_partial():
            if getattr(placement, "norm_type", 2) != 2:
                raise UserError("step was given a norm of another order; expected the 2-norm of the gradient")
            parts *= norm.device_mesh.size(dimension)
    local = norm.to_local()
    if parts == 1:
        return local, None
    return None, local.double().square() * weight_of_part(parts, layout)
