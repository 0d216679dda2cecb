"""The adviser in loops as people write them: it states the number of float64 gradients, or none and why; it changes
nothing, and ends no job that trains without it. One test for each kind of loop that was once wrong."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import pathlib
import tempfile
import unittest
import warnings
from unittest import mock

import torch
from torch import nn

import copus
from copus.log_folder import DEFAULT_FOLDER
from copus.wrappers import refuse_wrapper
from processes import run_on_ranks

LENGTH = 4


def make_model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def inputs(samples: int, seed: int) -> torch.Tensor:
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Of the mean loss, in float64."""
    model = copy.deepcopy(model).double()
    parts = torch.autograd.grad(loss_of(model, x.double()), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


@contextlib.contextmanager
def spied():
    """Keeps what the core is told of every step, and lets it work on."""
    told: list[dict] = []
    real = copus._core.Adviser

    class Core:
        def __init__(self, *given):
            self._core = real(*given)

        def __getattr__(self, name):
            return getattr(self._core, name)

        def step(self, samples, seconds, norm, small_batch=None, small_squared_norm=None, *more):
            told.append({"samples": samples, "norm": norm, "small_batch": small_batch,
                         "small_squared_norm": small_squared_norm})  # fmt: skip
            return self._core.step(samples, seconds, norm, small_batch, small_squared_norm, *more)

    with mock.patch.object(copus._core, "Adviser", Core):
        yield told


def adviser_of(**options) -> copus.Adviser:
    return copus.Adviser(**{"batch": 8, "sequence_length": LENGTH, "directory": None} | options)


def train_plainly(adviser, steps, sizes, by_samples=False, norm_of=None, samples=None, model=None):
    """Micro-batches of these sizes; the loss divided by their number, or each by its share of the samples."""
    model = model or make_model()
    total = sum(sizes)
    for step in range(steps):
        model.zero_grad()
        for index, size in enumerate(sizes):
            weight = size / total if by_samples else 1 / len(sizes)
            (loss_of(model, inputs(size, 100 * step + index)) * weight).backward()
            if index == 0:
                adviser.first_micro_batch(model.parameters(), samples=size)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        adviser.step(norm if norm_of is None else norm_of(norm), samples=samples or total, seconds=1.0)
    return model


class Case(unittest.TestCase):
    def setUp(self):
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.log = self.enterContext(self.assertLogs("copus.adviser", logging.DEBUG))
        logging.getLogger("copus.adviser").debug("so that there is a line")

    @contextlib.contextmanager
    def warned(self, *expected: str):
        """Expects these warnings, each once, through `warnings` and `logging`."""
        before = len(self.log.output)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        messages = [str(each.message) for each in caught if each.category is copus.AdviserWarning]
        self.assertEqual(len(messages), len(expected), messages)
        for message, part in zip(messages, expected):
            self.assertIn(part, message)
        logged = [line for line in self.log.output[before:] if line.startswith("WARNING")]
        self.assertEqual(len(logged), len(expected))


class Measures(Case):
    def test_uneven_micro_batches_are_unmeasured_with_a_warning(self):
        adviser = adviser_of(batch=12)
        with self.warned("weighs samples of smaller ones more"), spied() as told:
            train_plainly(adviser, 40, (4, 4, 3, 1))
        self.assertEqual(told, [])
        self.assertIsNone(adviser.noise_scale())
        self.assertIn("since step", adviser.unmeasured)

    def test_uneven_micro_batches_weighted_by_samples_are_measured(self):
        for sizes in ((4, 4, 3, 1), (5, 5, 2), (2, 6)):
            with self.subTest(sizes), spied() as told, self.warned():
                adviser = adviser_of(batch=sum(sizes), weighted_by_samples=True)
                train_plainly(adviser, 20, sizes, by_samples=True)
                self.assertEqual(len(told), 20)
                for step, one in enumerate(told):
                    first = gradient(make_model(), inputs(sizes[0], 100 * step)).square().sum().item()
                    self.assertEqual((one["small_batch"], one["samples"]), (sizes[0], sum(sizes)))
                    self.assertAlmostEqual(one["small_squared_norm"] / first, 1, delta=1e-4)
                self.assertIsNotNone(adviser.noise_scale())

    def test_a_norm_that_is_none_is_one_message(self):
        with self.assertRaisesRegex(copus.UserError, "norm=None.*2-norm before clipping"):
            train_plainly(adviser_of(), 1, (4, 4), norm_of=lambda norm: None)

    def test_a_norm_that_is_never_a_number_is_one_message(self):
        adviser = adviser_of()
        with self.warned("norm that is not finite"):
            train_plainly(adviser, 40, (4, 4), norm_of=lambda norm: float("nan"))
        self.assertIsNone(adviser.noise_scale())

    def test_a_norm_that_is_taken_after_zero_grad_is_one_message(self):
        adviser = adviser_of()
        with self.warned("after zero_grad"):
            train_plainly(adviser, 40, (4, 4), norm_of=lambda norm: 0.0 * norm)
        self.assertIsNone(adviser.noise_scale())

    def test_every_batch_is_measured_and_advised_on(self):
        for sizes in ((3, 3), (5, 5), (2, 2, 2), (2,) * 5, (7, 7), (1, 1)):
            with self.subTest(sizes), self.warned():
                adviser = adviser_of(batch=sum(sizes), settings={"noise_scale.calibration": 100.0})
                train_plainly(adviser, 60, sizes)
                self.assertIsNotNone(adviser.noise_scale())
                self.assertIsNotNone(adviser._core.expected_step_seconds(2 * sum(sizes)))

    def test_batches_that_cannot_be_had_are_left_out(self):
        adviser = adviser_of(batch=6, batches=[4, 6, 12])
        with self.warned():
            train_plainly(adviser, 30, (3, 3))
        self.assertIsNotNone(adviser.noise_scale())

    def test_a_batch_that_the_steps_do_not_have_is_measured_still(self):
        adviser = adviser_of(batch=512)
        with self.warned():
            train_plainly(adviser, 30, (5, 5))
        self.assertIsNotNone(adviser.noise_scale())

    def test_an_unusual_last_step_of_an_epoch_goes_unmeasured(self):
        adviser, model = adviser_of(), make_model()
        with self.warned():
            for _ in range(6):
                train_plainly(adviser, 5, (4, 4), model=model)
                train_plainly(adviser, 1, (4, 1), model=model)
        self.assertIsNotNone(adviser.noise_scale())


class Messages(Case):
    def test_are_one_user_error_that_says_what_is_expected(self):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model, inputs(4, 1)).backward()
        parameters = list(model.parameters())
        first = adviser_of().first_micro_batch
        calls = {
            "named_parameters": lambda: first(model.named_parameters(), samples=2),
            "param_groups": lambda: first(optimizer.param_groups, samples=2),
            "an optimizer": lambda: first(optimizer, samples=2),
            "a module": lambda: first(model, samples=2),
            "<dict>": lambda: first(dict(model.named_parameters()), samples=2),
            "None": lambda: first(None, samples=2),
            "'weights'": lambda: first("weights", samples=2),
            "no parameter that requires": lambda: first([], samples=2),
            "samples='two'": lambda: first(parameters, samples="two"),
            "samples=True": lambda: first(parameters, samples=True),
            "loss_scale=None": lambda: first(parameters, samples=2, loss_scale=None),
            "loss_scale='big'": lambda: first(parameters, samples=2, loss_scale="big"),
            "loss_scale=nan": lambda: first(parameters, samples=2, loss_scale=float("nan")),
            "tensor of shape \\(3,\\)": lambda: adviser_of().step(torch.ones(3), samples=8, seconds=1.0),
            "norm='1'": lambda: adviser_of().step("1", samples=8, seconds=1.0),
            "norm=-1.0": lambda: adviser_of().step(-1.0, samples=8, seconds=1.0),
            "norm=1j": lambda: adviser_of().step(1j, samples=8, seconds=1.0),
            "seconds=None": lambda: adviser_of().step(1.0, samples=8, seconds=None),
            "samples=8.5": lambda: adviser_of().step(1.0, samples=8.5, seconds=1.0),
            "batch=None": lambda: adviser_of(batch=None),
            "batches=8": lambda: adviser_of(batches=8),
            "settings=3": lambda: adviser_of(settings=3),
            "dwell_steps": lambda: adviser_of(settings={"adapt.dwel_steps": 3}),
            "directory=3": lambda: adviser_of(directory=3),
            "timeout_seconds='long'": lambda: adviser_of(timeout_seconds="long"),
            "data_parallel=0": lambda: adviser_of(data_parallel=0),
            "load_state_dict": lambda: adviser_of().load_state_dict(None),
        }
        for said, call in calls.items():
            with self.subTest(said), self.assertRaisesRegex(copus.UserError, said) as raised:
                call()
            self.assertRegex(str(raised.exception), "expected|give|did you mean")

    def test_later_mistakes_are_a_warning_or_an_error_where_it_is_strict(self):
        for strict in (False, True):
            adviser, model = adviser_of(strict=strict), make_model()
            train_plainly(adviser, 20, (4, 4), model=model)
            self.assertIsNotNone(adviser.noise_scale())
            if strict:
                with self.assertRaisesRegex(copus.UserError, "norm=None"):
                    adviser.step(None, samples=8, seconds=1.0)
                continue
            with self.warned("since step 21: step(norm=None): expected"):
                self.assertIsNone(adviser.step(None, samples=8, seconds=1.0))
                self.assertIsNone(adviser.step(None, samples=8, seconds=1.0))
            self.assertIsNone(adviser.noise_scale())
            self.assertIn("norm=None", adviser.unmeasured)
            with self.warned():  # it measures again when steps have been sound for a while
                train_plainly(adviser, 16, (4, 4), model=model)
            self.assertIsNotNone(adviser.noise_scale())

    def test_nothing_ends_where_warnings_are_errors(self):
        adviser = adviser_of()
        train_plainly(adviser, 2, (4, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertIsNone(adviser.step(None, samples=8, seconds=1.0))
        self.assertIn("norm=None", adviser.unmeasured)


class Folders(Case):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(contextlib.chdir(folder))
        self.folder = pathlib.Path(folder)

    def test_jobs_that_start_in_one_second_have_their_own(self):
        with mock.patch("time.strftime", return_value="20260101-000000"):
            advisers = [adviser_of(directory=DEFAULT_FOLDER) for _ in range(3)]
            for adviser in advisers:
                train_plainly(adviser, 3, (4, 4))
                adviser.close()
        self.assertEqual(len({adviser.directory for adviser in advisers}), 3)
        for adviser in advisers:
            self.assertEqual(len((adviser.directory / "run.jsonl").read_text().splitlines()), 3)

    def test_a_second_job_in_a_given_one_has_its_own(self):
        with self.warned():
            for expected in ("logs", "logs-2", "logs-3"):
                adviser = adviser_of(directory="logs")
                train_plainly(adviser, 3, (4, 4))
                self.assertEqual(str(adviser.directory), expected)

    def test_one_that_cannot_be_written_is_done_without(self):
        (self.folder / "file").write_text("")
        adviser = adviser_of(directory="file/logs")
        with self.warned("writes no logs"):
            train_plainly(adviser, 20, (4, 4))
        self.assertIsNotNone(adviser.noise_scale())

    def test_a_disk_that_is_full_ends_the_measuring_alone(self):
        adviser = adviser_of(directory="logs")
        train_plainly(adviser, 3, (4, 4))
        adviser._core = mock.Mock(wraps=adviser._core, step=mock.Mock(side_effect=OSError("No space left on device")))
        with self.warned("No space left on device"):
            train_plainly(adviser, 3, (4, 4))
            adviser.close()
        self.assertIsNone(adviser.noise_scale())

    def test_what_is_not_measured_is_in_the_log_that_a_report_shows(self):
        adviser, model = adviser_of(directory="logs"), make_model()
        train_plainly(adviser, 20, (4, 4), model=model)
        adviser.step(None, samples=8, seconds=1.0)
        adviser.close()
        self.assertIn('"event":"unmeasured"', (self.folder / "logs/decisions.jsonl").read_text().replace(" ", ""))

    def test_a_state_that_does_not_fit_begins_anew(self):
        adviser = adviser_of()
        adviser.load_state_dict({"version": 1, "steps": 4, "directory": None, "core": "no state"})
        with self.warned("does not fit this job"):
            train_plainly(adviser, 20, (4, 4))
        self.assertIsNotNone(adviser.noise_scale())


# ---- several ranks ----


def distributed(model: nn.Module, **options) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, **options)


def own(samples: int, step: int, micro_batch: int = 0) -> torch.Tensor:
    return inputs(samples, 10_000 * torch.distributed.get_rank() + 100 * step + micro_batch)


def warnings_of(run) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught if each.category is copus.AdviserWarning]


