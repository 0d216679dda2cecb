"""The runs of the experiment of README.md: models, branches and arms with their settings. A sample is a sequence, and
batches are in samples."""

import dataclasses
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "evaluation"))

import law  # noqa: E402

from rows import finished  # noqa: E402

MULTIPLES = (0.5, 2, 4, 8)  # of the reference batch
EXPONENTS = (0, 0.25, 0.5)  # of B / B_ref in the rate
RUNGS = (0.125, 0.25, 0.5, 1, 2)  # of a branch's length, in the reference batch
RATES = (0.5, 1, 2)  # times run_rate; more follow while the best is at an end
MOST_RATE = 8  # and its inverse
SCREENING_SEED = 401
SEEDS = (411, 412, 413, 414)
JOB_SEQUENCE = 2048  # tokens of a sample of the job that the modelled clock stands for
JOB = {"model": "llama-3.1-8b", "cluster": "h100-sxm", "gpus": 64, "sequence_length": JOB_SEQUENCE, "space": "wide"}


@dataclasses.dataclass(frozen=True)
class Scale:
    device: str
    precision: str
    hidden: int
    heads: int
    intermediate: int
    layers: dict[str, int]
    sequence_length: int
    samples_divisor: int  # of all numbers of samples, and below of all batches
    batch_divisor: int
    evaluated: int  # held-out samples; 0: all
    speed_seconds: float
    startup_seconds: float  # of a run: start, evaluation, checkpoints
    law_batch: int = 64
    branch_seeds: tuple = (1, 2)
    trunk_rate: float = 6e-4
    run_rate: float = 2e-3  # for a batch of run_batch

    @property
    def reference(self) -> int:
        return 8 // self.batch_divisor

    @property
    def points(self) -> tuple:
        """Samples of the trunk: 1, 4, 16 and 64 M tokens on a card."""
        return tuple(samples // self.samples_divisor for samples in (1024, 4096, 16384, 65536))

    @property
    def run_samples(self) -> int:
        """Samples of a run in a batch of run_batch: 100 M tokens on a card."""
        return 98304 // self.samples_divisor

    @property
    def run_batch(self) -> int:
        return 128 // self.batch_divisor

    @property
    def batches(self) -> list[int]:
        every = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
        return [batch // self.batch_divisor for batch in every]

    def configuration(self) -> str:
        return f"""[model]
architecture = "llama"
vocab_size = 8192
hidden_size = {self.hidden}
intermediate_size = {self.intermediate}
num_attention_heads = {self.heads}
num_key_value_heads = {self.heads}
max_position_embeddings = {self.sequence_length}
tie_word_embeddings = true
[data]
train = "train"
held_out = ["held_out"]
mask_across_documents = false
[train]
device = "{self.device}"
precision = "{self.precision}"
sequence_length = {self.sequence_length}
threads = 1
[optimizer]
min_lr_ratio = 0.0
[evaluate]
interval = 0
[log]
tensorboard = false
interval = 1000000
"""

    def evaluation(self, micro_batch: int) -> dict:
        return {"evaluate.max_batches": self.evaluated // micro_batch}


CARD = Scale("cuda", "bf16", 768, 12, 2048, {"30M": 4, "85M": 12}, 1024, 1, 1, 0, 8.0, 15.0)
CPU = Scale("cpu", "fp32", 48, 2, 128, {"30M": 1, "85M": 2}, 32, 64, 4, 64, 2.0, 2.0)


def branch_length(scale: Scale, point: int) -> int:
    """Samples of a branch: the largest batch makes 32 updates, or an eighth of the trunk so far, if that is more."""
    return max(2048 // scale.samples_divisor, point // 8)


def branches(scale: Scale, seed: int, point: int) -> list[dict]:
    length = branch_length(scale, point)
    arms = [(scale.reference, 0, int(rung * length)) for rung in RUNGS]
    arms += [(int(multiple * scale.reference), exponent, length) for exponent in EXPONENTS for multiple in MULTIPLES]
    return [{"case": f"branch-s{seed}-at-{point}-B{batch}-e{exponent}-n{samples}", "seed": seed, "point": point,
             "batch": batch, "exponent": exponent, "samples": samples} for batch, exponent, samples in arms]


def trunk_settings(scale: Scale, seed: int, batch: int | None = None) -> dict:
    """Settings of the trunk, or of a branch of it in another batch."""
    batch = batch or scale.reference
    micro_batch = min(batch, 16)
    return {"model.num_hidden_layers": scale.layers["85M"], "train.seed": seed, "train.global_batch": batch,
            "train.micro_batch": micro_batch, "optimizer.lr": scale.trunk_rate, "optimizer.schedule": "constant",
            "optimizer.warmup_tokens": scale.points[0] * scale.sequence_length // 8,
            "optimizer.batch_scaling": "none", "noise_scale.enabled": "false", **scale.evaluation(micro_batch)}


def modelled_seconds(scale: Scale, program: str) -> float:
    """Returns the modelled seconds that run_batch needs for run_samples in its fastest predicted layout. A run lasts as
    long. Also checks that the ramp of law.py is the one batch law_batch, so that `law` is an arm of `static`. law.py
    computes the critical batch for the number of tokens that are trained here, not for the job's."""
    trained = CARD.run_samples * CARD.sequence_length
    at_end = law.critical_tokens(trained) / CARD.sequence_length / scale.batch_divisor
    settings = law.law_settings(program, JOB, scale.batches, scale.run_samples * JOB_SEQUENCE, at_end)
    if f"adapt.schedule=0:{scale.law_batch}" not in settings:
        sys.exit(f"law.py's ramp is not a batch of {scale.law_batch}: {settings}. README.md says what `law` is.")
    planned = law.planned_seconds(program, JOB, [scale.run_batch])
    return min(of_layout[scale.run_batch] for of_layout in planned.values()) * scale.run_samples / scale.run_batch


def run_settings(scale: Scale, arm: str, seed: int, rate: float = 1, seconds: float = 0) -> dict:
    """Settings of a run of so many modelled seconds, without a limit if 0. `rate`: a factor on run_rate."""
    rate *= scale.run_rate
    settings = {
        "model.num_hidden_layers": scale.layers["30M"], "train.seed": seed, "train.micro_batch": 1,
        "cluster.clock": "modelled", "cluster.config": JOB["cluster"], "cluster.stands_for": JOB["model"],
        "cluster.stands_for_sequence_length": JOB_SEQUENCE, "cluster.stands_for_precision": "bf16",
        "cluster.truth_layout_error": 0.07, "cluster.truth_seed": seed, "optimizer.warmup_tokens": 0.1,
        "adapt.objective": "time", "adapt.global_batches": scale.batches, "adapt.zero_stages": [0, 1],
        "adapt.sequence_parallel": "[false, true]", "adapt.virtual_stages": [1, 2, 4],
        "adapt.schedules": ["1f1b", "interleaved", "zb-h1"], "adapt.recomputes": ["none", "attention", "full"],
        "train.max_seconds": seconds,
        "evaluate.interval_tokens": scale.run_samples * scale.sequence_length // 40}
    if arm == "copus":
        settings |= {
            "parallel.data_parallel": 64, "parallel.zero_stage": 3, "train.recompute": "full",
            "train.global_batch": 256 // scale.batch_divisor, "adapt.policy": "copus",
            "optimizer.reference_batch": scale.run_batch, "optimizer.lr": rate}
    else:
        batch = int(arm.removeprefix("static-"))
        settings |= {
            "parallel.data_parallel": 2, "parallel.tensor_parallel": 4, "parallel.pipeline_parallel": 8,
            "adapt.policy": "static-best", "train.global_batch": batch, "optimizer.batch_scaling": "none",
            "noise_scale.enabled": "false", "optimizer.lr": rate * math.sqrt(batch / scale.run_batch)}
    return settings | scale.evaluation(int(settings["train.micro_batch"]))


def fixed_batches(scale: Scale) -> list[str]:
    return [f"static-{batch // scale.batch_divisor}" for batch in (32, 64, 128, 256)]


def run_case(scale: Scale, arm: str, rate: float, seed: int) -> dict:
    """`run_samples` is the length of the run in a batch of run_batch, and so says how long it trains."""
    return {"case": f"run-{arm}-r{rate:g}-s{seed}-n{scale.run_samples}", "arm": arm, "rate": rate, "seed": seed,
            "run_samples": scale.run_samples}


def runs_of(scale: Scale, rows: list[dict]) -> list[dict]:
    """Returns the rows of G2 whose runs are as long as `scale` says."""
    return [row for row in rows if row["stage"] == "G2" and row["run_samples"] == scale.run_samples]


def screened(scale: Scale, rows: list[dict], arm: str) -> dict[float, float]:
    """Returns the loss at the end by rate, of the screening seed; infinite if the run diverged."""
    return {row["rate"]: math.inf if row["loss"] is None else row["loss"] for row in runs_of(scale, rows)
            if row["arm"] == arm and row["seed"] == SCREENING_SEED}


def rates_of(losses: dict[float, float]) -> list[float]:
    """Returns the rates that an arm should have been screened with, given the losses so far."""
    if not all(rate in losses for rate in RATES):
        return list(RATES)
    best = min(losses, key=losses.get)
    further = {max(losses): best * 2, min(losses): best / 2}.get(best)
    return [*losses, further] if further and 1 / MOST_RATE <= further <= MOST_RATE else list(losses)


def screening_runs(scale: Scale, rows: list[dict]) -> list[dict]:
    return [run_case(scale, arm, rate, SCREENING_SEED) for arm in (*fixed_batches(scale), "copus")
            for rate in rates_of(screened(scale, rows, arm))]


def chosen(scale: Scale, rows: list[dict]) -> dict[str, tuple[str, float]] | None:
    """Returns the arm and the rate with the lowest screening loss for `copus`, `static` and `law`; None before all
    screening runs have a result."""
    done = finished(rows)
    if any(run["case"] not in done for run in screening_runs(scale, rows)):
        return None
    groups = {"copus": ["copus"], "static": fixed_batches(scale), "law": [f"static-{scale.law_batch}"]}
    return {name: min(((arm, rate) for arm in arms for rate in screened(scale, rows, arm)),
                      key=lambda one: screened(scale, rows, one[0])[one[1]]) for name, arms in groups.items()}


def judged_runs(scale: Scale, rows: list[dict]) -> list[dict]:
    """Returns the runs that decide, seed by seed; none before the arms are chosen."""
    arms = chosen(scale, rows)
    return [run_case(scale, arm, rate, seed) for seed in SEEDS
            for arm, rate in dict.fromkeys(arms.values())] if arms else []
