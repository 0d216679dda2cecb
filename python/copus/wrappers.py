"""Refuses, by name, model wrappers whose gradients the adviser cannot find in the usual place."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

import torch
from torch import Tensor

from copus._core import UserError

_USE_FSDP2 = "use torch.distributed.fsdp.fully_shard (FSDP2) instead, or train without the adviser"
_WITHOUT = "use DDP or fully_shard (FSDP2) instead, or train without the adviser"

# Marks that wrappers leave on parameters: the attribute, its meaning, and what to do.
_MARKS_OF_PARAMETERS = (
    (("_fsdp_flattened", "_is_flat_param"), "FullyShardedDataParallel (FSDP1)", "holds gradients as flat shards",
     _USE_FSDP2),
    (("ds_id", "ds_tensor", "_hp_mapping"), "DeepSpeed", "keeps gradients to itself", _WITHOUT),
    (("_megatron_fsdp_model",), "MegatronFSDP", "keeps gradients in buffers of its own", _USE_FSDP2),
    (("main_grad", "grad_added_to_main_grad"), "Megatron's DistributedDataParallel", "keeps gradients in main_grad",
     _WITHOUT),
)  # fmt: skip

# Names of classes of models.
_CLASSES = {
    "FullyShardedDataParallel": ("FullyShardedDataParallel (FSDP1)", _USE_FSDP2),
    "XlaFullyShardedDataParallel": ("XlaFullyShardedDataParallel", _WITHOUT),
    "DeepSpeedEngine": ("DeepSpeed", _WITHOUT),
    "PipelineEngine": ("DeepSpeed's pipeline", _WITHOUT),
    "PipelineModule": ("DeepSpeed's pipeline", _WITHOUT),
    "MegatronFSDP": ("MegatronFSDP", _USE_FSDP2),
    "ShardedDataParallel": ("FairScale's ShardedDataParallel", _WITHOUT),
}


def refuse_wrapped(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        for marks, name, what, instead in _MARKS_OF_PARAMETERS:
            # False is PyTorch's own value for a mark that does not hold.
            if any(getattr(parameter, mark, False) is not False for mark in marks):
                raise UserError(f"the parameters are of {name}, which {what}: not supported; {instead}")
        if type(parameter).__name__ == "FlatParameter":
            raise UserError(f"the parameters are flat shards (FlatParameter): not supported; {_USE_FSDP2}")


def refuse_wrapper(model: torch.nn.Module) -> None:
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _CLASSES:
                name, instead = _CLASSES[kind.__name__]
                raise UserError(f"the model is wrapped by {name}: not supported; {instead}")
            if kind.__module__.startswith("megatron.") and "DataParallel" in kind.__name__:
                raise UserError(f"the model is wrapped by Megatron's {kind.__name__}: not supported; {_WITHOUT}")


def refuse_pipeline_stages() -> None:
    """Raises if PyTorch's pipeline stages exist and pipeline_parallel was not given."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    base = getattr(stages, "_PipelineStageBase", None)
    if base is not None and any(isinstance(each, base) for each in gc.get_objects()):
        raise UserError(
            "the ranks hold pipeline stages (torch.distributed.pipelining): say Adviser(pipeline_parallel=...), the "
            "number of stages, and give step the norm over all stages"
        )
