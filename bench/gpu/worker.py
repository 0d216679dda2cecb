#!/usr/bin/env python3
"""PyTorch's side of measure.py: one process that trains models on request, so that libraries are loaded once.

Each line on stdin is a JSON object with a request, and is answered with one line:

  {"do": "machine"}   {"name", "memory_bytes", "matmul_tflops", "copy_bytes_per_second"}: of the device, measured
  {"do": "load", "config": FILE, "sequence", "micro_batch", "tokens_per_step", "precision", "compile"}
                      {"micro_batch", "seconds", "seconds_per_step"}: micro_batch is halved until it fits; loading takes
                      `seconds`, with two steps, the second of which takes `seconds_per_step`
  {"do": "run", "steps": N}
                      {"seconds_per_step", "peak_memory_bytes"}: mean of N steps after one warm-up step
  {"do": "park"}      {}: releases the GPU's memory; "run" takes it again, with new random weights
  {"do": "unload"}    {}

An error is answered with {"error": message}. The process exits at the end of its stdin.
"""

import argparse
import gc
import json
import logging
import os
import pathlib
import sys
import time

# Memory that is released and allocated again every turn must not become fragmented.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "pytorch"))

import torch  # noqa: E402
import transformers  # noqa: E402

from trainer import Trainer  # noqa: E402


def read_config(path: str) -> transformers.PreTrainedConfig:
    values = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(values)
    config.use_cache = False
    return config


class Worker:
    def __init__(self, device: torch.device):
        self.device = device
        self.trainer = None
        self.is_parked = False

    # ---- what can be asked for --------------------------------------------------------------------------------------

    def machine(self) -> dict:
        if self.device.type == "cpu":
            name, memory, sizes, elements = "cpu", None, [(512, 512, 512)], 1 << 22
        else:
            properties = torch.cuda.get_device_properties(self.device)
            name, memory, elements = properties.name, properties.total_memory, 1 << 30
            sizes = [(4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 13312), (8192, 8960, 1536)]
        result = {
            "name": name,
            "memory_bytes": memory,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "matmul_tflops": max(self.matmul_tflops(*size) for size in sizes),
            "copy_bytes_per_second": self.copy_rate(elements),
        }
        self.release_cache()
        return result

    def load(self, config: str, sequence: int, micro_batch: int, tokens_per_step: int, precision: str, compile: str):
        self.unload()
        started = time.perf_counter()
        while True:
            micro_batches = max(1, tokens_per_step // (micro_batch * sequence))
            try:
                self.trainer = Trainer(
                    read_config(config), sequence, micro_batch, micro_batches, self.device, precision, compile
                )
                self.trainer.step()
                self.synchronize()
                second = time.perf_counter()
                self.trainer.step()
                self.synchronize()
                end = time.perf_counter()
                return {"micro_batch": micro_batch, "seconds": end - started, "seconds_per_step": end - second}
            except torch.cuda.OutOfMemoryError:
                if micro_batch == 1:
                    raise
            # After the handler, whose exception holds the step's tensors.
            self.unload()
            micro_batch //= 2

    def run(self, steps: int) -> dict:
        if self.is_parked:
            self.unpark()
        self.trainer.step()
        self.synchronize()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        started = time.perf_counter()
        for _ in range(steps):
            self.trainer.step()
        self.synchronize()
        seconds = (time.perf_counter() - started) / steps
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        return {"seconds_per_step": seconds, "peak_memory_bytes": peak}

    def park(self) -> dict:
        """Keeps only sizes: weights are random anyway, and the memory does not suffice for all sides at once."""
        self.trainer.optimizer.zero_grad()
        self.trainer.optimizer.state.clear()
        self.shapes = [(parameter, parameter.shape) for parameter in self.trainer.model.parameters()]
        for parameter, _ in self.shapes:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=self.device)
        self.is_parked = True
        self.release_cache()
        return {}

    def unload(self) -> dict:
        self.trainer, self.shapes, self.is_parked = None, [], False
        torch._dynamo.reset()
        self.release_cache()
        return {}

    # ---- how --------------------------------------------------------------------------------------------------------

    def unpark(self) -> None:
        for parameter, shape in self.shapes:
            parameter.data = torch.empty(shape, dtype=parameter.dtype, device=self.device)
            if len(shape) > 1:
                parameter.data.normal_(std=0.02)
            else:
                parameter.data.fill_(1)
        self.is_parked = False

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release_cache(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def seconds_of(self, function, times: int) -> float:
        for _ in range(3):
            function()
        self.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            function()
        self.synchronize()
        return (time.perf_counter() - started) / times

    def matmul_tflops(self, rows: int, columns: int, depth: int) -> float:
        # Random numbers, because zeros draw less power and so are faster.
        a = torch.randn(rows, depth, dtype=torch.bfloat16, device=self.device)
        b = torch.randn(columns, depth, dtype=torch.bfloat16, device=self.device)
        out = torch.empty(rows, columns, dtype=torch.bfloat16, device=self.device)
        return 2e-12 * rows * columns * depth / self.seconds_of(lambda: torch.mm(a, b.T, out=out), 20)

    def copy_rate(self, elements: int) -> float:
        source = torch.zeros(elements, dtype=torch.float32, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds_of(lambda: target.copy_(source), 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--reserve-bytes", type=int, default=0, help="of the GPU's memory, for the other processes")
    arguments = parser.parse_args()

    # Libraries may print; only answers may go to the original stdout.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    transformers.logging.set_verbosity_error()
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_float32_matmul_precision("high")
    device = torch.device(arguments.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(1 - arguments.reserve_bytes / total, device)
    worker = Worker(device)
    for line in sys.stdin:
        request = json.loads(line)
        action = getattr(worker, request.pop("do"))
        try:
            answer = action(**request)
        except Exception as error:  # whatever it is, the other sides continue
            answer = {"error": f"{type(error).__name__}: {error}"}
            worker.unload()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
