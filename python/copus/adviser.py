"""The adviser: two calls in a PyTorch training loop, which report how large a batch still saves time.

    adviser = copus.Adviser(batch=512, sequence_length=2048)
    # after the first micro-batch's backward:
    adviser.first_micro_batch(model.parameters(), samples=8)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    advice = adviser.step(norm, samples=512, seconds=dt, lr=lr)

Every rank of the job makes both calls. A step's norms reach rank 0 while the next step trains, and rank 0's conclusions
reach the other ranks during the step after that. So advice comes two steps after the measured step, or three if the
gradients are on an accelerator. In a single process advice comes at once on the CPU, and one step later on an
accelerator.

Invalid arguments of the constructor, and of the first call of each method, raise UserError. Later mistakes, and
failures of the adviser itself, end the measuring but never the job (health.py).
"""

from __future__ import annotations

import collections
import functools
import logging
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from copus import _core, arguments
from copus.advice import Advice
from copus.backward_passes import BackwardPasses
from copus.exchange import Exchange
from copus.gradient_norms import Layout, find_layout, norm_and_share, squared_norm_share
from copus.health import STEPS, AdviserWarning, Health, say
from copus.input_checks import InputChecks
from copus.log_folder import DEFAULT_FOLDER, folder_for
from copus.step_norms import MISTAKEN, STOPPED, UNKNOWN, Problem, Row, Small, StepNorms, put_together
from copus.watch import Watch, refuse_sparse_gradients, watch_ddp, watch_fsdp
from copus.wrappers import refuse_pipeline_stages, refuse_wrapped, refuse_wrapper

__all__ = ["Adviser", "AdviserWarning", "UserError"]

UserError = _core.UserError

_STATE_VERSION = 1
_ADVICE_NUMBERS = (
    "step", "batch", "micro_batches", "learning_rate_factor", "gain", "gain_low", "gain_high", "noise_scale",
    "noise_scale_low", "noise_scale_high", "critical_batch",
)  # fmt: skip
_SECONDS_FOR_A_STATE = 2.0  # how long a checkpoint waits for other ranks' numbers
_LOGGER = logging.getLogger("copus.adviser")


class _Pending(NamedTuple):
    """A step whose numbers are still being copied from the device."""

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


def _never_ends_a_job(method: Callable) -> Callable:
    """A failure inside the adviser ends only the measuring, unless the adviser is strict."""

    @functools.wraps(method)
    def guarded(self: Adviser, *given: Any, **named: Any) -> Any:
        try:
            return method(self, *given, **named)
        except Exception as error:
            is_refusal = isinstance(error, UserError) and not self._health.is_stopped
            if self._strict or (is_refusal and (self._steps == 0 or method.__name__ not in self._accepted)):
                raise
            self._stop(f"Adviser.{method.__name__} failed: {_in_words(error)}")
            return self._take_advice()

    return guarded


