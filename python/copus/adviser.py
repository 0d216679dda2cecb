"""The adviser: two calls in a PyTorch training loop, which tell how large a batch still pays.

    adviser = copus.Adviser(batch=512, sequence_length=2048)
    # after the first micro-batch's backward:
    adviser.first_micro_batch(model.parameters(), samples=8)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    advice = adviser.step(norm, samples=512, seconds=dt, lr=lr)

Every rank of the job makes both calls. The steps' norms reach the other ranks while the next step trains, and what rank
0 makes of them with the step after that, so advice comes two steps after the one that it rests on; three where the
gradients are on an accelerator. In a single process on the processor it comes at once, on an accelerator a step later.
"""

from __future__ import annotations

import collections
import math
import operator
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from copus import _core
from copus.advice import Advice
from copus.exchange import Exchange
from copus.gradient_norms import Layout, distinct, find_layout, norm_and_share, squared_norm_share
from copus.input_checks import InputChecks
from copus.watch import Watch, watch_ddp, watch_fsdp

UserError = _core.UserError

NEW_FOLDER = "runs/adviser-{time}"
_STATE_VERSION = 1
_STEPS_BEFORE_A_COMPLAINT = 16
_ADVICE_NUMBERS = (
    "step", "batch", "micro_batches", "learning_rate_factor", "gain", "gain_low", "gain_high", "noise_scale",
    "noise_scale_low", "noise_scale_high", "critical_batch",
)  # fmt: skip
_UNKNOWN = float("nan")


class AdviserWarning(UserWarning):
    """Something that keeps the adviser from measuring, or its numbers from being right. Each is said once."""


class _Row(NamedTuple):
    """What a rank tells the others of a step. NaN: it has nothing to tell."""

    samples: float
    seconds: float
    small_samples: float  # of this rank's first micro-batch
    small_share: float  # of its gradient's squared norm
    norm: float  # of the whole gradient, or
    norm_share: float  # this rank's share of its square
    watched_share: float
    watched_passes: float
    loss: float
    changed: float  # 1 where other parameters have gradients than in the step before
    advice: tuple[float, ...]

    def numbers(self) -> list[float]:
        return [*self[:-1], *self.advice]

    @classmethod
    def of(cls, numbers: list[float]) -> _Row:
        fields = len(cls._fields) - 1
        return cls(*numbers[:fields], tuple(numbers[fields:]))


class _Small(NamedTuple):
    """The mean squared norm of gradients of so few sequences, every factor undone."""

    batch: float
    squared_norm: float


class _Pending(NamedTuple):
    """A step whose numbers are on their way from the device."""

    host: dict[str, float]
    on_device: tuple[str, ...]
    copied: Tensor | None
    event: Any
    lr: float | None
    loss_tokens: int | None

    def numbers(self) -> dict[str, float]:
        if self.copied is None:
            return self.host
        if self.event is not None:
            self.event.synchronize()
        return self.host | dict(zip(self.on_device, self.copied.tolist()))


