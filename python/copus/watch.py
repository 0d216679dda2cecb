"""Reads each rank's own gradients when they are reduced, for jobs whose steps have a single micro-batch.

Before the reduction every rank holds the gradient of its own samples; afterwards these local gradients are gone. With
DDP they are in p.grad until the backward pass ends. FSDP2 passes its buffers to a reduce-scatter that can be replaced.
Neither method changes what is reduced, or how.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from copus._core import UserError
from copus.gradient_norms import Layout, fsdp_groups, squared_norm, weight_of_part


class Reading(NamedTuple):
    """This rank's share of the squared norm of local gradients, for the first of `passes` reductions in the step."""

    share: Tensor
    passes: int


class Watch:
    """Records what has been reduced since the previous step. `take` returns the record and restarts it."""

    def __init__(self, layout: Layout, loss_scale: Callable[[], float] | None, micro_batches: int):
        self.layout, self.loss_scale, self.micro_batches = layout, loss_scale, micro_batches
        self.error: Exception | None = None  # of a reading: no backward pass ends by it
        self._shares: list[Tensor] = []
        self._passes: dict[Any, int] = {}
        self._scale = 1.0
        self.is_known = True

    def reduced(self, source: Any, share: Callable[[], Tensor | None] | None) -> None:
        """`source` (a model, or a module's group) is being reduced. `share`: how to read it, None if that fails."""
        try:
            passes = self._passes.get(source, 0)
            self._passes[source] = passes + 1
            if passes:
                return
            if not self._shares and self.loss_scale is not None:
                self._scale = float(self.loss_scale())
            found = share() if share is not None else None
            if found is None:
                self.is_known = False
            else:
                self._shares.append(found)
        except Exception as error:
            self.error = error

    def forget(self) -> None:
        self._shares, self._passes, self.is_known = [], {}, True

    def take(self) -> Reading | None:
        """Returns None if nothing was reduced, or not all of it could be read."""
        shares, passes, is_known = self._shares, set(self._passes.values()), self.is_known
        self.forget()
        error, self.error = self.error, None
        if error is not None:
            raise error
        if not shares or not is_known or len(passes) != 1:
            return None
        return Reading(sum(shares[1:], start=shares[0]) / self._scale**2, passes.pop())


class _DdpReader:
    """Reads the gradients that a backward pass has left in p.grad, before DDP writes the reduced gradients there.

    DDP writes the reduced gradients in a callback at the end of the pass, which it queues after the last gradient. A
    callback that is queued earlier runs first and still finds the local gradients. There are two exceptions. With
    gradient_as_bucket_view, p.grad itself is reduced. With a static graph, the first pass queues its callback at the
    beginning. In these cases each gradient is read when it is accumulated.
    """

    def __init__(self, model: torch.nn.parallel.DistributedDataParallel, watch: Watch):
        self._model, self._watch = model, watch
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._reads_each = model.gradient_as_bucket_view or model.static_graph
        self._weight = weight_of_part(1, watch.layout)
        self._is_in_pass = False
        self._read: list[Tensor] = []
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: Tensor) -> None:
        try:
            if not self._model.require_backward_grad_sync:
                return  # within no_sync: the gradient of a later pass holds this one
            if not self._is_in_pass:
                torch.autograd.Variable._execution_engine.queue_callback(self._pass_ends)
                self._is_in_pass = True
            if self._reads_each and parameter.grad is not None:
                self._read.append(self._weight * squared_norm([parameter.grad]))
        except Exception as error:
            self._watch.error = error

    def _pass_ends(self) -> None:
        self._is_in_pass = False
        read, self._read = self._read, []
        self._watch.reduced(self, lambda: torch.stack(read).sum() if self._reads_each else self._share())

    def _share(self) -> Tensor | None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return self._weight * squared_norm(gradients) if gradients else None


def watch_ddp(model: torch.nn.parallel.DistributedDataParallel, watch: Watch) -> None:
    _DdpReader(model, watch)


def refuse_sparse_gradients(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise UserError(
                f"Adviser.watch: the gradient of {name or 'the model'} is sparse, which is not supported: build the "
                "embedding with sparse=False"
            )


def watch_fsdp(model: torch.nn.Module, watch: Watch) -> None:
    """Gives every parameter group of fully_shard a reduce-scatter that reads what it sends."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    class ReadingReduceScatter(ReduceScatter):
        def __init__(self, inner: ReduceScatter, columns: list[tuple[int, float]]):
            self.inner, self.columns = inner, columns

        def allocate(self, *arguments: Any, **named: Any) -> Tensor:
            return self.inner.allocate(*arguments, **named)

        def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False):
            # For a sum instead of a mean, FSDP2 has already divided the gradient by a number that only FSDP2 knows.
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
    """Each rank's columns of a parameter, including the padding that makes all parts equal."""
    shape = list(parameter.to_local().shape)
    # This rank's part may be shorter than others; the longest one follows from the whole parameter.
    dimension = next(p.dim for p in parameter.placements if hasattr(p, "dim"))
    length = parameter.shape[dimension]
    for index, placement in enumerate(parameter.placements):
        if getattr(placement, "dim", None) == dimension and index >= mesh_info.mesh.ndim:
            length = -(-length // parameter.device_mesh.size(index))
    shape[dimension] = -(-length // mesh_info.shard_mesh_size)
    return math.prod(shape)


def _weight(parameter: Tensor, mesh_info: Any, watch: Watch) -> float:
    """The weight along the data-parallel dimensions, which come first: each rank still has its own gradient."""
    parts = 1
    for dimension, placement in enumerate(parameter.placements):
        if dimension >= mesh_info.mesh.ndim and not placement.is_replicate():
            parts *= parameter.device_mesh.size(dimension)
    return weight_of_part(parts, watch.layout)


def _share_of_columns(buffer: Tensor, ranks: int, columns: list[tuple[int, float]]) -> Callable[[], Tensor] | None:
    """How to read a buffer of [ranks, columns]; None if parameters without gradients make its columns unknown."""
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
