#!/usr/bin/env python3
"""Compares the predictions of `copus plan` with memory and times that others published. Nothing in the predictions was
fitted to them.

    bench/trainers/published.py build/copus

The rows and the rules below were committed before the first row was evaluated.

- Memory: readings are of PyTorch's allocator, without the CUDA context and NCCL's buffers. A plan counts 1 GiB for
  both, which is subtracted from the prediction. `reserved` readings include fragmentation, `allocated` readings do not.
- A row's layout is fixed, as published. A row whose layout is not fully published is left out, because no part may be
  chosen by us.
- Megatron-LM's own functional tests train GPT. Its feed-forwards of 4 x hidden without a gate have as many weights and
  keep as many bytes as gated feed-forwards of 8/3 x hidden. The 33.5 million parameters of position embeddings are left
  out. Dropout's two one-byte masks are added: for each layer and micro-batch under way they take as much as one bf16
  tensor of the residual stream. The readings are of the last rank.
- torchtitan with context parallelism c on sequences of s is planned as sequences of s / c, with c times as many ranks
  sharing the weights. fp8 keeps activations and weights as bf16 does, so only memory is compared.
- Times are compared for bf16 only. Megatron-LM's tests use deterministic kernels, which are slower than the kernels of
  a plan.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
         "max_position_embeddings": 131072, "tie_word_embeddings": False, "num_key_value_heads": 8}


def llama(hidden, feed_forward, layers, heads, vocabulary, **others):
    return LLAMA | {"hidden_size": hidden, "intermediate_size": feed_forward, "num_hidden_layers": layers,
                    "num_attention_heads": heads, "vocab_size": vocabulary} | others


L8B, L70B = llama(4096, 14336, 32, 32, 128256), llama(8192, 28672, 80, 64, 128256)
L405B = llama(16384, 53248, 126, 128, 128256)
GPT7B = {t: llama(4096, 10923 if t == 1 else 10924, 32, 32, 131200 if t == 1 else 131584) for t in (1, 4)}
LLAMA2_13B = llama(5120, 13824, 40, 40, 32000, num_key_value_heads=40)
LLAMA2_70B = llama(8192, 28672, 80, 64, 32000)
GOLDEN = "Megatron-LM d98e8a64, tests/functional_tests/test_cases/gpt/gpt3_7b_{}_memory_speed"
TABLES = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table "
HISTORY = "torchtitan's docs/performance.md of 2024, 64 A100"

# name, program, cluster, model, GPUs, sequence, global batch, layout, GiB, kind of reading, tokens/s/GPU, source
ROWS = [
    ("GPT 7B, t4", "megatron", "h100-sxm", GPT7B[4], 8, 8192, 8, "d=2,t=4,p=1,b=2,sp=0,zero=1,recompute=none",
     57143791616 / 2**30, "allocated", 8 * 8192 / 8 / 1.1149, GOLDEN.format("tp4_pp1")),
    ("GPT 7B, t4", "megatron", "a100-sxm", GPT7B[4], 8, 8192, 8, "d=2,t=4,p=1,b=2,sp=0,zero=1,recompute=none",
     58188115968 / 2**30, "allocated", 8 * 8192 / 8 / 2.596, GOLDEN.format("tp4_pp1")),
    ("GPT 7B, p4 v8", "megatron", "h100-sxm", GPT7B[1], 8, 8192, 8, "d=2,t=1,p=4,v=8,b=1,zero=1,recompute=none",
     60720852992 / 2**30, "allocated", 8 * 8192 / 8 / 1.1508, GOLDEN.format("tp1_pp4")),
    ("GPT 7B, p4 v8", "megatron", "a100-sxm", GPT7B[1], 8, 8192, 8, "d=2,t=1,p=4,v=8,b=1,zero=1,recompute=none",
     60489064448 / 2**30, "allocated", 8 * 8192 / 8 / 2.948, GOLDEN.format("tp1_pp4")),
    ("Llama 3.1 8B, c2", "torchtitan", "h100-sxm", L8B, 4, 4096, 4, "d=4,t=1,p=1,b=1,recompute=full,reshard=1",
     44.84, "reserved", None, "torchtitan pull request 1884"),
    ("Llama 3.1 8B, c2 of 65536", "torchtitan", "h100-sxm", L8B, 8, 32768, 8,
     "d=8,t=1,p=1,b=1,recompute=full,reshard=1", 84.2, "reserved", None, TABLES + "2"),
    ("Llama 3.1 8B, c8 of 262144", "torchtitan", "h100-sxm", L8B, 8, 32768, 8,
     "d=8,t=1,p=1,b=1,recompute=full,reshard=1", 84.5, "reserved", None, TABLES + "2"),
    ("Llama 3.1 70B, async TP", "torchtitan", "h100-sxm", L70B, 256, 8192, 512,
     "d=32,t=8,p=1,b=16,recompute=full,reshard=1", 67.6, "reserved", None, TABLES + "4"),
    ("Llama 3 70B", "torchtitan", "a100-sxm", L70B, 64, 8192, 64, "d=64,t=1,p=1,b=1,recompute=full,reshard=1",
     None, None, 331, HISTORY),
    ("Llama 2 13B", "torchtitan", "a100-sxm", LLAMA2_13B, 64, 4096, 128, "d=64,t=1,p=1,b=2,recompute=none,reshard=1",
     None, None, 2162, HISTORY),
    ("Llama 2 70B", "torchtitan", "a100-sxm", LLAMA2_70B, 64, 4096, 128, "d=64,t=1,p=1,b=2,recompute=full,reshard=1",
     None, None, 353, HISTORY),
]


def predicted(copus, folder, program, cluster, model, gpus, sequence, batch, layout):
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps(model))
    arguments = [copus, "plan", "--model", path, "--cluster", cluster, "--gpus", gpus, "--sequence-length", sequence,
                 "--global-batch", batch, "--system", program, "--explain", layout, "--json"]
    result = subprocess.run([str(word) for word in arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None, result.stderr.strip()
    explanation = json.loads(result.stdout)["explanations"][0]
    return explanation["configuration"], f"{explanation['verdict']}: {explanation['text']}"


def main():
    print("| run | program, cluster | GiB | predicted | off by | of the memory | tokens/s/GPU | predicted | ratio "
          "| source |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, program, cluster, model, gpus, sequence, batch, layout, memory, kind, speed, source in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            planned, text = predicted(sys.argv[1], folder, program, cluster, model, gpus, sequence, batch, layout)
        if planned is None:
            print(f"{name}: {text}", file=sys.stderr)
            continue
        total = planned["memory_bytes"]["total"] / 2**30 - 1
        if name.startswith("GPT"):  # dropout's masks
            under_way = planned["memory_bytes"]["activations"]
            width = model["hidden_size"]
            head = width // model["num_attention_heads"]
            t = planned["tensor_parallel"]
            kept = 4 * width + (3 * width + 3 * model["num_key_value_heads"] * head
                                + 3 * model["intermediate_size"]) / t
            total += under_way * width / kept / 2**30
        cells = [name, f"{program}, {cluster}"]
        cells += [f"{memory:.1f} {kind}", f"{total:.1f} on pipeline rank {planned['memory_bytes']['pipeline_rank']}",
                  f"{100 * (total / memory - 1):+.1f} %", text.split(':')[0]] if memory else ["", "", "", ""]
        fast = planned["tokens_per_second_per_gpu"]
        cells += [f"{speed:,.0f}", f"{fast:,.0f}", f"{fast / speed:.2f}"] if speed else ["", "", ""]
        print("| " + " | ".join([*cells, source]) + " |", flush=True)


if __name__ == "__main__":
    main()
