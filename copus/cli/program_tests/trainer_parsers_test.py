"""Tests that the parsers of other trainers read what `copus plan` prints for them, at the versions for which it is
written.

Usage: trainer_parsers_test.py PATH_TO_COPUS [unittest options]. A trainer's test is skipped if its sources or the
packages that its parser needs are missing:

    COPUS_MEGATRON_LM      folder of Megatron-LM at d98e8a64
    COPUS_NANOTRON         folder of nanotron at 2411b022
    COPUS_TORCHTITAN_0_2   folder that holds the package torchtitan 0.2.2 (a wheel, unpacked)
    COPUS_TORCHTITAN_0_3   folder that holds the package torchtitan 0.3.0
    COPUS_TRAINERS_PYTHON  a Python with torch, torchdata, tyro, tomli, dacite, yaml and datasets; by default that of
                           this test

Packages that are only needed for computing on GPUs are stubbed, because nothing is trained.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from program_test_support import ProgramTest

STUBS = pathlib.Path(__file__).resolve().parent.parent.parent.parent / "bench" / "trainers"

# The beginning of each trainer's script.
STUBBED_IMPORT = f'''
import json, os, shlex, sys
from unittest import mock
import torch
sys.path.insert(0, {str(STUBS)!r})
import stubs

NEEDED = ("torch", "torchdata", "tyro", "tomli", "dacite", "yaml", "numpy", "datasets")

def stubbed_import(folder, name):
    try:
        return stubs.stubbed_import(folder, name, needed=NEEDED)
    except ModuleNotFoundError as error:
        root = error.name.split(".")[0]
        if root not in NEEDED:
            raise
        print("MISSING " + root)
        sys.exit(0)

texts = json.load(sys.stdin)
parsed = []
'''

MEGATRON = STUBBED_IMPORT + '''
arguments = stubbed_import(sys.argv[1], "megatron.training.arguments")
arguments._print_args = lambda *unused: None
for text in texts:
    words = shlex.split(text.replace("\\\\\\n", " "))
    environment = {}
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        environment[name] = value
    script = words.index("pretrain_gpt.py")
    launcher = dict(zip(words[1:script:2], words[2:script:2]))
    ranks = int(launcher.get("--nnodes", 1)) * int(launcher["--nproc-per-node"])
    environment.update(WORLD_SIZE=str(ranks), RANK="0")
    sys.argv = words[script:]
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    with mock.patch.dict(os.environ, environment), \\
            mock.patch.object(arguments, "get_device_arch_version", lambda: 9), \\
            mock.patch("torch.cuda.get_device_capability", lambda *unused: (9, 0)):
        args = arguments.parse_args()
        arguments.validate_args(args)
    parsed.append({"ranks": ranks, "d": args.data_parallel_size, "t": args.tensor_model_parallel_size,
                   "p": args.pipeline_model_parallel_size, "v": args.virtual_pipeline_model_parallel_size or 1,
                   "b": args.micro_batch_size, "B": args.global_batch_size, "layers": args.num_layers,
                   "kv": args.num_query_groups if args.group_query_attention else args.num_attention_heads,
                   "tied": not args.untie_embeddings_and_output_weights, "bias": args.add_qkv_bias,
                   "dropout": args.hidden_dropout + args.attention_dropout, "swiglu": args.swiglu,
                   "normed_heads": args.qk_layernorm, "no_rope": args.no_rope_freq})
print("PARSED " + json.dumps(parsed))
'''

NANOTRON = STUBBED_IMPORT + '''
config = stubbed_import(os.path.join(sys.argv[1], "src"), "nanotron.config")
import yaml
for text in texts:
    fields = yaml.safe_load(text)
    with mock.patch("torch.cuda.is_available", lambda: True):
        read = config.get_config_from_dict(fields, config_class=config.Config)
    model, parallel, tokens = read.model.model_config, read.parallelism, read.tokens
    parsed.append({"ranks": parallel.dp * parallel.tp * parallel.pp, "d": parallel.dp, "t": parallel.tp,
                   "p": parallel.pp, "v": 1, "b": tokens.micro_batch_size,
                   "B": tokens.micro_batch_size * tokens.batch_accumulation_per_replica * parallel.dp,
                   "layers": model.num_hidden_layers, "kv": model.num_key_value_heads,
                   "tied": model.tie_word_embeddings, "bias": model.attention_bias, "dropout": 0, "swiglu": True})
print("PARSED " + json.dumps(parsed))
'''

TORCHTITAN_0_2 = STUBBED_IMPORT + '''
manager = stubbed_import(sys.argv[1], "torchtitan.config.manager")
import tempfile
args = stubbed_import(sys.argv[1], "torchtitan.models.llama3.model.args")
for text in texts:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        read = manager.ConfigManager().parse_args(["--job.config_file", file.name])
    parallel, training = read.parallelism, read.training
    shards, copies = parallel.data_parallel_shard_degree, parallel.data_parallel_replicate_degree
    p = parallel.pipeline_parallel_degree
    known = {}
    for line in text.splitlines():
        if line.startswith("# llama3_args"):
            exec(line[2:], {**vars(args), "llama3_args": known})
    parsed.append({"ranks": shards * copies * parallel.tensor_parallel_degree * p, "d": shards * copies,
                   "t": parallel.tensor_parallel_degree, "p": p,
                   "b": parallel.pipeline_parallel_microbatch_size if p > 1 else training.local_batch_size,
                   "B": training.global_batch_size, "flavor": read.model.flavor, "compiled": read.compile.enable,
                   "planned": [[of.n_layers, of.vocab_size, of.rope_scaling_args.scaling_factor]
                               for of in known.values()]})
print("PARSED " + json.dumps(parsed))
'''

# Attributes must exist before they are set, because a dataclass would accept a new one.
TORCHTITAN_0_3 = STUBBED_IMPORT + '''
registry = stubbed_import(sys.argv[1], "torchtitan.models.llama3.config_registry")
for text in texts:
    config = registry.llama3_8b()
    for line in text.splitlines():
        if not line.startswith("    config."):
            continue
        owner = config
        *path, last = line.strip().split(" = ")[0].split(".")[1:]
        for name in path:
            owner = getattr(owner, name)
        getattr(owner, last)
    names = dict(vars(registry))
    exec(text, names)
    config = names["planned"]()
    parallel, training = config.parallelism, config.training
    shards, copies = parallel.data_parallel_shard_degree, parallel.data_parallel_replicate_degree
    p = parallel.pipeline_parallel_degree
    parsed.append({"ranks": shards * copies * parallel.tensor_parallel_degree * p, "d": shards * copies,
                   "t": parallel.tensor_parallel_degree, "p": p,
                   "b": parallel.pipeline_parallel_microbatch_size if p > 1 else training.local_batch_size,
                   "B": training.global_batch_size, "layers": len(config.model_spec.model.layers),
                   "vocabulary": [config.model_spec.model.vocab_size, config.loss.loss_fn.global_vocab_size],
                   "tied": config.model_spec.model.enable_weight_tying,
                   "compiled": config.compile.enable})
print("PARSED " + json.dumps(parsed))
'''


class TrainerParsersTest(ProgramTest):
    def layouts(self, system, model, gpus, global_batch, *options):
        arguments = ["plan", "--model", model, "--cluster", "h100-sxm", "--gpus", str(gpus), "--global-batch",
                     str(global_batch), "--system", system, "--top", "40", "--json", *options]
        return json.loads(self.assert_done(*arguments).stdout)["batches"][0]["layouts"]

    def parsed(self, probe, variable, layouts):
        folder = os.environ.get(variable)
        if not folder or not pathlib.Path(folder).is_dir():
            self.skipTest(f"{variable} names no folder with this trainer")
        python = os.environ.get("COPUS_TRAINERS_PYTHON", sys.executable)
        result = subprocess.run([python, "-c", probe, folder], capture_output=True, text=True, timeout=1200,
                                input=json.dumps([layout["flags"][0]["text"] for layout in layouts]))
        lines = result.stdout.splitlines()
        missing = [line for line in lines if line.startswith("MISSING ")]
        if missing or "No module named 'torch'" in result.stderr:
            self.skipTest(f"{python} has no {missing[0][8:] if missing else 'torch'}")
        found = [line for line in lines if line.startswith("PARSED ")]
        self.assertEqual((result.returncode, len(found)), (0, 1), result.stderr[-3000:])
        return json.loads(found[0][7:])

    def assert_same(self, layout, read, gpus):
        expected = {"ranks": gpus, "d": layout["data_parallel"], "t": layout["tensor_parallel"],
                    "p": layout["pipeline_parallel"], "b": layout["micro_batch"], "B": layout["global_batch"]}
        self.assertEqual({name: read[name] for name in expected}, expected)

    def compare(self, system, probe, variable, cases):
        layouts, expected = [], []
        for model, gpus, batch, facts, *options in cases:
            of_case = self.layouts(system, model, gpus, batch, *options)
            self.assertGreater(len(of_case), 0)
            layouts += of_case
            expected += [(gpus, facts)] * len(of_case)
        for layout, (gpus, facts), read in zip(layouts, expected, self.parsed(probe, variable, layouts), strict=True):
            with self.subTest(layout=layout["flags"][0]["text"]):
                self.assert_same(layout, read, gpus)
                self.assertEqual({name: read[name] for name in facts}, facts)
                if "v" in read:
                    self.assertEqual(read["v"], layout["virtual_stages"])

    def test_megatron(self):
        plain = {"dropout": 0, "swiglu": True, "bias": False, "tied": False, "normed_heads": False, "no_rope": None}
        self.compare("megatron", MEGATRON, "COPUS_MEGATRON_LM", [
            ("llama-2-13b", 16, 256, plain | {"layers": 40, "kv": 40}),
            ("llama-3.1-8b", 64, 128, plain | {"layers": 32, "kv": 8}, "--sequence-length", "8192"),
            ("llama-3.1-405b", 1024, 512, plain | {"layers": 126, "kv": 8}, "--sequence-length", "8192"),
            ("qwen2.5-1.5b", 8, 64, plain | {"layers": 28, "kv": 2, "bias": True, "tied": True}),
            ("mistral-7b-v0.3", 16, 48, plain | {"layers": 32, "kv": 8}),
            ("llama-3.2-1b", 8, 64, plain | {"layers": 16, "kv": 8, "tied": True}, "--recompute", "full"),
            ("qwen3-0.6b", 8, 64, plain | {"layers": 28, "kv": 8, "tied": True, "normed_heads": True}),
            ("smollm3-3b", 8, 64, plain | {"layers": 36, "kv": 4, "tied": True, "no_rope": 4}),
        ])

    def test_nanotron(self):
        self.compare("nanotron", NANOTRON, "COPUS_NANOTRON", [
            ("llama-2-13b", 16, 256, {"layers": 40, "kv": 40, "tied": False, "bias": False}),
            ("llama-3.2-1b", 8, 64, {"layers": 16, "kv": 8, "tied": True, "bias": False}),
            ("qwen2.5-1.5b", 8, 64, {"layers": 28, "kv": 2, "tied": True, "bias": True}),
            ("mistral-7b-v0.3", 8, 64, {"layers": 32, "kv": 8, "tied": False, "bias": False}),
        ])

    def test_torchtitan_0_2(self):
        self.compare("torchtitan", TORCHTITAN_0_2, "COPUS_TORCHTITAN_0_2", [
            ("llama-3.1-8b", 16, 128, {"flavor": "8B", "compiled": True, "planned": []}),
            ("llama-3.1-70b", 256, 512, {"flavor": "70B", "compiled": True, "planned": []}),
            ("llama-2-13b", 16, 64, {"flavor": "planned", "compiled": True, "planned": [[40, 32000, 1]]}),
        ])

    def test_torchtitan_0_3(self):
        self.compare("torchtitan-0.3", TORCHTITAN_0_3, "COPUS_TORCHTITAN_0_3", [
            ("llama-3.1-8b", 16, 128, {"layers": 32, "compiled": True, "vocabulary": [128256, 128256]}),
            ("llama-3.1-70b", 256, 512, {"layers": 80, "compiled": True, "vocabulary": [128256, 128256]}),
            ("llama-3.2-1b", 8, 64, {"layers": 16, "tied": True, "vocabulary": [128256, 128256]}),
            ("llama-2-13b", 16, 64, {"layers": 40, "tied": False, "vocabulary": [32000, 32000]}),
        ])


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2, exit=False).result
    nothing_ran = result.wasSuccessful() and len(result.skipped) == result.testsRun
    sys.exit(77 if nothing_ran else not result.wasSuccessful())