class Adviser:
    """Measures the gradient noise scale of a training job and advises on its batch.

    Args:
        batch: sequences of a step, over all ranks.
        sequence_length: tokens of a sequence.
        reference_batch: the batch that your learning rate was tuned for; by default `batch`.
        batches: the batches to choose among; by default doublings and halves that the micro-batch divides.
        max_steps, max_tokens: how long the job trains, if known; a change that cannot pay any more is not advised then,
            and decisions come after a sixteenth of the job at the latest.
        data_parallel: ranks that read different samples; by default found from the parameters' meshes.
        pipeline_parallel: stages that the ranks hold the model in; each calls with its own stage's parameters.
        directory: for run.jsonl and decisions.jsonl, which `copus report` and `copus replay` read; rank 0 alone writes.
            By default a new folder, which is printed; None writes nothing.
        settings: any of Copus' [noise_scale], [adapt] and [optimizer], such as {"adapt.interval_samples": 512}.
        timeout_seconds: how long to wait for another rank's numbers before the ranks that are missing are named.

    Raises copus.UserError for calls and arguments that cannot be right; where ranks differ, on all of them in the same
    step. Says what keeps it from measuring by an AdviserWarning, once.
    """

    def __init__(
        self,
        batch: int,
        sequence_length: int,
        *,
        reference_batch: int | None = None,
        batches: Iterable[int] | None = None,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        data_parallel: int | None = None,
        pipeline_parallel: int = 1,
        directory: str | os.PathLike[str] | None = NEW_FOLDER,
        settings: Mapping[str, object] | None = None,
        timeout_seconds: float = 600.0,
    ):
        self._settings: dict[str, object] = {
            "batch": _positive("batch", batch),
            "sequence_length": _positive("sequence_length", sequence_length),
        }
        given = {"reference_batch": reference_batch, "max_steps": max_steps, "max_tokens": max_tokens}
        self._settings |= {name: _positive(name, value) for name, value in given.items() if value is not None}
        if batches is not None:
            self._settings["batches"] = [_positive("batches", each) for each in batches]
        self._settings |= dict(settings or {})
        self._data_parallel = data_parallel
        self._pipeline_parallel = _positive("pipeline_parallel", pipeline_parallel)
        self._directory = directory
        self._timeout_seconds = timeout_seconds
        self._checks = InputChecks()
        self._exchange: Exchange | None = None
        self._layout: Layout | None = None
        self._parameters: list[Tensor] = []
        self._identity: tuple[int, int] | None = None
        self._changed = False
        self._first: tuple[int, Tensor | float] | None = None
        self._watch: Watch | None = None
        self._pending: collections.deque[_Pending] = collections.deque()
        self._sent: collections.deque[tuple[float | None, int | None]] = collections.deque()
        self._core: _core.Adviser | None = None
        self._loaded: dict[str, Any] | None = None
        self._news: dict[str, object] | None = None  # advice that the other ranks do not know yet
        self._reasons: dict[int, str] = {}
        self._advice: Advice | None = None
        self._steps = 0
        self._unmeasured = 0
        self._lags = False
        self._said: set[str] = set()

    def first_micro_batch(
        self, parameters: Iterable[Tensor], samples: int, loss_scale: Tensor | float = 1.0
    ) -> None:
        """Reads the gradient that the first micro-batch of a step has left in p.grad. Call it after its backward.

        Args:
            parameters: model.parameters(), of DDP's or FSDP2's model too; those without a gradient count as zero.
            samples: sequences of this rank's micro-batch.
            loss_scale: what the loss was multiplied by beside the accumulation, such as GradScaler's get_scale().

        p.grad has to be zero or None before the step's first backward, and unclipped. Steps may be left out.
        """
        if self._first is not None:
            raise UserError(
                f"first_micro_batch was called twice in step {self._steps + 1}; call it once, after the first "
                "micro-batch's backward, and call step also where an update is skipped (with the norm, or with nan)"
            )
        _positive("samples", samples, "first_micro_batch")
        self._look_at(distinct(parameters))
        share = squared_norm_share(self._parameters, self._layout)
        if share is None:
            share = 0.0
        if not isinstance(loss_scale, Tensor) and not loss_scale > 0:
            raise UserError(f"first_micro_batch(loss_scale={loss_scale}): expected a number above 0")
        if isinstance(loss_scale, Tensor) or loss_scale != 1.0:
            share = share / loss_scale**2
        self._first = samples, share

    def watch(
        self,
        model: torch.nn.Module,
        *,
        loss_scale: Callable[[], float] | None = None,
        hook: Callable | None = None,
        state: Any = None,
    ) -> None:
        """Reads each rank's own gradient where it is reduced, which serves steps of a single micro-batch.

        Call it once, before the first backward. It serves DDP, of which it takes the one communication hook that there
        is (give your own as `hook` and `state`, as for register_comm_hook), and FSDP2, of which it replaces the
        reduce-scatter. first_micro_batch may be called beside it; the smaller batch of the two counts.
        `loss_scale`: with a gradient scaler, its get_scale.
        """
        if self._ranks() == 1:
            raise UserError(
                "Adviser.watch: a single rank reduces no gradients, so with one micro-batch a step the noise scale is "
                "not measurable; cut the batch into two micro-batches at least and call first_micro_batch"
            )
        if self._watch is not None:
            raise UserError("Adviser.watch was called before; one model is watched, for as long as it trains")
        self._look_at(distinct(model.parameters()))
        watch = Watch(self._layout, loss_scale)
        try:
            from torch.distributed.fsdp import FSDPModule
        except ImportError:
            FSDPModule = ()  # type: ignore[assignment, misc]
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            watch_ddp(model, watch, hook, state)
        elif any(isinstance(module, FSDPModule) for module in model.modules()):
            watch_fsdp(model, watch)
        else:
            raise UserError(
                "Adviser.watch was given a model that is neither of DistributedDataParallel nor of fully_shard, so "
                "nothing tells when its gradients are reduced: not measurable with one micro-batch a step; cut it into "
                "two and call first_micro_batch"
            )
        self._watch = watch

    def step(
        self,
        norm: Tensor | float,
        samples: int,
        seconds: float,
        lr: float | None = None,
        loss: Tensor | float | None = None,
        loss_tokens: int | None = None,
    ) -> Advice | None:
        """Tells of a finished step; returns advice where another batch pays, else None. The same on all ranks.

        Args:
            norm: 2-norm of the whole gradient before clipping, as clip_grad_norm_ returns it (for FSDP2 a DTensor, as
                it is); with a gradient scaler after unscale_. Not finite: the step counts as skipped.
            samples: sequences of the step, over all ranks and micro-batches.
            seconds: that the step took.
            lr, loss, loss_tokens: for the log; the loss as the loop has it, in nats per token. A tensor is read a step
                later, so that nothing waits for the device.

        Advice that is not followed is given again when the adviser has decided anew.
        """
        _positive("samples", samples, "step")
        if not (math.isfinite(seconds) and seconds > 0):
            raise UserError(f"step(seconds={seconds}): expected the seconds of the step, above 0")
        if self._layout is None:
            self._layout = find_layout([], self._ranks(), self._data_parallel, self._pipeline_parallel)
        self._steps += 1
        whole_norm, norm_share = norm_and_share(norm, self._layout)
        small_samples, small_share = self._first if self._first is not None else (None, None)
        watched = self._watch.take() if self._watch is not None else None
        values = {
            "samples": operator.index(samples), "seconds": seconds,
            "small_samples": small_samples, "small_share": small_share,
            "norm": whole_norm, "norm_share": norm_share, "watched_share": watched.share if watched else None,
            "watched_passes": watched.passes if watched else None, "loss": loss, "changed": float(self._changed),
        }  # fmt: skip
        self._pending.append(_pending(values, lr, loss_tokens))
        self._first, self._changed = None, False
        if self._ranks() > 1:
            self._step_of_many()
        else:
            self._step_of_one()
        advice, self._advice = self._advice, None  # state_dict may have received it before this step
        return advice

    def noise_scale(self) -> tuple[float | None, float, float | None] | None:
        """The noise scale in sequences and the ends of its 95 % interval, on rank 0; None while too little is known."""
        noise = self._core.noise() if self._core is not None else None
        return (noise["value"], noise["low"], noise["high"]) if noise is not None else None

    @property
    def directory(self) -> pathlib.Path | None:
        """Where the logs are, once the first step has been measured."""
        return self._directory if isinstance(self._directory, pathlib.Path) else None

    def state_dict(self) -> dict[str, Any]:
        """What a restarted process goes on from; save rank 0's with your checkpoint."""
        self._finish()
        if self._core is None and self._loaded is not None:
            return self._loaded | {"steps": self._steps}
        return {
            "version": _STATE_VERSION,
            "steps": self._steps,
            "directory": None if self.directory is None else str(self.directory),
            "core": None if self._core is None else self._core.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, in its directory if none was given here: lines of later steps are cut there."""
        if self._steps:
            raise UserError("Adviser.load_state_dict: steps have been taken already; call it before the first one")
        if state.get("version") != _STATE_VERSION:
            raise UserError(f"Adviser.load_state_dict: version {state.get('version')!r}; expected {_STATE_VERSION}")
        if self._rank() == 0 and state["steps"] and state["core"] is None:
            warnings.warn(
                "the adviser's state holds no measurements, as that of a rank other than 0: it begins anew",
                AdviserWarning,
                stacklevel=2,
            )
        self._steps = state["steps"]
        self._loaded = dict(state)

    def close(self) -> None:
        """Writes what is known of the last steps. Without it, the last one or two are missing in the logs."""
        state = self.state_dict()
        if self._core is not None:
            self._core.close()
            self._core, self._loaded = None, state

    def _ranks(self) -> int:
        has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if has_ranks else 1

    def _rank(self) -> int:
        return torch.distributed.get_rank() if self._ranks() > 1 else 0

    def _look_at(self, parameters: list[Tensor]) -> None:
        """Notices when other parameters are trained than before."""
        identity = (len(parameters), sum(parameter.numel() for parameter in parameters))
        if identity == self._identity and self._layout is not None:
            self._parameters = parameters
            return
        self._layout = find_layout(parameters, self._ranks(), self._data_parallel, self._pipeline_parallel)
        self._changed = self._identity is not None
        self._identity, self._parameters = identity, parameters

    def _step_of_one(self) -> None:
        for pending in self._known():
            row = self._row(pending, None)
            self._complete([row], pending.lr, pending.loss_tokens)
            if self._news is not None:
                self._advice, self._news = self._as_advice(self._news), None

    def _step_of_many(self) -> None:
        if self._exchange is None:
            self._exchange = Exchange(self._timeout_seconds)
            self._exchange.connect()
        self._receive()
        for pending in self._known():
            self._exchange.send(self._row(pending, self._news).numbers())
            self._sent.append((pending.lr, pending.loss_tokens))
            self._news = None

    def _known(self) -> Iterator[_Pending]:
        """The steps whose numbers are known; on an accelerator the latest step's are still being computed."""
        # Once on an accelerator, always a step late: ranks must not differ by what they happen to tell of a step.
        self._lags |= self._pending[-1].copied is not None or any(each.device.type != "cpu" for each in self._parameters)
        computing = 1 if self._lags else 0
        while len(self._pending) > computing:
            yield self._pending.popleft()

    def _receive(self) -> None:
        for rows in self._exchange.receive():
            lr, loss_tokens = self._sent.popleft()
            self._complete([_Row.of(numbers) for numbers in rows], lr, loss_tokens)

    def _finish(self) -> None:
        """Completes the steps whose numbers are known without the other ranks doing anything."""
        if self._exchange is not None:
            self._receive()
        elif self._ranks() == 1:
            while self._pending:
                pending = self._pending.popleft()
                self._complete([self._row(pending, None)], pending.lr, pending.loss_tokens)

    def _row(self, pending: _Pending, news: dict[str, object] | None) -> _Row:
        numbers = pending.numbers()
        told = [_UNKNOWN] * len(_ADVICE_NUMBERS)
        if news is not None:
            told = [_UNKNOWN if news[name] is None else float(news[name]) for name in _ADVICE_NUMBERS]
        return _Row(**numbers, advice=tuple(told))

    def _complete(self, rows: list[_Row], lr: float | None, loss_tokens: int | None) -> None:
        """Puts the shares of all ranks together; rank 0 goes on with them."""
        _refuse_different_calls(rows)
        samples = int(rows[0].samples)
        norm = rows[0].norm if math.isnan(rows[0].norm_share) else math.sqrt(sum(row.norm_share for row in rows))
        small = self._small_batch(rows, samples)
        if any(row.changed == 1 for row in rows):
            self._say("other parameters are trained than before: the noise scale is averaged anew", repeat=True)
            self._checks = InputChecks()
            if self._core is not None:
                self._core.forget_noise()
        told = rows[0].advice
        if not math.isnan(told[0]):
            self._advice = self._as_advice(dict(zip(_ADVICE_NUMBERS, told)))
        if self._rank() == 0:
            losses = [row.loss for row in rows if not math.isnan(row.loss)]
            loss = sum(losses) / len(losses) if losses else None
            # Where first_micro_batch has not told the size of a micro-batch, the watched reductions tell it.
            micro_batch = rows[0].small_samples
            if math.isnan(micro_batch) and small is not None:
                micro_batch = small.batch
            micro_batch = 1 if math.isnan(micro_batch) else max(1, int(micro_batch))
            self._record(samples, rows[0].seconds, micro_batch, norm, small, lr, loss, loss_tokens)

    def _small_batch(self, rows: list[_Row], samples: int) -> _Small | None:
        """The smallest batch whose gradients this step has shown."""
        found = []
        layout = self._layout
        if not math.isnan(rows[0].small_samples):
            batch = rows[0].small_samples * layout.replicas  # as its gradient counts in the mean over all samples
            squared = sum(row.small_share for row in rows) * (samples / batch) ** 2
            is_reduced = _come_in_equal_groups([row.small_share for row in rows], layout.copies)
            found.append(_Small(batch if is_reduced else rows[0].small_samples * layout.shards, squared))
        passes = rows[0].watched_passes
        if all(row.watched_passes == passes for row in rows):
            squared = sum(row.watched_share for row in rows) * passes**2
            found.append(_Small(samples / (layout.replicas * passes), squared))
        found = [small for small in found if small.batch < samples and small.squared_norm > 0]
        return min(found) if found else None

    def _record(
        self,
        samples: int,
        seconds: float,
        micro_batch: int,
        norm: float,
        small: _Small | None,
        lr: float | None,
        loss: float | None,
        loss_tokens: int | None,
    ) -> None:
        if small is None and math.isfinite(norm):
            self._unmeasured += 1
            if self._unmeasured == _STEPS_BEFORE_A_COMPLAINT and self._core is None:
                self._say(self._why_unmeasured())
        if self._core is None:
            if small is None:
                return
            self._begin(micro_batch)
        self._checks.observe(norm, samples, *(small or (None, None)))
        objection = self._checks.objection()
        if objection:
            self._say(f"{objection}. Nothing is advised.", key=objection[:40])
            small = None
        if small is not None and not math.isfinite(small.squared_norm):
            small = None
        advice = self._core.step(samples, seconds, norm, *(small or (None, None)), lr, loss, loss_tokens)
        for note in self._core.notes:
            print(note, flush=True)
        if advice is not None and not objection:
            self._news = advice
            self._reasons[int(advice["step"])] = str(advice["reason"])

    def _begin(self, micro_batch: int) -> None:
        """Makes the core, when the first measured step has shown what a micro-batch is."""
        settings = self._settings | {
            "micro_batch": micro_batch,
            "replicas": self._layout.replicas,
            "tensor_parallel": self._layout.tensor_parallel,
            "pipeline_parallel": self._layout.pipeline_stages,
        }
        state = self._loaded["core"] if self._loaded is not None else None
        if self._directory == NEW_FOLDER:
            kept = self._loaded["directory"] if state is not None else None
            self._directory = kept or NEW_FOLDER.format(time=time.strftime("%Y%m%d-%H%M%S"))
            print(f"The adviser writes into {self._directory}", flush=True)
        if self._directory is not None:
            self._directory = pathlib.Path(self._directory)
        self._core = _core.Adviser(settings, None if self._directory is None else str(self._directory), None, state)

    def _why_unmeasured(self) -> str:
        if self._watch is None and not self._parameters:
            return "first_micro_batch is not called, so nothing is measured and nothing advised"
        return (
            f"in {_STEPS_BEFORE_A_COMPLAINT} steps no gradient of a part of the batch could be measured, so nothing is "
            "advised. Needed is a batch smaller than the step's: two micro-batches at least, with first_micro_batch "
            "after the first, or several data-parallel ranks and adviser.watch(model); that also where FSDP2's "
            "set_requires_gradient_sync(False) leaves no gradient in p.grad"
        )

    def _as_advice(self, told: Mapping[str, Any]) -> Advice:
        values = {name: told[name] for name in _ADVICE_NUMBERS}
        values = {name: None if value is None or value != value else value for name, value in values.items()}
        for name in ("step", "batch", "micro_batches"):
            values[name] = int(values[name])
        return Advice(**values, reason=self._reasons.pop(values["step"], ""))

    def _say(self, message: str, key: str | None = None, repeat: bool = False) -> None:
        if self._rank() == 0 and (repeat or (key or message) not in self._said):
            self._said.add(key or message)
            warnings.warn(message, AdviserWarning, stacklevel=4)


def _positive(name: str, value: int, call: str = "Adviser") -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = 0
    if whole < 1:
        raise UserError(f"{call}({name}={value!r}): expected a whole number above 0")
    return whole


def _pending(values: dict[str, Any], lr: float | None, loss_tokens: int | None) -> _Pending:
    """Begins to bring what is on an accelerator to the processor, without waiting."""
    host: dict[str, float] = {}
    on_device: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            on_device[name] = value.detach().double()
        else:
            host[name] = _UNKNOWN if value is None else float(value)
    if not on_device:
        return _Pending(host, (), None, None, lr, loss_tokens)
    stacked = torch.stack([value.reshape(()) for value in on_device.values()])
    copied = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=stacked.device.type == "cuda")
    copied.copy_(stacked, non_blocking=True)
    event = torch.get_device_module(stacked.device).Event()
    event.record()
    return _Pending(host, tuple(on_device), copied, event, lr, loss_tokens)


