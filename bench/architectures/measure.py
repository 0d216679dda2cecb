#!/usr/bin/env python3
"""Compares the speed of each architecture with that of a Llama of equal shape, as the ratio of their MFUs.

Each shipped configuration in configs/models is cut to the same layers, hidden size, heads and feed-forward work. Two
processes take turns (`copus bench step --serve`), so that a busy machine disturbs both. Several pairs of processes run
one after another, because the place of a process in memory changes its speed. Prints the median and the quartiles of
the ratio over all turns, and writes a row for each pair.

Usage: measure.py --copus build/copus --out rows.jsonl [--pairs 4] [--turns 4] [--model NAME ...]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

CONFIGS = pathlib.Path(__file__).parents[2] / "configs/models"
LAYERS, HIDDEN, HEADS, KEY_VALUE_HEADS, VOCABULARY, SEQUENCE = 4, 384, 6, 3, 4096, 512
GATED, PLAIN = 1024, 1536  # feed-forward sizes of equal work: three matrices, and two

MODELS = {
    "llama": "llama-3.2-1b", "qwen2": "qwen2.5-1.5b", "qwen3": "qwen3-0.6b", "mistral": "mistral-7b-v0.1",
    "olmo2": "olmo2-1b", "olmo3": "olmo3-7b", "smollm3": "smollm3-3b", "granite": "granite-3.1-2b",
    "phi3": "phi-3-mini-4k", "gemma2": "gemma-2-2b", "gemma3": "gemma-3-1b", "gpt2": "gpt2", "gpt_neox": "pythia-1.4b",
}


def shaped(name: str) -> dict:
    config = json.loads((CONFIGS / f"{MODELS[name]}.json").read_text())
    if name == "gpt2":
        return config | {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_inner": PLAIN, "vocab_size": VOCABULARY,
                         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}
    config |= {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
               "vocab_size": VOCABULARY, "intermediate_size": PLAIN if name == "gpt_neox" else GATED,
               "tie_word_embeddings": True}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config.pop(key, None)
    for key in ("attention_dropout", "attention_dropout_rate"):
        if key in config:
            config[key] = 0.0
    if "num_key_value_heads" in config:
        config["num_key_value_heads"] = KEY_VALUE_HEADS
    if "head_dim" in config:
        config["head_dim"] = HIDDEN // HEADS
    if "query_pre_attn_scalar" in config:
        config["query_pre_attn_scalar"] = HIDDEN // HEADS
    if config.get("sliding_window"):
        config["sliding_window"] = SEQUENCE // 2
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:LAYERS]
    return config


class Worker:
    """`copus bench step --serve` of one model."""

    def __init__(self, copus: str, config: pathlib.Path):
        command = [copus, "bench", "step", "--model", str(config), "--sequence-length", str(SEQUENCE), "--micro-batch",
                   "4", "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()  # ready

    def ask(self, question: str) -> dict:
        print(question, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def seconds(self) -> float:
        return self.ask("run 3")["seconds_per_step"]

    def operations(self) -> float:
        """The billion operations of a step. Measures the peak too, which takes ten seconds."""
        report = self.ask("report 1")
        return report["gflops"] * report["seconds_per_step"]

    def quit(self) -> None:
        print("quit", file=self.process.stdin, flush=True)
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copus", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--model", action="append", choices=list(MODELS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, options.out.open("a") as out:
        for name in options.model or [name for name in MODELS if name != "llama"]:
            configs = {}
            for one in ("llama", name):
                configs[one] = pathlib.Path(folder) / f"{one}.json"
                configs[one].write_text(json.dumps(shaped(one)))
            ratios, work = [], None
            for _ in range(options.pairs):
                workers = {one: Worker(options.copus, config) for one, config in configs.items()}
                for worker in workers.values():
                    worker.seconds()  # warms up
                seconds = {one: [] for one in workers}
                for turn in range(options.turns):
                    for one in list(workers) if turn % 2 == 0 else reversed(list(workers)):
                        seconds[one].append(workers[one].seconds())
                work = work or workers[name].operations() / workers["llama"].operations()
                for worker in workers.values():
                    worker.quit()
                ratios += [work * llama / other for llama, other in zip(seconds["llama"], seconds[name])]
                out.write(json.dumps({"model": name, "work": work, "seconds": seconds}) + "\n")
                out.flush()
            quartiles = statistics.quantiles(ratios, n=4)
            print(f"{name:9s} {quartiles[1]:.3f} ({quartiles[0]:.3f} to {quartiles[2]:.3f})", flush=True)


if __name__ == "__main__":
    main()