class Adviser:
    """Measures the gradient noise scale of a training job and advises on its batch.

    Args:
        batch: sequences of a step, over all ranks.
        sequence_length: tokens of a sequence.
        reference_batch: the batch for which your learning rate was tuned; by default `batch`.
        batches: the batches to choose from; by default doublings and halvings of `batch` and `reference_batch`. Only
            multiples of the micro-batches of all data-parallel ranks are advised.
        max_steps, max_tokens: the length of the job, if known, with steps of `batch` sequences. The adviser then
            advises no change that comes too late to save time, and decides at least once every sixteenth of the job.
        data_parallel: ranks that read different samples; by default found from the parameters' meshes.
        pipeline_parallel: number of pipeline stages; each rank passes its own stage's parameters.
        weighted_by_samples: the loss weights every sample (or token) of a step equally, as a sum over the step divided
            by their number does. Micro-batches and ranks of different sizes can then be measured.
        directory: for run.jsonl and decisions.jsonl, which `copus report` and `copus replay` read. Only rank 0 writes.
            By default a new folder runs/adviser-<time>, whose name is printed. If the folder has another job's log, a
            numbered folder next to it is used. None writes nothing.
        settings: keys of [noise_scale], [adapt] and [optimizer] in docs/configuration.md, and train.clip_norm, such as
            {"adapt.interval_samples": 512}. noise_scale.dual_interval, adapt.advise and optimizer.kind are refused.
        timeout_seconds: how long to wait for another rank's numbers before the missing ranks are reported.
        strict: raises an exception instead of a warning that ends the measuring.

    Raises copus.UserError for invalid arguments, here and in the first call of each method. Later mistakes end the
    measuring and not the job: an AdviserWarning reports them once, `unmeasured` keeps the reason, and noise_scale() is
    None.
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
        weighted_by_samples: bool = False,
        directory: str | os.PathLike[str] | None = DEFAULT_FOLDER,
        settings: Mapping[str, object] | None = None,
        timeout_seconds: float = 60.0,
        strict: bool = False,
    ):
        self._settings: dict[str, object] = {
            "batch": arguments.whole("batch", batch),
            "sequence_length": arguments.whole("sequence_length", sequence_length),
        }
        given = {"reference_batch": reference_batch, "max_steps": max_steps, "max_tokens": max_tokens}
        self._settings |= {name: arguments.whole(name, value) for name, value in given.items() if value is not None}
        self._batches = arguments.batches(batches)
        self._settings |= arguments.settings(settings)
        _core.check_settings(self._settings | {"micro_batch": 1})
        self._data_parallel = None if data_parallel is None else arguments.whole("data_parallel", data_parallel)
        self._pipeline_parallel = arguments.whole("pipeline_parallel", pipeline_parallel)
        self.weighted_by_samples = bool(weighted_by_samples)
        self._folder = arguments.directory(directory)
        self._timeout_seconds = arguments.above_zero("timeout_seconds", timeout_seconds, "Adviser", "seconds")
        self._strict = bool(strict)
        self._health = Health()
        self._accepted: set[str] = set()  # calls that have succeeded once
        self._mistake: str | None = None  # in the current step
        self._checks = InputChecks()
        self._exchange: Exchange | None = None
        self._layout: Layout | None = None
        self._parameters: list[Tensor] = []
        self._identity: tuple[int, ...] = ()
        self._elements = 0
        self._changed = False
        self._passes: BackwardPasses | None = None
        self._first: tuple[int, Tensor | float, int] | None = None
        self._left_out = False
        self._watch: Watch | None = None
        self._pending: collections.deque[_Pending] = collections.deque()
        self._sent: collections.deque[tuple[float | None, int | None]] = collections.deque()
        self._core: _core.Adviser | None = None
        self._factor = 1  # a rank's micro-batches that the core counts as one
        self._unit = 1  # the samples of a step are a multiple of this
        self._logs: pathlib.Path | None = None
        self._loaded: dict[str, Any] | None = None
        self._news: dict[str, object] | None = None  # advice that has not reached the other ranks
        self._reasons: dict[int, str] = {}
        self._advice: Advice | None = None
        self._steps = 0
        self._lags = False

    @_never_ends_a_job
    def first_micro_batch(
        self, parameters: Iterable[Tensor], samples: int, loss_scale: Tensor | float = 1.0
    ) -> None:
        """Reads the gradient that a step's first micro-batch has left in p.grad. Call this after its backward.

        Args:
            parameters: model.parameters(), also of a DDP or FSDP2 model; parameters without a gradient are taken as zero.
            samples: sequences of this rank's micro-batch.
            loss_scale: factor on the loss apart from the accumulation, such as GradScaler's get_scale().

        Before the step's first backward, p.grad must be zero or None. At this call it must not be clipped yet. Some
        steps may go without this call. Raises copus.UserError for invalid arguments in the first call.
        """
        if self._health.is_stopped:
            return
        try:
            if self._first is not None:
                raise UserError(
                    f"first_micro_batch was called twice in step {self._steps + 1}; call it once, after the first "
                    "micro-batch's backward, and call step also where an update is skipped (with the norm, or with nan)"
                )
            samples = arguments.whole("samples", samples, "first_micro_batch")
            scale = arguments.loss_scale(loss_scale)
            self._look_at(arguments.trained(parameters))
            share = squared_norm_share(self._parameters, self._layout)
        except UserError as error:
            self._refuse(error, "first_micro_batch")
            return
        if share is None:
            share = 0.0
        if isinstance(scale, Tensor) or scale != 1.0:
            share = share / scale**2
        passes = 1
        if self._passes is None:
            self._passes = BackwardPasses(self._parameters)
        else:
            passes = self._passes.count
        self._first = samples, share, passes
        self._accepted.add("first_micro_batch")

    @_never_ends_a_job
    def watch(
        self, model: torch.nn.Module, *, loss_scale: Callable[[], float] | None = None, micro_batches: int = 1
    ) -> None:
        """Reads each rank's own gradient when it is reduced, for steps of a single micro-batch.

        Call this once, on every rank, after the process group exists and before the first backward. You may also call
        first_micro_batch; the smaller of the two batches is then used.

        Args:
            model: of DistributedDataParallel (its communication hook stays free for you) or fully_shard (FSDP2, whose
                reduce-scatter this replaces).
            loss_scale: with a gradient scaler, its method get_scale.
            micro_batches: reductions per rank and step: the number of micro-batches, or 1 under no_sync.

        Raises copus.UserError on a single rank, for another kind of model, for sparse embeddings, and in a second call.
        """
        if self._ranks() == 1:
            raise UserError(
                "Adviser.watch: a single rank reduces no gradients, so with one micro-batch a step the noise scale is "
                "not measurable; cut the batch into two micro-batches at least and call first_micro_batch"
            )
        if not isinstance(model, torch.nn.Module):
            raise UserError(f"Adviser.watch was given {arguments.shown(model)}; expected the model that is trained")
        if loss_scale is not None and not callable(loss_scale):
            raise UserError(
                f"Adviser.watch(loss_scale={arguments.shown(loss_scale)}): expected a function, such as the gradient "
                "scaler's get_scale"
            )
        if self._watch is not None:
            raise UserError("Adviser.watch was called before; one model is watched, for as long as it trains")
        micro_batches = arguments.whole("micro_batches", micro_batches, "Adviser.watch")
        refuse_wrapper(model)
        refuse_sparse_gradients(model)
        self._look_at(arguments.trained(model.parameters()))
        watch = Watch(self._layout, loss_scale, micro_batches)
        try:
            from torch.distributed.fsdp import FSDPModule
        except ImportError:
            FSDPModule = ()  # type: ignore[assignment, misc]
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            watch_ddp(model, watch)
        elif any(isinstance(module, FSDPModule) for module in model.modules()):
            watch_fsdp(model, watch)
        else:
            raise UserError(
                "Adviser.watch was given a model that is neither of DistributedDataParallel nor of fully_shard, so "
                "nothing tells when its gradients are reduced: not measurable with one micro-batch a step; cut it into "
                "two and call first_micro_batch"
            )
        self._watch = watch

    @_never_ends_a_job
    def step(
        self,
        norm: Tensor | float,
        samples: int,
        seconds: float,
        lr: Tensor | float | None = None,
        loss: Tensor | float | None = None,
        loss_tokens: Tensor | int | None = None,
    ) -> Advice | None:
        """Reports a finished step. Returns advice if another batch saves time, otherwise None. All ranks get the same
        result.

        Args:
            norm: 2-norm of the whole gradient before clipping, as clip_grad_norm_ returns it (for FSDP2 a DTensor,
                unchanged); with a gradient scaler after unscale_. If not finite, the step is treated as skipped.
            samples: sequences of the step, over all ranks and micro-batches. Ranks with different numbers may each pass
                their own number times the number of data-parallel ranks: the step then has the mean of these values.
            seconds: the duration of the step. Rank 0's value is used.
            lr, loss, loss_tokens: for the log. `loss` is this rank's mean loss in nats per token; the log has the mean
                over ranks. A loss on a device is read one step later, so that nothing waits for the device. `lr` and
                `loss_tokens` are rank 0's, and are logged only as plain numbers or tensors on the CPU.

        Advice that is not followed is repeated at the adviser's next decision. Raises copus.UserError for invalid
        arguments in the first call; later ones give a warning.
        """
        if self._health.is_stopped:
            self._receive_last_advice()
            return self._take_advice()
        self._steps += 1
        try:
            values = self._read_step(norm, samples, seconds)
            self._accepted.add("step")
        except UserError as error:
            self._refuse(error, "step")
            values = {}
        if self._mistake is not None:
            values = {"condition": MISTAKEN}
        self._first, self._changed, self._left_out, self._mistake = None, False, False, None
        if self._passes is not None:
            self._passes.begin()
        values["loss"] = arguments.optional_number(loss)
        rate, tokens = (_at_least_zero(arguments.optional_number(value)) for value in (lr, loss_tokens))
        self._pending.append(_pending(values, rate, None if tokens is None else int(tokens)))
        if self._ranks() > 1:
            self._step_of_many()
        else:
            self._step_of_one()
        return self._take_advice()

    def noise_scale(self) -> tuple[float | None, float, float | None] | None:
        """Returns (value, low, high) in sequences; low and high are the ends of the 95 % interval. `value` and `high`
        are None while noise hides the signal.

        Returns None on ranks other than 0, while there are too few measurements, or while they cannot be trusted
        (`unmeasured` states the reason).
        """
        if self._core is None or self._health.reason is not None:
            return None
        noise = self._core.noise()
        return (noise["value"], noise["low"], noise["high"]) if noise is not None else None

    @property
    def unmeasured(self) -> str | None:
        """Why the noise scale is unknown, on rank 0 for all ranks; None if nothing is wrong."""
        return self._health.reason

    @property
    def directory(self) -> pathlib.Path | None:
        """The folder of the logs, on rank 0 once a step has been measured; otherwise None."""
        return self._logs

    def state_dict(self) -> dict[str, Any]:
        """Returns the adviser's state for a checkpoint. Save rank 0's; other ranks need not call it."""
        core = None
        try:
            self._finish()
            if self._core is not None:
                core = self._core.state()
        except Exception as error:
            if self._strict:
                raise
            self._stop(f"Adviser.state_dict failed: {_in_words(error)}")
        if self._core is None and self._loaded is not None:
            return self._loaded | {"steps": self._steps}
        return {
            "version": _STATE_VERSION,
            "steps": self._steps,
            "directory": None if self._logs is None else str(self._logs),
            "core": core,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state_dict(). Call it before the first step.

        Without directory=, this continues the log in the state's directory and removes lines of later steps. Raises
        copus.UserError if the state is damaged or the job has begun.
        """
        if self._steps:
            raise UserError("Adviser.load_state_dict: steps have been taken already; call it before the first one")
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise UserError(
                f"Adviser.load_state_dict was given {arguments.shown(state)}; expected what state_dict() gave, of "
                f"version {_STATE_VERSION}"
            )
        steps, core = state.get("steps"), state.get("core")
        if type(steps) is not int or not (core is None or isinstance(core, str)):
            raise UserError("Adviser.load_state_dict: the state is damaged; expected what state_dict() gave")
        if self._rank() == 0 and steps and core is None:
            say("the adviser's state holds no measurements, as that of a rank other than 0: it begins anew")
        self._steps = steps
        self._loaded = {"directory": None, "core": None, **state}

    def close(self) -> None:
        """Writes the last steps and closes the logs. Call it on every rank: in jobs of several ranks, and on
        accelerators, the logs otherwise lack the last one to three steps."""
        state = self.state_dict()
        if self._core is not None:
            try:
                self._core.close()
            except Exception as error:
                if self._strict:
                    raise
                say(f"Adviser.close failed: {_in_words(error)}")
            self._core, self._loaded = None, state

    def leave_out(self) -> None:
        """Skips the current step, for an integration that sees micro-batches of different sizes."""
        self._left_out = True

    def forget_step(self) -> None:
        """Starts the current step anew, for an integration that does not report it. Call it on all ranks."""
        self._first, self._left_out, self._mistake = None, False, None
        if self._passes is not None:
            self._passes.begin()
        if self._watch is not None:
            self._watch.forget()

    def stop(self, reason: str) -> None:
        """Ends the measuring with one warning; later calls do nothing. Raises if the adviser is strict."""
        if self._strict:
            raise UserError(reason)
        self._stop(reason)

    def _ranks(self) -> int:
        if self._exchange is not None:
            return self._exchange.ranks
        has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        return torch.distributed.get_world_size() if has_ranks else 1

    def _rank(self) -> int:
        if self._exchange is not None:
            return self._exchange.rank
        return torch.distributed.get_rank() if self._ranks() > 1 else 0

    def _look_at(self, parameters: list[Tensor]) -> None:
        """Notices a change of the trained parameters."""
        identity = tuple(map(id, parameters))
        self._parameters = parameters  # also keeps their ids from being reused
        if identity == self._identity:
            return
        refuse_wrapped(parameters)
        if self._ranks() > 1 and self._pipeline_parallel == 1 and not self._identity:
            refuse_pipeline_stages()
        self._layout = find_layout(parameters, self._ranks(), self._data_parallel, self._pipeline_parallel)
        elements = sum(parameter.numel() for parameter in parameters)
        self._changed = bool(self._identity) and (len(identity), elements) != (len(self._identity), self._elements)
        self._identity, self._elements = identity, elements
        if self._passes is not None:
            self._passes.remove()
            self._passes = None
        # Once true, it stays true: all ranks must report a step with the same delay.
        self._lags |= any(parameter.device.type != "cpu" for parameter in parameters)

    def _read_step(self, norm: Any, samples: Any, seconds: Any) -> dict[str, Any]:
        samples = arguments.whole("samples", samples, "step")
        seconds = arguments.above_zero("seconds", seconds, "step", "the seconds of the step")
        norm = arguments.norm(norm)
        if self._layout is None:
            self._layout = find_layout([], self._ranks(), self._data_parallel, self._pipeline_parallel)
        whole_norm, norm_share = norm_and_share(norm, self._layout)
        small_samples, small_share, passes_before = self._first if self._first is not None else (None, None, None)
        watched = self._watch.take() if self._watch is not None else None
        return {
            "samples": samples, "seconds": seconds, "small_samples": small_samples, "small_share": small_share,
            "passes_before": passes_before, "passes": None if self._passes is None else self._passes.count,
            "norm": whole_norm, "norm_share": norm_share, "watched_share": watched.share if watched else None,
            "watched_passes": watched.passes if watched else None, "elements": self._elements or None,
            "left_out": float(self._left_out), "changed": float(self._changed),
        }  # fmt: skip

    def _refuse(self, error: UserError, call: str) -> None:
        """A mistake in a call. Raises in the first call and the first step; later the current step is not measured."""
        if self._strict or call not in self._accepted or self._steps == 0:
            raise error
        step = self._steps + (call != "step")
        self._mistake = str(error)
        self._object(f"{call}: {type(error).__name__}: {_without_numbers(error)}", f"since step {step}: {error}")

    def _object(self, key: str, reason: str) -> None:
        """Makes the noise scale unknown until steps are sound again."""
        was_sound = self._health.reason is None
        is_news = self._health.found(key, reason)
        if is_news or was_sound:
            self._log_unmeasured(reason)
        if not is_news:
            return
        if self._strict:
            raise UserError(reason)
        say(f"{reason.rstrip('.')}. Nothing is measured or advised until it is right again; training goes on")

    def _log_unmeasured(self, reason: str) -> None:
        if self._core is not None:
            try:
                self._core.log_unmeasured(reason)
            except Exception:  # a full disk, which the next step reports
                _LOGGER.debug("not logged", exc_info=True)

    def _stop(self, reason: str) -> None:
        """Ends the measuring on all ranks."""
        if self._health.is_stopped:
            return
        reason = f"since step {max(1, self._steps)}: {reason}"
        self._health.stop(reason)
        self._log_unmeasured(reason)
        self._first, self._watch = None, None
        say(f"{reason.rstrip('.')}. Measuring has stopped, and training goes on without it; strict=True makes it an error")
        if self._exchange is not None and self._exchange.is_connected:
            try:
                self._exchange.send(self._row_of({"condition": STOPPED}).numbers())
            except Exception:
                _LOGGER.debug("the other ranks were not told", exc_info=True)

    def _take_advice(self) -> Advice | None:
        advice, self._advice = self._advice, None
        return advice

    def _receive_last_advice(self) -> None:
        """Makes the decision of this step known on every rank: no rank may change its batch alone."""
        exchange, self._exchange = self._exchange, None
        if exchange is None or not exchange.is_connected or not self._sent:
            return
        try:
            for rows in exchange.receive():
                if any(row[0] == STOPPED for row in rows):
                    return
                self._take_news(Row.of(rows[0]))
        except Exception:
            _LOGGER.debug("the last advice was not received", exc_info=True)

    def _step_of_one(self) -> None:
        for pending in self._known():
            self._complete([self._row_of(pending.numbers())], pending.lr, pending.loss_tokens)
            if self._news is not None:
                self._advice, self._news = self._as_advice(self._news), None

    def _step_of_many(self) -> None:
        if self._exchange is None:
            self._exchange = Exchange(self._timeout_seconds)
            self._exchange.connect()
        self._receive()
        if self._health.is_stopped:
            return
        for pending in self._known():
            self._exchange.send(self._row_of(pending.numbers(), self._news).numbers())
            self._sent.append((pending.lr, pending.loss_tokens))
            self._news = None

    def _known(self) -> Iterator[_Pending]:
        """The steps with known numbers; on an accelerator the latest step is still being computed."""
        self._lags |= self._pending[-1].copied is not None
        computing = 1 if self._lags else 0
        while len(self._pending) > computing:
            yield self._pending.popleft()

    def _receive(self, seconds: float | None = None) -> None:
        received = self._exchange.receive(seconds)
        for rows in received:
            lr, loss_tokens = self._sent.popleft()
            self._complete([Row.of(numbers) for numbers in rows], lr, loss_tokens)

    def _finish(self) -> None:
        """Completes the steps with known numbers without any help of the other ranks."""
        if self._health.is_stopped:
            return
        if self._exchange is not None:
            self._receive(_SECONDS_FOR_A_STATE)
        elif self._ranks() == 1:
            while self._pending:
                pending = self._pending.popleft()
                self._complete([self._row_of(pending.numbers())], pending.lr, pending.loss_tokens)

    def _row_of(self, numbers: Mapping[str, float], news: Mapping[str, object] | None = None) -> Row:
        told = [UNKNOWN] * len(_ADVICE_NUMBERS)
        if news is not None:
            told = [UNKNOWN if news[name] is None else float(news[name]) for name in _ADVICE_NUMBERS]
        return Row(**numbers, advice=tuple(told))

    def _take_news(self, of_rank_0: Row) -> None:
        told = of_rank_0.advice
        if not math.isnan(told[0]):
            self._advice = self._as_advice(dict(zip(_ADVICE_NUMBERS, told)))

    def _complete(self, rows: list[Row], lr: float | None, loss_tokens: int | None) -> None:
        """Combines what all ranks have reported about a step; rank 0 continues with it."""
        self._take_news(rows[0])
        conditions = [row.condition for row in rows]
        if STOPPED in conditions:
            rank = conditions.index(STOPPED)
            reason = f"since step {self._steps}: rank {rank} has stopped measuring, and its own warning says why"
            self._health.stop(reason)
            self._log_unmeasured(reason)
            return
        if MISTAKEN in conditions:
            rank = conditions.index(MISTAKEN)
            if rank != self._rank() and self._rank() == 0:
                reason = f"since step {self._steps}: a call on rank {rank} was wrong, and its own warning says what"
                self._health.found(f"rank {rank}", reason)
                self._log_unmeasured(reason)
            return
        found = put_together(rows, self._layout, self.weighted_by_samples, self._watch.micro_batches if self._watch else 1)
        if any(row.changed == 1 for row in rows):
            self._begin_anew("other parameters are trained than before: the noise scale is averaged anew")
        if self._rank() == 0:
            losses = [row.loss for row in rows if not math.isnan(row.loss)]
            loss = sum(losses) / len(losses) if losses else None
            self._record(found, rows[0], lr, loss, loss_tokens)
        elif found.problem is not None and not found.problem.can_happen:
            self._health.found(found.problem.key, found.problem.reason)
            if self._strict:
                raise UserError(found.problem.reason)

    def _begin_anew(self, message: str) -> None:
        self._checks = InputChecks()
        if self._core is not None:
            self._core.forget_noise()
        if self._rank() == 0:
            say(message)

    def _record(
        self, found: StepNorms, row: Row, lr: float | None, loss: float | None, loss_tokens: int | None
    ) -> None:
        small = found.small if found.small is not None and math.isfinite(found.small.squared_norm) else None
        problem = found.problem
        if small is not None and self._core is None:
            self._begin(found.samples, row, small)
        if small is not None and found.samples % self._unit:
            problem = Problem("left out", f"a step of {found.samples} samples is no multiple of {self._unit}, the "
                              "first micro-batch of all ranks, and is left out", can_happen=True)  # fmt: skip
        self._checks.observe(found.norm, found.samples, *(small or (None, None)))
        objection = self._checks.objection
        if objection:
            self._object_to_norms(objection)
        elif problem is not None:
            self._note(problem)
        elif small is not None:
            self._health.sound()
        # A step whose micro-batches differ, such as the last of an epoch, does not mean that the job's batch changed.
        if self._core is None or (problem is not None and problem.key in ("uneven", "left out")):
            return
        trusted = (small or (None, None)) if not objection else (None, None)
        advice = self._core.step(found.samples, row.seconds, found.norm, *trusted, lr, loss, loss_tokens)
        for note in self._core.notes:
            _tell(note)
        if advice is not None and self._health.reason is None:
            self._news = advice | {"micro_batches": advice["micro_batches"] * self._factor}
            self._reasons[int(advice["step"])] = str(advice["reason"])

    def _object_to_norms(self, objection: str) -> None:
        if self._health.reason is None and self._core is not None:
            self._core.forget_noise()  # earlier measurements are wrong in the same way
        self._object(objection[:20], f"since step {self._steps}: {objection}")

    def _note(self, problem: Problem) -> None:
        if not problem.can_happen:
            self._object(problem.key, f"since step {self._steps}: {problem.reason}")
            return
        if problem.key == "nothing smaller":
            if not self._parameters and self._watch is None:
                problem = problem._replace(
                    reason="first_micro_batch is not called, so nothing is measured and nothing advised"
                )
            elif self._core is not None:
                return  # steps may be left out
        if self._health.noted(problem.key):
            self._object(problem.key, f"since step {max(1, self._steps - STEPS + 1)}: {problem.reason}")

    def _begin(self, samples: int, row: Row, small: Small) -> None:
        """Makes the core, once the first measured step has shown the size of a micro-batch."""
        told_by_watch = math.isnan(row.small_samples)
        micro_batch = max(1, int(small.batch if told_by_watch else row.small_samples))
        batch, replicas = self._settings["batch"], self._layout.replicas
        if samples % (micro_batch * replicas):
            # If ranks or micro-batches differ, a step counts as one micro-batch, or each sample if steps vary.
            self._factor = max(1, round(row.passes / row.passes_before)) if row.passes_before >= 1 else 1
            micro_batch, replicas = (1, 1) if self.weighted_by_samples else (samples, 1)
        if batch % (micro_batch * replicas):
            batch = samples
        self._unit = micro_batch * replicas
        settings = self._settings | {
            "batch": batch,
            "micro_batch": micro_batch,
            "replicas": replicas,
            "tensor_parallel": self._layout.tensor_parallel,
            "pipeline_parallel": self._layout.pipeline_stages,
        }
        if self._batches:
            possible = [each for each in self._batches if each % self._unit == 0]
            if len(possible) < len(self._batches):
                _tell(f"of `batches`, {sorted(set(self._batches) - set(possible))} are no multiples of {self._unit}, "
                      "the micro-batch of all ranks, and are not advised")  # fmt: skip
            settings["batches"] = possible or [batch]
        state = self._loaded["core"] if self._loaded is not None else None
        kept = self._loaded["directory"] if state is not None else None
        self._core, self._logs = _open_core(settings, self._folder, kept, state)
        if self._folder == DEFAULT_FOLDER and self._logs is not None:
            _tell(f"The adviser writes into {self._logs}")

    def _as_advice(self, told: Mapping[str, Any]) -> Advice:
        values = {name: told[name] for name in _ADVICE_NUMBERS}
        values = {name: None if value is None or value != value else value for name, value in values.items()}
        for name in ("step", "batch", "micro_batches"):
            values[name] = int(values[name])
        return Advice(**values, reason=self._reasons.pop(values["step"], ""))


