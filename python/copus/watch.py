"""Reads each rank's own gradients where they are reduced, for jobs whose steps have a single micro-batch.

Behind the reduction local gradients are gone; before it every rank holds the gradient of its own samples. DDP lets a
communication hook see its buckets then, FSDP2 a reduce-scatter of one's own its buffers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from copus._core import UserError
from copus.gradient_norms import Layout, fsdp_groups, squared_norm, weight_of_part


class Reading(NamedTuple):
    """This rank's share of the squared norm of local gradients, of the first of `passes` reductions in the step."""

    share: Tensor
    passes: int


class Watch:
    """What was reduced since the step before. `take` returns it and begins anew."""

    def __init__(self, layout: Layout, loss_scale: Callable[[], float] | None):
        self.layout, self.loss_scale = layout, loss_scale
        self._shares: list[Tensor] = []
        self._passes: dict[Any, int] = {}
        self._scale = 1.0
        self.is_known = True

    def reduced(self, source: Any, share: Callable[[], Tensor] | None) -> None:
        """`source` (a bucket, or a module's group) is being reduced; `share`: how to read it, None where that fails."""
        passes = self._passes.get(source, 0)
        self._passes[source] = passes + 1
        if passes:
            return
        if not self._shares and self.loss_scale is not None:
            self._scale = float(self.loss_scale())
        if share is None:
            self.is_known = False
        else:
            self._shares.append(share())

    def take(self) -> Reading | None:
        shares, passes, is_known = self._shares, set(self._passes.values()), self.is_known
        self._shares, self._passes, self.is_known = [], {}, True
        if not shares or not is_known or len(passes) != 1:
            return None
        return Reading(sum(shares[1:], start=shares[0]) / self._scale**2, passes.pop())


def watch_ddp(
    model: torch.nn.parallel.DistributedDataParallel, watch: Watch, hook: Callable | None, state: Any
) -> None:
    """Registers a hook that reads each bucket and hands it to `hook`, or to DDP's own way of averaging."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    inner = hook if hook is not None else allreduce_hook
    inner_state = state if hook is not None else model.process_group
    weight = weight_of_part(1, watch.layout)

    def copus_reading_hook(_: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:
        watch.reduced(bucket.index(), lambda: weight * squared_norm(bucket.gradients()))
        return inner(inner_state, bucket)

    try:
        model.register_comm_hook(None, copus_reading_hook)
    except RuntimeError as error:
        raise UserError(
            "Adviser.watch: the model has a communication hook already, and DDP takes one alone. Do not register "
            "yours, give it here: watch(model, hook=..., state=...)"
        ) from error


def watch_fsdp(model: torch.nn.Module, watch: Watch) -> None:
    """Gives every group of parameters of fully_shard a reduce-scatter that reads what it sends."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class ReadingReduceScatter(ReduceScatter):
        def __init__(self, inner: ReduceScatter, columns: list[tuple[int, float]]):
            self.inner, self.columns = inner, columns

        def allocate(self, *arguments: Any, **named: Any) -> Tensor:
            return self.inner.allocate(*arguments, **named)

        def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False):
            # A sum, rather than a mean, has been divided before, by what only FSDP2 knows.
            is_mean = op == torch.distributed.ReduceOp.AVG
            share = _share_of_columns(input_tensor, group.size(), self.columns) if is_mean else None
            watch.reduced(self, share)
            return self.inner(output_tensor, input_tensor, group=group, op=op, async_op=async_op)

    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in fsdp_groups(module._get_fsdp_state()):
            mesh_info, parameters = group.mesh_info, [managed.sharded_param for managed in group.fsdp_params]
            columns = [(_columns(each, mesh_info), _weight(each, mesh_info, watch)) for each in parameters]
            group._reduce_scatter_comm = ReadingReduceScatter(group._reduce_scatter_comm, columns)


def _columns(parameter: Tensor, mesh_info: Any) -> int:
    """What each rank gets of a parameter, with the padding that makes all parts equal."""
    shape = list(parameter.to_local().shape)
    # A rank's own part may be shorter: the length of the longest follows from the whole one.
    dimension = next(p.dim for p in parameter.placements if hasattr(p, "dim"))
    whole = torch.tensor(shape)
    length = parameter.shape[dimension]
    for index, placement in enumerate(parameter.placements):
        if getattr(placement, "dim", None) == dimension and index >= mesh_info.mesh.ndim:
            length = -(-length // parameter.device_mesh.size(index))
    whole[dimension] = -(-length // mesh_info.shard_mesh_size)
    return int(whole.prod())


def _weight(parameter: Tensor, mesh_info: Any, watch: Watch) -> float:
    """Along the data-parallel dimensions, which come first, each rank still holds a gradient of its own."""
    parts = 1
    for dimension, placement in enumerate(parameter.placements):
        if dimension >= mesh_info.mesh.ndim and not placement.is_replicate():
            parts *= parameter.device_mesh.size(dimension)
    return weight_of_part(parts, watch.layout)


def _share_of_columns(buffer: Tensor, ranks: int, columns: list[tuple[int, float]]) -> Callable[[], Tensor] | None:
    """How to read a buffer of [ranks, columns]; None where parameters without gradients leave its columns unknown."""
    if len({weight for _, weight in columns}) == 1:
        return lambda: columns[0][1] * squared_norm([buffer])
    if sum(size for size, _ in columns) * ranks != buffer.numel():
        return None

    def read() -> Tensor:
        rows, begin, parts = buffer.view(ranks, -1), 0, []
        for size, weight in columns:
            parts.append(weight * squared_norm([rows[:, begin : begin + size]]))
            begin += size
        return torch.stack(parts).sum()

    return read
