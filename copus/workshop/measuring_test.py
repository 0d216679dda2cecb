"""Tests the measuring commands of `copus` as processes: their rows and fields, and their messages about mistakes.

Usage: measuring_test.py PATH_TO_COPUS [unittest options]. A build without libtorch (environment COPUS_WITH_TORCH=0) is
tested for what it says about that, one without MPI (COPUS_WITH_MPI=0) for measuring only its own communication.
"""

import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock

from program_test_support import TIMEOUT, WITH_TORCH, ProgramTest, run_with_terminal

WITH_MPI = os.environ.get("COPUS_WITH_MPI", "1") == "1"


@unittest.mock.patch.dict(os.environ, ASAN_OPTIONS="detect_leaks=0")  # ignores leaks of the MPI library
class BenchComm(ProgramTest):
    def test_rows(self):
        result = self.assert_done("bench", "comm", "--json", "--ranks", "2", "3", "--largest", "4096", "--rounds", "1")
        rows = json.loads(result.stdout)["rows"]
        sizes = [4 ** power for power in range(1, 7)]
        self.assertEqual([(row["operation"], row["ranks"], row["bytes"]) for row in rows],
                         [(operation, ranks, size) for ranks in (2, 3)
                          for operation in ("all_reduce", "reduce_scatter", "all_gather")
                          for size in sizes if operation == "all_reduce" or size >= 4 * ranks])
        for row in rows:
            self.assertGreater(row["seconds"], 0)
            if WITH_MPI:
                self.assertAlmostEqual(row["ratio"] * row["seconds"] / row["mpi_seconds"], 1)
            else:
                self.assertEqual((row["mpi_seconds"], row["ratio"]), (None, None))
        says = ["no MPI library", "apt-get install libopenmpi-dev"]
        self.assertEqual([words in result.stderr for words in says], [not WITH_MPI] * len(says), result.stderr)

    def test_table(self):
        result = self.assert_done("bench", "comm", "--ranks", "2", "--largest", "64", "--rounds", "2")
        self.assertRegex(result.stdout, r"(?m)^all_gather +2 +64 B ")

    def test_mistakes(self):
        self.assert_refused("bench", "comm", "--ranks", "1", says=["--ranks"])
        self.assert_refused("bench", "comm", "--largest", "6", says=["--largest", "multiple of the 4 bytes"])
        for rounds in ("0", "-1", "1.5", "many"):
            self.assert_refused("bench", "comm", "--rounds", rounds, says=["--rounds", "at least 1", rounds])