def _open_core(
    settings: Mapping[str, object], folder: str | None, kept_folder: str | None, state: str | None
) -> tuple[_core.Adviser, pathlib.Path | None]:
    """Makes a core that continues from a state, and its logs. Drops what does not fit or cannot be written."""
    wanted = kept_folder if folder == DEFAULT_FOLDER and kept_folder else folder
    attempts: list[tuple[Callable[[], str | None], str | None]] = []
    if state is not None:
        attempts.append((lambda: None if wanted is None else _existing(wanted), state))
    attempts += [(lambda: folder_for(wanted), state), (lambda: None, state), (lambda: None, None)]
    failures = []
    for make_folder, from_state in attempts:
        try:
            logs = make_folder()
            core = _core.Adviser(dict(settings), logs, None, from_state)
        except (UserError, OSError) as error:
            failures.append(error)
            continue
        if state is not None and from_state is None:
            say(f"the adviser's state does not fit this job, and it begins anew: {failures[-1]}")
        elif wanted is not None and logs is None:
            say(f"the adviser writes no logs: {failures[-1]}")
        elif wanted is not None and wanted != DEFAULT_FOLDER and logs != wanted:
            _tell(f"{wanted} has the log of another job; the adviser writes into {logs}")
        return core, None if logs is None else pathlib.Path(logs)
    raise failures[-1]