def _come_in_equal_groups(shares: list[float], copies: int) -> bool:
    """Whether the copies of a gradient are equal: every share comes as often as there are copies."""
    ordered = sorted(shares)
    groups = (ordered[begin : begin + copies] for begin in range(0, len(ordered), copies))
    return all(group[-1] - group[0] <= 1e-7 * abs(group[-1]) for group in groups)


def _refuse_different_calls(rows: list[_Row]) -> None:
    def refuse(what: str, name: str) -> None:
        values = [getattr(row, name) for row in rows]
        other = next(rank for rank, value in enumerate(values) if not _same(value, values[0]))
        shown = ["none" if math.isnan(values[rank]) else f"{values[rank]:.9g}" for rank in (0, other)]
        raise UserError(
            f"the ranks differ in {what}: rank 0 has {shown[0]}, rank {other} has {shown[1]}; expected the same"
        )

    for name, what in (
        ("samples", "the samples of adviser.step"),
        ("small_samples", "the samples of first_micro_batch"),
    ):
        if not all(_same(getattr(row, name), getattr(rows[0], name)) for row in rows):
            refuse(what, name)
    if math.isnan(rows[0].norm_share) and not all(_same(row.norm, rows[0].norm, 1e-4) for row in rows):
        if all(math.isfinite(row.norm) for row in rows):
            refuse("the norm, which has to be that of the whole gradient, over all ranks", "norm")


def _same(a: float, b: float, tolerance: float = 0.0) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * abs(b)
