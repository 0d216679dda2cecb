"""The arithmetic of measure.py: which cases fit into its time, results, tables. Standard library only."""

import dataclasses
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "pytorch"))

from shapes import Shape  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# bf16, dense, from the data sheets; TFLOP/s.
DATA_SHEET_TFLOPS = {"H100": 989.4, "H200": 989.4, "A100": 312.0}
AIMED_MFU = 0.60
AIMED_OVER_COMPILE = 1.15
AIMED_MODELS = ("qwen2.5-1.5b", "qwen2.5-3b")
COMPILED = ("layers", "model")


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and a sequence length, with the sides to measure."""

    model: str
    sequence: int
    precision: str = "bf16"
    sides: tuple[str, ...] = ("ours", "eager", "layers")

    def config_path(self) -> pathlib.Path:
        return ROOT / "configs/models" / f"{self.model}.json"

    def config(self) -> dict:
        return json.loads(self.config_path().read_text(encoding="utf-8"))

    def flops_per_token(self) -> float:
        return Shape.of_config(self.config(), self.sequence, 1).training_flops_per_token()

    def parameters(self) -> int:
        config = self.config()
        hidden, ffn, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
        key_value = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
        biases = hidden + 2 * key_value if config["model_type"] == "qwen2" else 0
        layer = 2 * hidden * hidden + 2 * hidden * key_value + biases + 3 * hidden * ffn + 2 * hidden
        ends = 1 if config["tie_word_embeddings"] else 2
        return layers * layer + ends * config["vocab_size"] * hidden + hidden

    def name(self) -> str:
        notes = "" if self.precision in ("bf16", "fp32") else f", {self.precision}"
        return f"{self.model} x {self.sequence}{notes}"


def cases_by_importance() -> list[Case]:
    """One case compiles the whole model. The others compile only its layers, which takes a third of the time. A case
    with parameters in bf16 is only for information."""
    pure = {"precision": "bf16-parameters"}
    return [
        Case("qwen2.5-1.5b", 2048),
        Case("qwen2.5-3b", 2048),
        Case("qwen2.5-1.5b", 2048, sides=("ours", "model")),
        Case("qwen2.5-0.5b", 1024),
        Case("llama-3.2-1b", 2048),
        Case("qwen2.5-1.5b", 1024),
        Case("qwen2.5-3b", 1024),
        Case("llama-3.2-3b", 2048),
        Case("qwen2.5-1.5b", 2048, **pure),
        Case("qwen2.5-0.5b", 2048),
        Case("llama-3.2-1b", 1024),
        Case("llama-3.2-3b", 1024),
        Case("qwen2.5-1.5b", 4096),
        Case("qwen2.5-3b", 4096),
        Case("qwen2.5-3b", 2048, **pure),
    ]


class Budget:
    """Distributes the available seconds over cases in their order. A case begins only if its expected duration fits
    into the remaining time.

    The duration of a case is guessed from its sides and size, and corrected by the durations of the previous cases.
    """

    PREPARATION = {"ours": 7.0, "eager": 8.0, "layers": 30.0, "model": 75.0}  # guesses, of 1.5 billion parameters
    TURN = 3.5  # of one side, a guess as well
    LEAST_ROUNDS = 2

    def __init__(self, seconds: float, started: float):
        self.end = started + seconds
        self.correction = 1.0

    def remaining(self, now: float) -> float:
        return self.end - now

    def guess(self, case: Case) -> float:
        size = max(0.3, case.parameters() / 1.5e9)
        preparation = sum(self.PREPARATION[side] for side in case.sides)
        return size**0.5 * (preparation + self.LEAST_ROUNDS * self.TURN * len(case.sides))

    def expected(self, case: Case) -> float:
        return self.correction * self.guess(case)

    def fits(self, case: Case, now: float) -> bool:
        return self.expected(case) <= self.remaining(now)

    def learn(self, case: Case, seconds_of_least_rounds: float) -> None:
        self.correction = seconds_of_least_rounds / self.guess(case)


def data_sheet_tflops(device_name: str) -> float | None:
    return next((peak for name, peak in DATA_SHEET_TFLOPS.items() if name in device_name), None)


def quartiles(values: list[float]) -> list[float]:
    if len(values) == 1:
        return [values[0], values[0]]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return [lower, upper]


def summarize_side(case: Case, machine: dict, tokens_per_step: int, seconds_per_step: list[float]) -> dict:
    rates = [tokens_per_step / seconds for seconds in seconds_per_step]
    tokens_per_second = statistics.median(rates)
    tflops = tokens_per_second * case.flops_per_token() / 1e12
    sheet = data_sheet_tflops(machine["name"])
    return {
        "seconds_per_step": seconds_per_step,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_quartiles": quartiles(rates),
        "tflops": tflops,
        "mfu": tflops / sheet if sheet else None,
        "share_of_measured_matmul": tflops / machine["matmul_tflops"],
    }


def compare(sides: dict) -> dict:
    """Ours over eager and over the faster result of torch.compile: medians of the ratios within each round."""
    result = {"over_eager": None, "over_compile": None}
    if "tokens_per_second" not in sides.get("ours", {}):
        return result

    def over(name: str) -> dict:
        pairs = zip(sides["ours"]["seconds_per_step"], sides[name]["seconds_per_step"])
        scale = (sides["ours"]["micro_batches"] * sides["ours"]["micro_batch"]) / (
            sides[name]["micro_batches"] * sides[name]["micro_batch"]
        )
        ratios = [scale * theirs / ours for ours, theirs in pairs]
        return {"side": name, "ratio": statistics.median(ratios), "quartiles": quartiles(ratios)}

    measured = {name: side for name, side in sides.items() if "tokens_per_second" in side}
    if "eager" in measured:
        result["over_eager"] = over("eager")
    compiled = [name for name in COMPILED if name in measured]
    if compiled:
        result["over_compile"] = over(max(compiled, key=lambda name: measured[name]["tokens_per_second"]))
    return result


# ---- tables ---------------------------------------------------------------------------------------------------------


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def gibibytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f}"


SIDE_NAMES = {"ours": "Copus", "eager": "eager", "layers": "compile, layers", "model": "compile, model"}


def throughput_table(results: dict) -> list[str]:
    lines = [
        f"{'model x sequence':32} {'side':16} {'batch':>8} {'tokens/s (quartiles)':>28} {'MFU':>7} {'of GEMM':>8} "
        f"{'GiB':>6}  Copus over it"
    ]
    for case in results["cases"]:
        for name, side in case["sides"].items():
            start = f"{case['name']:32} {SIDE_NAMES[name]:16} "
            if "tokens_per_second" not in side:
                lines.append(start + f"not measured: {side['error']}")
                continue
            low, high = side["tokens_per_second_quartiles"]
            over = [case[key] for key in ("over_eager", "over_compile") if (case[key] or {}).get("side") == name]
            batch = f"{side['micro_batches']} x {side['micro_batch']}"
            rate = f"{side['tokens_per_second']:,.0f} ({low:,.0f} .. {high:,.0f})"
            lines.append(
                start
                + f"{batch:>8} {rate:>28} {percent(side['mfu']):>7} {percent(side['share_of_measured_matmul']):>8} "
                f"{gibibytes(side['peak_memory_bytes']):>6}" + (f"  {over[0]['ratio']:.2f}x" if over else "")
            )
    lines += [f"{case['name']:32} not measured: {case['reason']}" for case in results["not_measured"]]
    return lines


def parts_table(results: dict) -> list[str]:
    lines = [f"{'Copus, ms a step (floor)':32}"]
    parts = ("matmul", "attention", "elementwise", "optimizer", "other")
    lines[0] += "".join(f" {part:>18}" for part in parts) + f" {'all floors':>11}"
    for case in results["cases"]:
        report = case.get("report")
        if not report:
            continue
        cells, floors = [], 0.0
        for part in parts:
            seconds, floor = report["parts"][part]["seconds"], report["parts"][part].get("floor_seconds")
            floors += floor or 0
            cells.append(f"{seconds * 1e3:.1f}" + (f" ({floor * 1e3:.1f})" if floor is not None else ""))
        share = floors / report["seconds_per_step"]
        lines.append(f"{case['name']:32}" + "".join(f" {cell:>18}" for cell in cells) + f" {percent(share):>11}")
    return lines if len(lines) > 1 else []


def aims(results: dict) -> list[dict]:
    """Returns the result for each aim, by sequence length. If cases differ in how PyTorch is compiled, the smallest
    result is used. An aim without any measurement has None for the value and the sequence length."""
    reached = []
    for model in AIMED_MODELS:
        cases = [case for case in results["cases"] if case["model"] == model and case["precision"] == "bf16"]
        shares = [(case["sequence"], case["sides"].get("ours", {}).get("mfu")) for case in cases]
        ratios = [(case["sequence"], (case["over_compile"] or {}).get("ratio")) for case in cases]
        for what, aim, values in (("MFU", AIMED_MFU, shares), ("over torch.compile", AIMED_OVER_COMPILE, ratios)):
            measured = [(sequence, value) for sequence, value in values if value is not None]
            for sequence in sorted({sequence for sequence, _ in measured}) or [None]:
                value = min((value for other, value in measured if other == sequence), default=None)
                reached.append({"model": model, "what": what, "aim": aim, "value": value, "sequence": sequence})
    return reached


def aim_lines(results: dict) -> list[str]:
    lines = []
    for aim in aims(results):
        show = percent if aim["what"] == "MFU" else lambda ratio: f"{ratio:.2f}x"
        said = "not measured"
        if aim["value"] is not None:
            verdict = "met" if aim["value"] >= aim["aim"] else "missed"
            said = f"{show(aim['value'])} at {aim['sequence']}: {verdict}"
        lines.append(f"{aim['model']:14} {aim['what']:20} aim >= {show(aim['aim']):7} {said}")
    return lines


def report_lines(results: dict, with_aims: bool = True) -> list[str]:
    machine = results["machine"]
    sheet = data_sheet_tflops(machine["name"])
    head = (
        f"{machine['name']}: GEMM {machine['matmul_tflops']:.1f} TFLOP/s measured, "
        + (f"{sheet} by the data sheet (MFU is of this), " if sheet else "")
        + f"a copy moves {machine['copy_bytes_per_second'] / 1e12:.3g} TB/s; torch {machine['torch']}, "
        f"transformers {machine['transformers']}; {results['seconds']:.0f} s"
    )
    lines = [head, "", *throughput_table(results), "", *parts_table(results)]
    return [*lines, "", *aim_lines(results)] if with_aims else lines