def _existing(folder: str) -> str:
    return folder_for(folder) if folder == DEFAULT_FOLDER else folder


def _pending(values: dict[str, Any], lr: float | None, loss_tokens: int | None) -> _Pending:
    """Starts to copy a number from an accelerator to the CPU, without waiting for the copy."""
    host: dict[str, float] = {}
    on_device: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            on_device[name] = value.detach().double()
        else:
            host[name] = UNKNOWN if value is None else float(value)
    if not on_device:
        return _Pending(host, (), None, None, lr, loss_tokens)
    stacked = torch.stack([value.reshape(()) for value in on_device.values()])
    copied = torch.empty(
        stacked.shape, dtype=stacked.dtype, device="cpu", pin_memory=stacked.device.type == "cuda"
    )
    copied.copy_(stacked, non_blocking=True)
    event = torch.get_device_module(stacked.device).Event()
    event.record()
    return _Pending(host, tuple(on_device), copied, event, lr, loss_tokens)


def _at_least_zero(value: Tensor | float | None) -> float | None:
    """A number for the log if it is on the CPU; does not wait for a number on a device."""
    if value is None or (isinstance(value, Tensor) and value.device.type != "cpu"):
        return None
    found = float(value)
    return found if math.isfinite(found) and found >= 0 else None


def _tell(line: str) -> None:
    try:
        print(line, flush=True)
    except (OSError, ValueError):  # an output that is closed
        _LOGGER.info(line)


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def _without_numbers(error: Exception) -> str:
    """The text without numbers, by which the same mistake in another step is recognised."""
    return "".join(each for each in str(error) if not each.isdigit())[:60]