class RunRanks(ProgramTest):
    """How commands that start ranks end if the ranks fail."""

    def test_is_for_ranks_alone(self):
        self.assert_refused("run-rank", "collectives", "request", "result", says=["run-rank", "starts as its ranks"])
        self.assertNotIn("run-rank", self.assert_done("--help").stdout)

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_a_mistake_that_ranks_find_is_told_once(self):
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES=""):
            result = self.assert_refused("bench", "relayout", "--parameters", "tiny", "--from", "t=2", "--to", "p=2",
                                         "--device", "cuda", "--json", says=["cuda"])
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertEqual(result.stdout, "")

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_a_rank_that_dies_is_told_once(self):
        process = self.start("bench", "gns", "--shapes", "tiny", "--steps", "400000", "--json")
        os.kill(self.wait_for_ranks(process, 2)[1], signal.SIGKILL)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual((process.returncode, output), (1, ""), errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertRegex(errors, "^copus: error: rank 1 .*killed by signal 9")

    def wait_for_ranks(self, process, count):
        """Returns the process ids of the ranks that the process has started, in order."""
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            ranks = [int(pid) for pid in children.read_text().split()]
            if len(ranks) == count:
                return ranks
            time.sleep(0.01)
        self.fail("the ranks did not start")


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class BenchStep(ProgramTest):
    SHAPE = ("bench", "step", "--model", "tiny-llama", "--sequence-length", "8", "--micro-batch", "1",
             "--micro-batches", "2", "--threads", "1", "--precision", "F32")  # printed as fp32

    def test_serves_steps_and_reports_until_it_is_told_to_end(self):
        process = self.start(*self.SHAPE, "--serve", stdin=subprocess.PIPE)
        output, errors = process.communicate("run 1\nrelease\nreport 2\nrun 1\nquit\nrun 1\n", timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, errors)
        ready, first, released, report, last = (json.loads(line) for line in output.splitlines())
        self.assertEqual((ready, released), ({"ready": True}, {"released": True}))
        self.assertGreater(first["seconds_per_step"], 0)
        self.assertGreater(last["seconds_per_step"], 0)
        self.assertEqual(report["steps"], 2)
        self.assertAlmostEqual(report["tokens_per_second"] * report["seconds_per_step"] / 16, 1)
        self.assertGreater(report["peak_memory_bytes"], 16 * 1869504, "fp32 weights, gradients and moments")

    def test_one_rank_of_a_layout_computes_alone(self):
        whole, part = (json.loads(self.assert_done(*self.SHAPE, "--as", layout, "--steps", "2", "--json").stdout)
                       for layout in ("d=1,t=1,p=1", "d=2,t=2,p=1,zero=1"))
        self.assertEqual((part["as"], part["precision"], part["steps"]), ("d=2,t=2,p=1,zero=1", "fp32", 2))
        self.assertGreater(part["fastest_seconds"], 0)
        self.assertLess(part["peak_memory_bytes"], 0.7 * whole["peak_memory_bytes"])
        for layout, says in (("p=2", "p=1"), ("d=2,zero=3", "zero=0, 1 or 2"), ("t=64", "--as d=1,t=64,p=1: "), ("t=no", "--as")):
            self.assert_refused(*self.SHAPE, "--as", layout, says=[says])

    def test_mistakes(self):
        self.assert_refused(*self.SHAPE, "--layers", "2", says=["--layers", "--model"])
        self.assert_refused("bench", "step", "--model", "tiny-lama", says=["tiny-lama", "tiny-llama"])
        self.assert_refused("bench", "step", "--sequence", "128", says=["there is no option --sequence; its options are --model"])


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class BenchRelayout(ProgramTest):
    def test_json(self):
        result = self.assert_done("bench", "relayout", "--json", "--parameters", "tiny", "--from", "t=2", "--to",
                                  "p=2", "--rounds", "2", "--directory", str(self.folder))
        there, back = json.loads(result.stdout)["rows"]
        for row in (there, back):
            self.assertEqual((row["parameters"], row["ranks"], row["rounds"], row["device"]), ("tiny", 2, 2, "cpu"))
            self.assertGreater(row["bytes_moved"], row["bytes_received"])
            self.assertGreater(row["bytes_received"], 0)
            self.assertIn("moving the state", row["pause_by_phase"])
            self.assertAlmostEqual(sum(row["pause_by_phase"].values()) / row["pause_seconds"], 1, delta=0.9)
            self.assertAlmostEqual(row["bound_seconds"] * row["copy_bytes_per_second"] / row["bytes_moved"], 1)
            self.assertGreaterEqual(row["peak_bound_bytes"], row["peak_bytes"])
            self.assertGreater(row["peak_bytes"], 0)
        self.assertEqual((there["from"], there["to"]), ("d=1,t=2,p=1,B=8,b=1", "d=1,t=1,p=2,B=8,b=1"))
        self.assertEqual((back["from"], back["to"]), ("d=1,t=1,p=2,B=8,b=1", "d=1,t=2,p=1,B=8,b=1"))
        self.assertGreater(there["checkpoint_restart_seconds"], there["checkpoint_seconds"])
        self.assertAlmostEqual(
            there["checkpoint_restart_over_pause"] * there["pause_seconds"] / there["checkpoint_restart_seconds"], 1)
        self.assertIsNone(back["checkpoint_restart_seconds"])
        self.assertEqual([path for path in self.folder.iterdir() if "relayout" in path.name], [], "the checkpoint is gone")

    def test_mistakes(self):
        self.assert_refused("bench", "relayout", "--parameters", "7B", says=["--parameters", "7B"])
        self.assert_refused("bench", "relayout", "--from", "d=2", says=["--from and --to"])
        self.assert_refused("bench", "relayout", "--from", "2x1", "--to", "p=2",
                            says=["--from", '"2x1"', "d=2,t=1,p=2"])
        self.assert_refused("bench", "relayout", "--from", "d=2", "--to", "d=2,p=2",
                            says=["--from d=2,t=1,p=1,B=8,b=1 has 2 ranks", "4"])
        self.assert_refused("bench", "relayout", "--device", "tpu", says=["--device", "cuda"])


class BenchDecide(ProgramTest):
    def test_json(self):
        result = json.loads(self.assert_done("bench", "decide", "--json", "--rounds", "1").stdout)
        self.assertEqual(result["candidates"], 22570)
        for name in ("seconds_per_decision", "table_seconds", "large_table_seconds", "seconds_per_step"):
            self.assertGreater(result[name], 0)
        for table, gpus in (("table", 32), ("large_table", 16384)):
            self.assertEqual(result[table]["gpus"], gpus)
            self.assertGreater(result[table]["configurations"], 10000)
            self.assertLess(result[table]["too_large"], result[table]["configurations"])

    def test_text(self):
        result = self.assert_done("bench", "decide", "--rounds", "1")
        self.assertRegex(result.stdout, r"(?m)^llama-3.1-405b +16384 ")
        self.assertRegex(result.stdout, r"among 22570 candidates: [0-9.]+ ms")

    def test_mistakes(self):
        self.assert_refused("bench", "decide", "--rounds", "0", says=["--rounds", "at least 1"])


class BenchAgreement(ProgramTest):
    def test_json(self):
        result = json.loads(self.assert_done("bench", "agreement", "--json", "--ranks", "8", "512").stdout)
        self.assertEqual([row["ranks"] for row in result["rows"]], [8, 512])
        with_all, by_rounds = (result["rows"][1][way] for way in ("with_all", "by_rounds"))
        self.assertEqual(with_all["messages"], 2 * 512 * 511)
        self.assertEqual(with_all["most_peers"], 511)
        self.assertEqual(by_rounds["messages"], 2 * 9 * 512)
        self.assertEqual(by_rounds["most_peers"], 9)
        self.assertAlmostEqual(by_rounds["seconds"], 9 * result["seconds_by_doubling"])

    def test_text(self):
        result = self.assert_done("bench", "agreement")
        self.assertRegex(result.stdout, r"(?m)^by rounds +8192 +212992 ")
        self.assertRegex(result.stdout, r"twice the ranks take [0-9.]+ us more")

    def test_mistakes(self):
        self.assert_refused("bench", "agreement", "--ranks", "8", says=["--ranks"])
        self.assert_refused("bench", "agreement", "--ranks", "8", "0", says=["--ranks"])
        self.assert_refused("bench", "agreement", "--ranks", "8", "8", says=["--ranks", "different"])


class BenchRegret(ProgramTest):
    def test_json(self):
        arguments = ("bench", "regret", "--json", "--scenarios", "3", "--policy", "static", "copus")
        result, again = (json.loads(self.assert_done(*arguments).stdout) for _ in range(2))
        self.assertEqual((result["group"], result["scenarios"]), ("chosen", 3))
        self.assertEqual(result["rules"], again["rules"])
        self.assertEqual([rule["policy"] for rule in result["rules"]], ["static", "copus"])
        for rule in result["rules"]:
            self.assertEqual([outcome["scenario"] for outcome in rule["outcomes"]], [0, 2, 4])
            for families in ("by_worth", "by_growth", "by_job"):
                self.assertEqual(sum(family["scenarios"] for family in rule[families].values()), 3)
            for outcome in rule["outcomes"]:
                self.assertLessEqual(outcome["clairvoyant_slowdown"], 1e-9)
                self.assertLessEqual(outcome["clairvoyant_slowdown"], outcome["slowdown"] + 1e-9)
            gains = sum(-outcome["slowdown"] for outcome in rule["outcomes"])
            possible = sum(-outcome["clairvoyant_slowdown"] for outcome in rule["outcomes"])
            self.assertAlmostEqual(rule["captured"], gains / possible, places=6)
        static, copus = result["rules"]
        self.assertEqual((static["relayouts"], static["batch_changes"]), (0, 0))
        self.assertGreaterEqual(static["outcomes"][0]["slowdown"], -1e-9)
        self.assertGreater(copus["relayouts"] + copus["batch_changes"], 0)

    def test_held_back_group(self):
        result = json.loads(self.assert_done("bench", "regret", "--json", "--scenarios", "2", "--group", "held-back",
                                             "--policy", "static").stdout)
        self.assertEqual([outcome["scenario"] for outcome in result["rules"][0]["outcomes"]], [1, 3])

    def test_settings_reach_the_rule(self):
        runs = (self.assert_done("bench", "regret", "--scenario", "12", "--set", f"adapt.batch_threshold={threshold}",
                                 "--set", f"adapt.relayout_threshold={threshold}") for threshold in (0.03, 1e3))
        usual, never = (run.stdout for run in runs)
        self.assertIn(" 0 batch changes", never)
        self.assertNotIn(" 0 batch changes", usual)

    def test_text(self):
        table = self.assert_done("bench", "regret", "--scenarios", "2", "--policy", "static").stdout
        self.assertRegex(table, r"(?m)^static +2 ")
        self.assertRegex(table, r"worst for static:\n +[+-][0-9.]+ %  \d+: ")
        one = self.assert_done("bench", "regret", "--scenario", "12", "--trace").stdout
        self.assertRegex(one, r"(?m)^12: ")
        self.assertRegex(one, r"(?m)^clairvoyant: ")
        self.assertRegex(one, r"(?m)^step \d+, .*holds: ")

    def test_mistakes(self):
        self.assert_refused("bench", "regret", "--trace", says=["--trace", "--scenario"])
        self.assert_refused("bench", "regret", "--scenarios", "0", says=["--scenarios", "at least 1"])
        self.assert_refused("bench", "regret", "--group", "other", says=["--group", "held-back"])
        self.assert_refused("bench", "regret", "--policy", "copsu", says=["adapt.policy", "copsu"])
        self.assert_refused("bench", "regret", "--policy", "none", says=["none"])
        self.assert_refused("bench", "regret", "--set", "train.seed=1", says=["train.seed", "[adapt]"])
        self.assert_refused("bench", "regret", "--set", "adapt.global_batches=[8, 16]", says=["the scenario's"])


class BenchModel(ProgramTest):
    PUBLISHED_COLUMNS = (
        "row_id,rank_set,group,source,framework,hardware,n_gpus,gpus_per_node,interconnect,params_b,n_layers,hidden,"
        "heads,kv_heads,ffn,glu,vocab,seq_len,precision,dp,tp,pp,vpp,cp,sp,zero_stage,micro_batch,grad_accum,"
        "global_batch,recompute,tokens_per_s_per_gpu,notes"
    )

    def published(self, *runs):
        """Writes runs of one model on 8 GPUs: (set, dp, tp, tokens per second and GPU)."""
        rows = [
            f"{i},{name},g,s,Megatron-LM,A100-80GB,8,8,,,16,2048,16,16,8192,1,32000,2048,bf16,{dp},{tp},1,1,1,0,0,1,"
            f"{256 // dp},256,none,{throughput},"
            for i, (name, dp, tp, throughput) in enumerate(runs)
        ]
        return self.write("published.csv", "\n".join([self.PUBLISHED_COLUMNS, *rows]) + "\n")

    def test_judges_both_halves(self):
        sets = [(name, 8 // tp, tp, 9000 / tp**0.5) for name in ("A", "B") for tp in (1, 2, 4)]
        path = self.published(*sets)
        result = json.loads(self.assert_done("bench", "model", "--data", str(path), "--json").stdout)
        halves = [(s["name"], s["half"], s["rows"]) for s in result["sets"]]
        self.assertEqual(halves, [("A", "fitted", 3), ("B", "held out", 3)])
        self.assertEqual(result["mean_kendall_tau"], 1)
        self.assertEqual(result["mean_top1_regret"], 0)
        self.assertLess(result["median_absolute_error"], 0.5)
        self.assertEqual(result["feasible_recall"], 1)
        self.assertIsNone(result["infeasible_recall"])
        self.assertEqual(result["fitted_half"]["num_sets"], 1)
        self.assertEqual(list(result["constants"]), ["megatron, A100-80GB"])
        table = self.assert_done("bench", "model", "--data", str(path), "--runs").stdout
        for expected in ("held out", "megatron, A100-80GB", "row 5"):
            self.assertIn(expected, table)

    def test_names_that_are_not_utf8_are_written_all_the_same(self):
        path = self.published(("A", 8, 1, 9000), ("B", 4, 2, 8000))
        path.write_bytes(path.read_bytes().replace(b"A100-80GB", b"A100-80GB caf\xe9"))
        result = json.loads(self.assert_done("bench", "model", "--data", str(path), "--json", "--runs").stdout)
        self.assertEqual(list(result["constants"]), ["megatron, A100-80GB caf\ufffd"])

    def test_refuses_bad_tables(self):
        path = self.published(("A", 8, 1, "fast"))
        mistake = ["published.csv:2", "tokens_per_s_per_gpu", "fast"]
        self.assert_refused("bench", "model", "--data", str(path), says=mistake)
        path.write_text("row_id\n")
        self.assert_refused("bench", "model", "--data", str(path), says=["published.csv:1", "no column"])
        self.assert_refused("bench", "model", says=["--data"])
        of_throughput = str(self.published(("A", 8, 1, 9000)))
        self.assert_refused(
            "bench", "model", "--data", of_throughput, "--failures", of_throughput, says=["no column 'status'", "other"]
        )


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class NoiseScale(ProgramTest):
    """copus gns, on a run of 20 steps of 8 sequences."""

    MEASURE = ["--batches", "4", "--large-batch", "8", "--threads", "1"]

    def setUp(self):
        super().setUp()
        self.assert_done("train", "run.toml", "--run-dir", "r")

    def gns(self, *arguments):
        result = json.loads(self.assert_done("gns", *arguments, *self.MEASURE, "--json").stdout)
        self.assertEqual((result["batches"], result["small_batch"], result["large_batch"]), (4, 1, 8))
        result.pop("seconds")
        return result

    def refused(self, *arguments, says):
        self.assert_refused("gns", *arguments, says=says, leaves_run_dir=True)

    def test_of_a_run(self):
        before = {path: path.read_bytes() for path in (self.folder / "r").rglob("*") if path.is_file()}
        result = self.gns("--checkpoint", "r")
        self.assertEqual((result["step"], result["consumed_samples"], result["sequence_length"]), (20, 160, 32))
        self.assertGreater(result["trace"], 0)
        self.assertGreater(result["trace_error"], 0)
        self.assertAlmostEqual(result["noise_scale"] * result["squared_gradient"] / result["trace"], 1)
        self.assertLess(result["noise_scale_low"], result["noise_scale"])
        self.assertGreater(result["noise_scale_high"], result["noise_scale"])
        self.assertEqual(result, self.gns("--checkpoint", "r/checkpoints/step-00000020"))
        self.assertEqual(before, {path: path.read_bytes() for path in before}, "the run is left as it was")
        table = self.assert_done("gns", "--checkpoint", "r", *self.MEASURE)
        self.assertRegex(table.stdout, r"(?m)^noise scale +[0-9.]+ sequences \(95 % interval: ")
        self.assertRegex(table.stdout, r"4 batches of 8 sequences of 32 tokens, after step 20,")
        self.assertEqual(table.stderr, "")

    def test_the_samples_are_those_that_the_run_would_take_next(self):
        """|G|^2 + tr(Sigma)/B is the mean of the batches' squared norms, in steps that leave the weights unchanged."""
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=24", "--set",
                         "optimizer.lr=1e-30")
        squared_norms = [float(self.losses("r")[step][1]) ** 2 for step in range(21, 25)]
        result = self.gns("--checkpoint", "r/checkpoints/step-00000020")
        self.assertAlmostEqual((result["squared_gradient"] + result["trace"] / 8) / (sum(squared_norms) / 4), 1, 4)
        another = self.gns("--checkpoint", "r", "--seed", "5")
        self.assertNotEqual(another["trace"], self.gns("--checkpoint", "r")["trace"])

    def test_of_a_model_and_on_other_data(self):
        self.assert_done("convert", "--from", "r", "--to", "hf")
        arguments = ["--data", "corpus.txt", "--sequence-length", "32"]
        model = self.gns("--model", "hf", *arguments)
        self.assertEqual((model["step"], model["consumed_samples"]), (None, None))
        run = self.gns("--checkpoint", "r", *arguments)
        for field in ("step", "consumed_samples"):
            run.pop(field), model.pop(field)
        self.assertEqual(run, model)

    def test_a_precision_has_many_names(self):
        measured = {names: [self.gns("--checkpoint", "r", "--precision", name) for name in names]
                    for names in (("fp32", "float32", "F32"), ("bf16", "bfloat16", "BF16"))}
        for names, (first, *others) in measured.items():
            self.assertEqual(others, [first, first], names)
        self.assertEqual(len({results[0]["trace"] for results in measured.values()}), 2)

    def test_says_on_a_terminal_how_far_it_is(self):
        code, output, shown = run_with_terminal(["gns", "--checkpoint", "r", *self.MEASURE, "--json"], self.folder)
        self.assertEqual((code, json.loads(output)["batches"]), (0, 4))
        self.assertIn("\r\x1b[K0 of 4 batches", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), "the line is taken away in the end")
        code, output, shown = run_with_terminal(["generate", "--checkpoint", "r", "--tokens", "9"], self.folder)
        self.assertEqual(code, 0)
        self.assertIn("0 of 9 tokens", shown)
        self.assertNotIn("of 9 tokens", output)
        with self.assertRaisesRegex(AssertionError, "has not ended within 0.5 s: copus gns --checkpoint r"):
            run_with_terminal(["gns", "--checkpoint", "r", "--batches", "1000000", "--large-batch", "8"], self.folder,
                              timeout=0.5)

    def test_says_in_a_pipe_now_and_then_how_far_it_is(self):
        process = self.start("gns", "--checkpoint", "r", "--batches", "1000000", "--large-batch", "8", "--threads", "1")
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        try:
            lines = iter(process.stderr.readline, "")
            self.assertRegex(next(line for line in lines if "note" not in line),
                             r"^copus: \d+ of 1000000 batches, .+ left\n$")
        finally:
            process.kill()
            process.wait()

    def test_few_data_are_noted(self):
        result = self.assert_done("gns", "--checkpoint", "r", "--batches", "100", "--large-batch", "8")
        self.assertIn("more than once", result.stderr)

    def test_mistakes(self):
        self.refused(says=["--checkpoint", "--model"])
        self.refused("--checkpoint", "r", "--model", "r", says=["one model"])
        self.refused("--checkpoint", "nowhere", says=["nowhere"])
        self.refused("--checkpoint", "r", "--batches", "1", says=["--batches"])
        self.refused("--checkpoint", "r", "--data", "nowhere.txt", says=["nowhere.txt"])
        self.refused("--checkpoint", "r", "--device", "tpu", says=["tpu"])
        self.refused("--checkpoint", "r", "--sequence-length", "4096", says=["--sequence-length", "2048"])
        self.refused("--model", "r", says=["--data"])
        self.refused("--model", "r", "--data", "corpus.txt", says=["--sequence-length"])
        self.assert_done("convert", "--from", "r", "--to", "hf")
        self.refused("--checkpoint", "hf", says=["--model"])
        self.write("corpus.txt", "entirely different words in this corpus now, and many more of them\n" * 400)
        self.refused("--checkpoint", "r", says=["data.train", "--data"])
        (self.folder / "corpus.txt").unlink()
        self.refused("--checkpoint", "r", says=["corpus.txt", "config.toml", "--data"])

    def test_tokens_that_are_not_the_models(self):
        self.write("ids.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 4000, 0, 0, 1))
        self.write("ids.bin", struct.pack("<4000H", *(2000 * [7, 300])))
        self.refused("--checkpoint", "r", "--data", "ids", says=["id 300", "vocabulary of 256"])
        self.write("ids.bin", struct.pack("<4000H", *(2000 * [7, 200])))
        self.refused("--checkpoint", "r", "--data", "ids", says=["ids", "tokenized", "bytes"])
        self.assert_done("train", "run.toml", "--run-dir", "s", "--set", "model.vocab_size=1000", "--set",
                         "train.max_steps=1")
        self.assert_done("convert", "--from", "s", "--to", "hf")
        self.refused("--model", "hf", "--data", "corpus.txt", "--sequence-length", "32",
                     says=["corpus.txt is text", "1000 tokens", "tokenize_corpus.py"])

    def test_a_model_that_has_diverged(self):
        self.assert_done("convert", "--from", "r", "--to", "hf")
        weights = self.folder / "hf" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", math.nan))
        self.refused("--model", "hf", "--data", "corpus.txt", "--sequence-length", "32", *self.MEASURE,
                     says=["4 of 4 batches", "not finite"])


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class BenchGns(ProgramTest):
    def test_rows(self):
        result = json.loads(self.assert_done("bench", "gns", "--shapes", "tiny", "--steps", "8", "--json").stdout)
        rows = result["rows"]
        self.assertEqual([(row["shape"], row["ranks"], row["micro_batches"], row["source"], row["steps"]) for row in rows],
                         [("tiny", 2, 1, "rank", 8), ("tiny", 1, 2, "prefix", 8)])
        for row in rows:
            self.assertGreater(row["seconds_on"], 0)
            self.assertGreater(row["seconds_off"], 0)
            self.assertGreater(row["probe_fraction"], 0)
            self.assertLess(row["probe_fraction"], 1)
            lower, upper = row["overhead_fraction_quartiles"]
            self.assertLessEqual(lower, row["overhead_fraction"])
            self.assertGreaterEqual(upper, row["overhead_fraction"])
        for field in ("overhead_fraction", "probe_fraction"):
            self.assertEqual(result[field], max(row[field] for row in rows))

    def test_table(self):
        result = self.assert_done("bench", "gns", "--shapes", "tiny", "--steps", "4")
        self.assertRegex(result.stdout, r"(?m)^ tiny +2 +1 +rank +4 .*\n tiny +1 +2 +prefix +4 ")

    def test_mistakes(self):
        self.assert_refused("bench", "gns", "--steps", "6", says=["--steps 6", "multiple of 4"])
        self.assert_refused("bench", "gns", "--shapes", "c", says=["--shapes"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