def train_with_and_without(how: dict) -> tuple[list[bool], list[dict]]:
    """Whether the parameters are bitwise the same after 60 steps, and what the core was told."""
    ranks = torch.distributed.get_world_size()
    torch.set_num_threads(1)
    trained = []
    with spied() as told, contextlib.redirect_stdout(io.StringIO()):
        for advised in (False, True):
            options = {name: how[name] for name in ("gradient_as_bucket_view", "static_graph") if name in how}
            model = distributed(make_model(), **options)
            adviser = adviser_of(batch=2 * ranks)
            if advised:
                adviser.watch(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(60):
                optimizer.zero_grad(set_to_none=how.get("set_to_none", True))
                parts = how.get("accumulated", 1)
                for index in range(parts):
                    with model.no_sync() if index < parts - 1 else contextlib.nullcontext():
                        loss_of(model, own(2 // parts, step, index)).backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if advised:
                    adviser.step(norm, samples=2 * ranks, seconds=1.0)
            trained.append([parameter.detach().clone() for parameter in model.parameters()])
    return [torch.equal(one, other) for one, other in zip(*trained)], told


def small_norms_of(how: dict, steps: int) -> list[float]:
    """The mean squared norm of the ranks' own gradients, in float64, along the same training."""
    ranks = torch.distributed.get_world_size()
    model, found = make_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        seeds = [[10_000 * rank + 100 * step + index for index in range(how.get("accumulated", 1))]
                 for rank in range(ranks)]  # fmt: skip
        local = [sum(gradient(model, inputs(2 // len(each), seed)) for seed in each) for each in seeds]
        found.append(sum(each.square().sum().item() for each in local) / ranks)
        flat, begin = torch.stack(local).mean(0).float(), 0
        for parameter in model.parameters():
            parameter.grad = flat[begin : begin + parameter.numel()].view_as(parameter).clone()
            begin += parameter.numel()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return found


WAYS = ({}, {"gradient_as_bucket_view": True}, {"gradient_as_bucket_view": True, "set_to_none": False},
        {"static_graph": True}, {"accumulated": 2}, {"accumulated": 2, "gradient_as_bucket_view": True})  # fmt: skip


def watched_ways(ways: list[dict]) -> list[tuple[list[bool], list[dict], list[float]]]:
    return [(*train_with_and_without(how), small_norms_of(how, 20)) for how in ways]


def watched_twice() -> dict:
    """Two terms of a loss, with a backward call each."""
    ranks, found = torch.distributed.get_world_size(), {}
    for micro_batches in (1, 2):
        model, adviser = distributed(make_model()), adviser_of(batch=2 * ranks)

        def run(model=model, adviser=adviser, micro_batches=micro_batches):
            adviser.watch(model, micro_batches=micro_batches)
            for step in range(30):
                model.zero_grad()
                loss_of(model, own(2, step)).backward()
                (model(own(2, step)).abs().mean() if micro_batches == 1 else loss_of(model, own(2, step, 1))).backward()
                adviser.step(nn.utils.clip_grad_norm_(model.parameters(), 1.0), samples=2 * ranks, seconds=1.0)

        found[micro_batches] = warnings_of(run), adviser.noise_scale()
    return found


def saved_and_sparse() -> dict:
    model, adviser, found = distributed(make_model()), adviser_of(batch=4), {}
    adviser.watch(model)
    loss_of(model, own(2, 1)).backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    found["same"] = all(map(torch.equal, model.parameters(), loaded.parameters()))
    found["copied"] = all(map(torch.equal, model.parameters(), copy.deepcopy(model.module).parameters()))
    sparse = distributed(nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1)))
    try:
        adviser_of(batch=4).watch(sparse)
    except copus.UserError as error:
        found["sparse"] = str(error)
    return found


def different_samples(per_rank: tuple[int, ...], last: tuple[int, ...], weighted: bool) -> tuple:
    """Steps in which each rank has so many samples, each epoch's last with others."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = distributed(make_model())
    with spied() as told:
        adviser = adviser_of(batch=2 * sum(per_rank), weighted_by_samples=weighted)

        def run():
            for step in range(36):
                sizes = last if step % 6 == 5 else per_rank
                total = 2 * sum(sizes)
                model.zero_grad()
                for index in range(2):
                    with model.no_sync() if index == 0 else contextlib.nullcontext():
                        weight = sizes[rank] * ranks / total if weighted else 0.5
                        (loss_of(model, own(sizes[rank], step, index)) * weight).backward()
                    if index == 0:
                        adviser.first_micro_batch(model.parameters(), samples=sizes[rank])
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
                adviser.step(norm, samples=2 * sizes[rank] * ranks, seconds=1.0)
            adviser.close()

        said = warnings_of(run)
    return said, told


def wrapped_by_fsdp1() -> list[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    said = []
    for use_orig_params in (False, True):
        model = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
        loss_of(model, own(2, 1)).backward()
        for call in (lambda: adviser_of().first_micro_batch(model.parameters(), samples=2),
                     lambda: adviser_of().watch(model)):  # fmt: skip
            try:
                call()
            except copus.UserError as error:
                said.append(str(error))
    return said


def stages_of_a_pipeline() -> tuple[list[str], str | None]:
    """Ranks that hold different parameters, without torch.distributed.pipelining."""
    model = make_model()[2 * torch.distributed.get_rank()]
    adviser = adviser_of()

    def run():
        for step in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + step)
            adviser.first_micro_batch(model.parameters(), samples=4)
            adviser.step(1.0 + step, samples=8, seconds=1.0)

    return warnings_of(run), adviser.unmeasured


def told_of_a_pipeline() -> str:
    from torch.distributed.pipelining import PipelineStage

    rank = torch.distributed.get_rank()
    stage = PipelineStage(make_model()[2 * rank], rank, 2, torch.device("cpu"))
    try:
        adviser_of().first_micro_batch(stage.submod.parameters(), samples=4)
    except copus.UserError as error:
        return str(error)
    return ""


class SeveralRanks(unittest.TestCase):
    def check_ways(self, ranks: int, ways) -> None:
        first, *_ = found = run_on_ranks(ranks, watched_ways, list(ways))
        for index, how in enumerate(ways):
            with self.subTest(ranks=ranks, **how):
                for of_rank in found:
                    self.assertTrue(all(of_rank[index][0]))
                _, told, expected = first[index]
                # The first pass of a static graph is not like the others.
                self.assertGreaterEqual(len(told), 58)
                for step, small in enumerate(expected):
                    self.assertEqual(told[step]["small_batch"], 2)
                    self.assertAlmostEqual(told[step]["small_squared_norm"] / small, 1, delta=2e-3)

    def test_watching_changes_nothing_and_reads_local_gradients(self):
        self.check_ways(3, WAYS)

    def test_watching_changes_nothing_on_other_numbers_of_ranks(self):
        self.check_ways(5, WAYS[:1])

    def test_two_backward_calls_a_step_are_unmeasured_unless_they_are_told(self):
        found = run_on_ranks(2, watched_twice)
        said, noise = found[0][1]
        self.assertEqual(len(said), 1)
        self.assertIn("reduced 2 times", said[0])
        self.assertIsNone(noise)
        said, noise = found[0][2]
        self.assertEqual(said, [])
        self.assertIsNotNone(noise)
        self.assertEqual(found[1][1][0], [])

    def test_a_watched_model_is_saved_and_sparse_gradients_are_refused_at_once(self):
        for found in run_on_ranks(2, saved_and_sparse):
            self.assertTrue(found["same"] and found["copied"])
            self.assertRegex(found["sparse"], "0 is sparse.*sparse=False")

    def test_two_samples_on_each_of_three_ranks(self):
        (said, told), *_ = run_on_ranks(3, different_samples, (1, 1, 1), (1, 1, 1), False)
        self.assertEqual((said, len(told), told[0]["small_batch"]), ([], 36, 1))

    def test_a_last_batch_that_does_not_divide_goes_unmeasured(self):
        found = run_on_ranks(3, different_samples, (2, 2, 2), (2, 2, 1), False)
        self.assertEqual([said for said, _ in found], [[], [], []])
        told = found[0][1]
        self.assertEqual({step["samples"] for step in told}, {12})
        self.assertEqual(len(told), 30)

    def test_ranks_that_always_differ_are_added_up_where_they_are_weighted(self):
        (said, told), *_ = run_on_ranks(3, different_samples, (3, 2, 1), (3, 2, 1), True)
        self.assertEqual(said, [])
        self.assertEqual(told[0]["samples"], 12)
        squares = [gradient(make_model(), inputs(size, 10_000 * rank)).square().sum().item()
                   for rank, size in enumerate((3, 2, 1))]  # fmt: skip
        self.assertAlmostEqual(told[0]["small_batch"], 3 / (1 / 3 + 1 / 2 + 1), delta=1e-9)
        self.assertAlmostEqual(told[0]["small_squared_norm"] / (sum(squares) / 3), 1, delta=1e-4)
        (said, told), *_ = run_on_ranks(3, different_samples, (3, 2, 1), (3, 2, 1), False)
        self.assertEqual(len(said), 1)
        self.assertIn("ranks differ in their samples", said[0])
        self.assertEqual(told, [])

    def test_fsdp1_is_refused_by_name(self):
        for said in run_on_ranks(2, wrapped_by_fsdp1):
            self.assertEqual(len(said), 4)
            for each in said:
                self.assertRegex(each, "FSDP1.*fully_shard")

    def test_stages_of_a_pipeline_are_refused(self):
        for said in run_on_ranks(2, told_of_a_pipeline):
            self.assertRegex(said, "pipeline stages.*pipeline_parallel=")
        (said, unmeasured), _ = run_on_ranks(2, stages_of_a_pipeline)
        self.assertEqual(len(said), 1)
        self.assertIn("pipeline_parallel=", unmeasured)


class Wrappers(unittest.TestCase):
    """Wrappers are refused by the names and marks that DeepSpeed and Megatron-LM use. Neither package is installed here."""

    def test_marks_of_deepspeed_and_megatron_are_known(self):
        marks = (
            ("ds_id", 1, "DeepSpeed"), ("_hp_mapping", None, "DeepSpeed"), ("main_grad", torch.ones(2), "Megatron"),
            ("_megatron_fsdp_model", object(), "MegatronFSDP"),
        )  # fmt: skip
        for mark, value, name in marks:
            parameter = nn.Parameter(torch.ones(2))
            parameter.grad = torch.ones(2)
            setattr(parameter, mark, value)
            with self.subTest(mark=mark), self.assertRaisesRegex(copus.UserError, name):
                adviser_of().first_micro_batch([parameter], samples=4)

    def test_models_are_known_by_their_class_or_one_that_it_derives_from(self):
        def kind(module: str, name: str, base: type = nn.Module) -> type:
            return type(name, (base,), {"__module__": module})

        engine = kind("deepspeed.runtime.engine", "DeepSpeedEngine")
        of_megatron = kind("megatron.core.distributed.data_parallel_base", "_BaseDataParallel")
        in_megatron = "megatron.core.distributed"
        kinds = (
            (engine, "DeepSpeed:"),
            (kind("deepspeed.runtime.hybrid_engine", "DeepSpeedHybridEngine", engine), "DeepSpeed:"),
            (kind("deepspeed.runtime.pipe.engine", "PipelineEngine", engine), "DeepSpeed's pipeline"),
            (kind("deepspeed.runtime.pipe.module", "PipelineModule"), "DeepSpeed's pipeline"),
            (kind(f"{in_megatron}.distributed_data_parallel", "DistributedDataParallel", of_megatron), "Megatron's"),
            (kind(f"{in_megatron}.torch_fully_sharded_data_parallel", "TorchFullyShardedDataParallel", of_megatron),
             "Megatron's"),
            (kind(f"{in_megatron}.fsdp.mcore_fsdp_adapter", "FullyShardedDataParallel", of_megatron), "Fully"),
            (kind("megatron_fsdp.megatron_fsdp", "MegatronFSDP"), "MegatronFSDP"),
            (kind("somebody.elses", "Engine", engine), "DeepSpeed:"),
            (kind("fairscale.nn.data_parallel.sharded_ddp", "ShardedDataParallel"), "FairScale's"),
        )  # fmt: skip
        for each, name in kinds:
            model = each()
            model.inner = nn.Linear(2, 2)
            for shown in (model, nn.Sequential(model)):  # also inside of another
                with self.subTest(kind=each.__name__), self.assertRaisesRegex(copus.UserError, f"wrapped by {name}"):
                    refuse_wrapper(shown)
        refuse_wrapper(nn.Sequential(kind("somebody.elses", "MyDataParallel")()))


if __name__ == "__main__":
    unittest.main()
