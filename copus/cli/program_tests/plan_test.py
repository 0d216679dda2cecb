"""Tests `copus plan` as a process: its tables, JSON and plots, and its messages about mistakes.

Usage: plan_test.py PATH_TO_COPUS [unittest options].
"""

import json
import pathlib
import shlex
import sys
import tomllib
import unittest
import xml.etree.ElementTree

from program_test_support import COPUS, WITH_TORCH, ProgramTest

WORKLOAD = ["--model", "llama-3.2-3b", "--cluster", "h100-sxm", "--gpus", "8"]
LARGER = ["--model", "llama-3.1-8b", *WORKLOAD[2:]]  # torchtitan 0.2 has no tied embeddings
CLUSTER = """
ranks_per_node = 8
within_node = {{ latency_microseconds = 1, gigabytes_per_second = 300 }}
between_nodes = {{ latency_microseconds = 4, gigabytes_per_second = 50 }}
[device]
{device}
"""
DEVICE = "memory_gigabytes = 80\nmemory_gigabytes_per_second = 2500\nmatmul_teraflops = 400\n"


class PlanTest(ProgramTest):
    def planned(self, *arguments):
        result = self.assert_done("plan", *arguments)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refused(self, *arguments, says):
        self.assertEqual(self.assert_refused("plan", *arguments, says=says).stdout, "")

    def test_one_batch(self):
        text = self.planned(*WORKLOAD, "--global-batch", "64", "--top", "3")
        self.assertIn("llama-3.2-3b on 8 x H100 SXM 80GB, sequences of 2048, bf16", text)
        self.assertIn("Global batch 64: 3 of ", text)

    def test_a_sweep_and_its_plots(self):
        for name in ["plot.svg", "plot.html"]:
            text = self.planned(*WORKLOAD, "--global-batch", "16..128", "--plot", name)
            self.assertIn("The fastest layout by global batch", text)
            self.assertIn(f"Wrote {name}", text)
        self.assertTrue(xml.etree.ElementTree.parse(self.folder / "plot.svg").getroot().tag.endswith("svg"))
        self.assertIn("<script>", (self.folder / "plot.html").read_text())

    def test_json(self):
        plan = json.loads(self.planned(*WORKLOAD, "--global-batch", "16,64", "--top", "2", "--json", "--explain", "d=8"))
        self.assertEqual([batch["global_batch"] for batch in plan["batches"]], [16, 64])
        self.assertEqual([explanation["global_batch"] for explanation in plan["explanations"]], [16, 64])
        for batch in plan["batches"]:
            seconds = [layout["step_seconds"] for layout in batch["layouts"]]
            self.assertEqual(seconds, sorted(seconds))
            for layout in batch["layouts"]:
                self.assertEqual(layout["data_parallel"] * layout["tensor_parallel"] * layout["pipeline_parallel"], 8)
                self.assertAlmostEqual(sum(layout["seconds"].values()), layout["step_seconds"])
                tokens = layout["step_seconds"] * 8 * layout["tokens_per_second_per_gpu"]
                self.assertAlmostEqual(tokens / (batch["global_batch"] * 2048), 1)
                mfu = plan["training_flops_per_token"] * layout["tokens_per_second_per_gpu"] / 989.4e12
                self.assertAlmostEqual(layout["mfu"], mfu)
                memory = layout["memory_bytes"]
                parts = sum(memory[part] for part in memory if part not in ("total", "pipeline_rank"))
                self.assertAlmostEqual(parts / memory["total"], 1)
                self.assertLessEqual(memory["total"], plan["device_memory_bytes"])

    def test_repeats_itself(self):
        self.assertEqual(self.planned(*WORKLOAD, "--json"), self.planned(*WORKLOAD, "--json"))

    def test_a_precision_has_many_names(self):
        for names in (("bf16", "bfloat16", "BF16"), ("fp32", "float32", "F32", "f32")):
            plans = {self.planned(*WORKLOAD, "--global-batch", "64", "--precision", name) for name in names}
            self.assertEqual(len(plans), 1)
            self.assertIn(f", {names[0]}\n", plans.pop())

    def test_explain(self):
        text = self.planned(*WORKLOAD, "--global-batch", "64", "--explain", "d=1,t=1,p=8")
        self.assertIn("d=1,t=1,p=8,B=64,", text)
        self.assertIn("GPUs (d x t x p), and the plan is for 8", self.planned(*WORKLOAD, "--explain", "d=3"))

    def test_the_models_and_clusters_that_it_knows(self):
        models = json.loads(self.assert_done("models", "--json").stdout)
        clusters = json.loads(self.assert_done("clusters", "--json").stdout)
        configs = pathlib.Path(__file__).resolve().parents[3] / "configs"
        self.assertEqual([model["name"] for model in models], sorted(p.stem for p in configs.glob("models/*.json")))
        self.assertEqual([one["name"] for one in clusters], sorted(p.stem for p in configs.glob("clusters/*.toml")))
        llama = next(model for model in models if model["name"] == "llama-3.1-8b")
        self.assertEqual((llama["parameters"], llama["num_hidden_layers"], llama["vocab_size"]),
                         (8030261248, 32, 128256))
        h100 = next(cluster for cluster in clusters if cluster["name"] == "h100-sxm")
        self.assertEqual((h100["gpus"], h100["gpus_per_node"], h100["peak_flops_per_second"]), (None, 8, 989.4e12))
        self.assertEqual(h100["between_nodes"]["bytes_per_second"], 50e9)
        self.assertRegex(self.assert_done("models").stdout, r"llama-3.1-8b +8.0 B +32 +4096 +32 +8 +128256 +131072")
        self.assertRegex(self.assert_done("clusters").stdout,
                         r"h100-sxm +any +8 +84.9 +989.4 +794.5 +367.2 +50 +8 +512 +H100 SXM 80GB")

    def test_a_cluster_of_ones_own_without_a_peak(self):
        self.write("lab.toml", CLUSTER.format(device=DEVICE))
        text = self.planned("--model", "llama-3.2-3b", "--cluster", "lab.toml", "--gpus", "8", "--global-batch", "64")
        self.assertIn("llama-3.2-3b on 8 x lab", text)
        self.assertIn("n/a", text)

    def test_mistakes_in_files(self):
        model = ["--model", "llama-3.2-3b", "--gpus", "8"]
        self.refused(*model, "--cluster", "h100", says=["no such file", "h100-sxm"])
        self.refused("--model", "llama", "--cluster", "h100-sxm", says=["no such file", "llama-2-13b"])
        self.write("lab.toml", CLUSTER.format(device=DEVICE + "peek_teraflops = 100\n"))
        self.refused(*model, "--cluster", "lab.toml", says=["lab.toml:9", 'did you mean "peak_teraflops"?'])
        self.write("lab.toml", CLUSTER.format(device='name = "fast"'))
        self.refused(*model, "--cluster", "lab.toml", says=["matmul_teraflops"])
        self.write("model.json", '{"model_type": "gpt2"}')
        self.refused("--model", "model.json", "--cluster", "h100-sxm", "--gpus", "8", says=["model.json"])
        self.write("profile.json", '{"version": 1, ')
        self.refused(*WORKLOAD, "--profile", "profile.json", says=["profile.json"])
        self.refused(*WORKLOAD, "--profile", "nowhere.json", says=["nowhere.json"])

    def test_mistakes_in_options(self):
        self.refused(*WORKLOAD[:4], says=["--gpus is missing"])
        self.refused(*WORKLOAD[:4], "--gpus", "0", says=["at least 1"])
        self.refused(*WORKLOAD, "--global-batch", "many", says=["--global-batch many"])
        self.refused(*WORKLOAD, "--sequence-length", "1000000", says=["max_position_embeddings"])
        self.refused(*WORKLOAD, "--precision", "fp8", says=["fp8"])
        self.refused(*WORKLOAD, "--schedule", "2f2b", says=["2f2b"])
        self.refused(*WORKLOAD, "--plot", "plot.png", says=[".svg or .html"])
        self.refused(*WORKLOAD, "--plot", "no/such/folder/plot.svg", says=["--plot", "plot.svg", "expected"])
        self.refused(*WORKLOAD, "--explain", "x=1", says=["--explain", '"x=1"', 'no "x"'])
        self.refused(*WORKLOAD, "--seq", "2048", says=["there is no option --seq; its options are --model"])

    def test_explain_keeps_to_the_options(self):
        arguments = [*WORKLOAD, "--global-batch", "64", "--recompute", "full", "--explain"]
        self.assertIn("It is the fastest of the plan.", self.planned(*arguments, "d=8"))
        self.assertIn("% faster.", self.planned(*arguments, "d=8,recompute=none"))

    def test_zero_and_sequence_parallelism_narrow_the_choice(self):
        layouts = ["--model", "llama-2-13b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "64", "--json"]
        for stages, shared in (("0,1", "0"), ("2", "1"), ("3", "0,1")):
            with self.subTest(zero=stages, sp=shared):
                plan = json.loads(self.planned(*layouts, "--zero", stages, "--sp", shared))
                for layout in plan["batches"][0]["layouts"]:
                    if layout["data_parallel"] > 1:
                        self.assertIn(str(layout["zero_stage"]), stages)
                    if layout["tensor_parallel"] > 1:
                        self.assertIn(str(int(layout["sequence_parallel"])), shared)
        self.refused(*WORKLOAD, "--zero", "4", says=["--zero", "4"])
        self.refused(*WORKLOAD, "--sp", "2", says=["--sp", "2"])
        self.refused("--model", "llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "32", "--global-batch", "32",
                     "--micro-batch", "1", "--zero", "0", "--schedule", "gpipe", "--recompute", "none", "--sp", "0",
                     says=["leave out --schedule and --recompute and --micro-batch and --zero and --sp"])

    def test_other_programs_get_their_flags(self):
        arguments = [*WORKLOAD, "--global-batch", "64"]
        expected = {"copus": "[parallel]\n", "megatron": "--tensor-model-parallel-size ",
                    "nanotron": "parallelism:\n"}
        for system, flags in expected.items():
            with self.subTest(system=system):
                text = self.planned(*arguments, "--system", system)
                self.assertIn(flags, text)
                self.assertEqual("trained by" in text, system != "copus")
                plan = json.loads(self.planned(*arguments, "--system", system, "--json"))
                self.assertEqual(plan["system"], system)
                fastest = plan["batches"][0]["layouts"][0]
                for form in fastest["flags"]:
                    self.assertIn(form["text"], text)
        self.assertEqual(self.planned(*arguments), self.planned(*arguments, "--system", "copus"))
        self.assertNotIn("[parallel]", self.planned(*WORKLOAD, "--global-batch", "16,64"))

    def test_torchtitans_toml_holds_the_layout(self):
        plan = json.loads(self.planned(*LARGER, "--global-batch", "64", "--system", "torchtitan", "--json"))
        for layout in plan["batches"][0]["layouts"]:
            settings = tomllib.loads(layout["flags"][0]["text"])
            degrees, training = settings["parallelism"], settings["training"]
            self.assertEqual(degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"],
                             layout["data_parallel"])
            self.assertEqual(degrees["tensor_parallel_degree"], layout["tensor_parallel"])
            self.assertEqual(degrees["pipeline_parallel_degree"], layout["pipeline_parallel"])
            rank_batch = training["local_batch_size"] * (
                1 if layout["pipeline_parallel"] > 1 else layout["num_microbatches"])
            self.assertEqual(rank_batch * layout["data_parallel"], training["global_batch_size"])
            self.assertEqual((training["global_batch_size"], training["seq_len"]), (64, 2048))

    def test_a_layout_that_is_asked_about_comes_with_its_flags(self):
        arguments = [*WORKLOAD, "--global-batch", "64", "--system", "megatron", "--explain"]
        self.assertIn("--pipeline-model-parallel-size 2", self.planned(*arguments, "d=4,p=2"))
        text = self.planned(*arguments, "d=8,zero=3")
        self.assertIn("Megatron-LM", text)
        self.assertIn("zero 3", text)
        self.assertNotIn("--micro-batch-size", text)

    def test_how_long_training_takes(self):
        sweep = self.planned(*WORKLOAD, "--global-batch", "64,128", "--tokens", "300B")
        self.assertIn("Training on 300 B tokens", sweep)
        self.assertIn("+-: one standard deviation, assumed", sweep)
        plan = json.loads(self.planned(*WORKLOAD, "--global-batch", "64", "--tokens", "15e12", "--json"))
        for layout in plan["batches"][0]["layouts"]:
            seconds = plan["tokens"] / (layout["tokens_per_second_per_gpu"] * 8)
            self.assertAlmostEqual(layout["days"] * 86400 / seconds, 1, places=6)
            self.assertAlmostEqual(layout["gpu_hours"], layout["days"] * 24 * 8)
        self.refused(*WORKLOAD, "--tokens", "many", says=["--tokens many", "300B"])

    def test_a_run_that_is_written_can_be_trained(self):
        arguments = ["--model", "tiny-llama", "--cluster", "cpu-2-cores", "--gpus", "2", "--precision", "fp32",
                     "--sequence-length", "32"]
        batch = ["--global-batch", "4", "--tokens", "1024"]
        text = self.planned(*arguments, *batch, "--write", "planned.toml")
        self.assertIn("Wrote planned.toml", text)
        settings = tomllib.loads((self.folder / "planned.toml").read_text())
        plan = json.loads(self.planned(*arguments, *batch, "--json"))
        fastest = plan["batches"][0]["layouts"][0]
        self.assertEqual(settings["train"]["micro_batch"], fastest["micro_batch"])
        self.assertEqual(settings["parallel"]["data_parallel"], fastest["data_parallel"])
        if WITH_TORCH:
            self.assert_refused("train", "planned.toml", "--run-dir", "r", says=["PUT-THE-PATH-OF-YOUR-DATA-HERE"])
            self.assert_done("train", "planned.toml", "--run-dir", "trained", "--set", "data.train=corpus.txt")
            self.assertEqual(len(self.losses("trained")), 8)

        self.refused(*arguments, *batch, "--write", "planned.toml", says=["there is such a file"])
        self.refused(*arguments, "--global-batch", "4", "--write", "a.toml", says=["--tokens 300B"])
        self.refused(*arguments, "--global-batch", "4,8", "--tokens", "1M", "--write", "a.toml",
                     says=["one batch", "--global-batch 4"])
        self.refused(*WORKLOAD, "--global-batch", "64", "--tokens", "1M", "--system", "megatron", "--write", "a.toml",
                     says=["only a run of Copus", "Megatron-LM"])
        self.refused(*arguments, *batch, "--write", "no/such/a.toml", says=["--write", "a.toml", "expected"])
        self.assertFalse((self.folder / "a.toml").exists())

    def test_the_commands_that_start_a_written_run_can_be_pasted(self):
        name = "it's my $HOME; run.toml"
        text = self.planned("--model", "tiny-llama", "--cluster", "cpu-2-cores", "--gpus", "2", "--sequence-length", "32",
                            "--global-batch", "4", "--tokens", "1024", "--write", name)
        # The file may be copied to another machine, where the program has another path.
        file = (self.folder / name).read_text()
        for printed, program, others in ((text, COPUS, []), (file, "copus", ["--set", "data.train=DATA"])):
            command = printed.split("start it by")[1].split("`")[1]
            self.assertEqual(shlex.split(command), [program, "train", name, *others])

    def test_what_other_programs_cannot(self):
        self.refused(*WORKLOAD, "--system", "megatrom", says=["--system megatrom", 'did you mean "megatron"?'])
        self.refused(*WORKLOAD, "--system", "olmo", says=["copus, megatron, nanotron, torchtitan"])
        for model, system, lacks in (("qwen2.5-3b", "torchtitan", "torchtitan 0.2 has no Qwen2"),
                                     ("mistral-7b-v0.3", "torchtitan-0.3", "torchtitan 0.3 has no Mistral"),
                                     ("llama-3.2-3b", "torchtitan", "tied embeddings")):
            self.refused("--model", model, *WORKLOAD[2:], "--system", system, says=[f"--model {model}", lacks])
        self.refused(*WORKLOAD, "--system", "megatron", "--zero", "0,3", says=["--zero 3: Megatron-LM", "with 0, 1"])
        self.refused(*WORKLOAD, "--system", "nanotron", "--schedule", "zb-h1", says=["--schedule zb-h1", "gpipe, 1f1b"])
        self.refused(*WORKLOAD, "--system", "torchtitan", "--sp", "0", says=["--sp 0: torchtitan"])
        self.refused(*WORKLOAD, "--system", "megatron", "--precision", "fp32", says=["--precision fp32", "bf16"])
        self.refused(*WORKLOAD, "--system", "megatron", "--profile", "profile.json",
                     says=["--profile", "Copus measured"])
        self.refused(*LARGER, "--system", "torchtitan", "--global-batch", "1",
                     says=["no layout of 8 GPUs", "torchtitan needs d of at least 2"])

    def test_a_model_in_a_folder_has_its_name(self):
        (self.folder / "mine").mkdir()
        self.refused("--model", "mine", "--cluster", "h100-sxm", "--gpus", "8", says=["--model", "mine/config.json"])
        shipped = pathlib.Path(__file__).resolve().parents[3] / "configs/models/llama-3.2-3b.json"
        self.write("mine/config.json", shipped.read_text())
        text = self.planned("--model", "mine/", "--cluster", "h100-sxm", "--gpus", "8", "--global-batch", "64")
        self.assertIn("mine on 8 x H100", text)

    def test_nothing_fits(self):
        arguments = ["--model", "llama-3.1-70b", "--cluster", "h100-sxm", "--global-batch", "16"]
        self.refused(*arguments, "--gpus", "2",
                            says=["no configuration of llama-3.1-70b fits on 2 x H100", "GiB", "GPUs instead of 2"])
        self.refused(*arguments, "--gpus", "97", says=["no layout of 97 GPUs", "take 96 or 98"])
        self.refused("--model", "llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "64", "--global-batch", "64",
                     "--sequence-length", "131072", "--recompute", "none", "--sp", "0",
                     says=["one sequence of 131072 tokens", "context parallelism", "--sequence-length"])

    def test_megatron_plans_405b_as_nvidia_runs_it(self):
        plan = json.loads(self.planned("--model", "llama-3.1-405b", "--cluster", "h100-sxm", "--gpus", "1024",
                                       "--sequence-length", "8192", "--global-batch", "512", "--system", "megatron",
                                       "--json", "--explain", "d=16,t=8,p=8,v=8"))
        self.assertEqual(plan["explanations"][0]["verdict"], "fits")
        text = plan["explanations"][0]["configuration"]["flags"][0]["text"]
        for flag in ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
                     "--num-layers-per-virtual-pipeline-stage 2", "CUDA_DEVICE_MAX_CONNECTIONS=1"):
            self.assertIn(flag, text)

    def test_impossible_devices_are_refused(self):
        for old, new, says in (("= 400\n", "= 400000\n", "matmul_teraflops = 400000 is impossible"),
                               ("= 400\n", "= 400\npeak_teraflops = 300\n", "at most peak_teraflops"),
                               ("second = 2500\n", "second = 2500000\n", "memory_gigabytes_per_second"),
                               ("= 400\n", "= 0.4\npeak_teraflops = 1000\n", "at least 20 beside peak_teraflops"),
                               ("second = 2500\n", "second = 2.5\n", "at least 40 beside matmul_teraflops"),
                               ("gigabytes = 80\n", "gigabytes = 0.08\n", "at least 2 beside matmul_teraflops")):
            self.write("absurd.toml", CLUSTER.format(device=DEVICE.replace(old, new)))
            self.refused(*WORKLOAD[:2], "--cluster", "absurd.toml", "--gpus", "8", says=[says, "look at its unit"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
