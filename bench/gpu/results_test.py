#!/usr/bin/env python3
"""Tests of the arithmetic behind the measurements on a GPU. Standard library only; needs no GPU."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import floors
import results
from results import Budget, Case

MACHINE = {"name": "NVIDIA H100 80GB HBM3", "matmul_tflops": 794.5, "copy_bytes_per_second": 2.5e12,
           "torch": "2.11", "transformers": "5"}


def side(*seconds, micro_batch=4, tokens=32768, case=Case("qwen2.5-1.5b", 2048)):
    return {"micro_batch": micro_batch, "micro_batches": 16 // micro_batch, "peak_memory_bytes": 2**30,
            **results.summarize_side(case, MACHINE, tokens, list(seconds))}


def case_result(**sides):
    case = Case("qwen2.5-1.5b", 2048)
    return {"model": case.model, "sequence": case.sequence, "precision": case.precision, "name": case.name(),
            "sides": sides, **results.compare(sides), "report": None}


class Mfu(unittest.TestCase):
    def test_published_throughput_has_its_published_mfu(self):
        # github.com/IST-DASLab/llmq, one H100, sequences of 1024: tokens/s, and the uniform MFU that follows.
        for model, rate, mfu in (("qwen2.5-0.5b", 149455, 0.488), ("qwen2.5-1.5b", 58711, 0.581),
                                 ("qwen2.5-3b", 30959, 0.608)):
            case = Case(model, 1024)
            summary = results.summarize_side(case, MACHINE, 1000, [1000 / rate])
            self.assertAlmostEqual(summary["mfu"], mfu, delta=0.0006, msg=model)
            self.assertAlmostEqual(summary["share_of_measured_matmul"], summary["mfu"] * 989.4 / 794.5)

    def test_formula_by_hand(self):
        h, kv_over_heads, ffn, layers, vocab, s = 1536, 2 / 12, 8960, 28, 151936, 2048
        by_hand = 6 * (layers * (2 * h * h + 2 * h * h * kv_over_heads + 3 * h * ffn) + vocab * h) + 12 * layers * h * s
        self.assertAlmostEqual(Case("qwen2.5-1.5b", 2048).flops_per_token() / by_hand, 1)

    def test_parameters_are_those_published(self):
        for model, count in (("qwen2.5-0.5b", 494032768), ("qwen2.5-1.5b", 1543714304), ("qwen2.5-3b", 3085938688),
                             ("llama-3.2-1b", 1235814400), ("llama-3.2-3b", 3212749824), ("tiny-llama", 1869504)):
            self.assertEqual(Case(model, 1024).parameters(), count, model)

    def test_an_unknown_device_has_no_mfu(self):
        summary = results.summarize_side(Case("tiny-llama", 32), {**MACHINE, "name": "cpu"}, 100, [1.0, 2.0, 4.0])
        self.assertIsNone(summary["mfu"])
        self.assertEqual(summary["tokens_per_second"], 50)
        self.assertEqual(summary["tokens_per_second_quartiles"], [37.5, 75.0])


class Ratios(unittest.TestCase):
    def test_are_medians_within_rounds_and_against_the_faster_compiled_side(self):
        compared = results.compare({"ours": side(1.0, 2.0, 1.0), "eager": side(3.0, 4.0, 2.5),
                                    "layers": side(1.3, 2.4, 1.1), "model": side(1.2, 2.2, 1.0)})
        self.assertAlmostEqual(compared["over_eager"]["ratio"], 2.5)
        self.assertEqual(compared["over_compile"]["side"], "model")
        self.assertAlmostEqual(compared["over_compile"]["ratio"], 1.1)

    def test_count_tokens_where_the_work_of_a_step_differs(self):
        compared = results.compare({"ours": side(1.0), "layers": {**side(1.0), "micro_batches": 2}})
        self.assertAlmostEqual(compared["over_compile"]["ratio"], 2.0)

    def test_are_missing_where_a_side_is(self):
        self.assertEqual(results.compare({"ours": {"error": "x"}, "eager": side(1.0)}),
                         {"over_eager": None, "over_compile": None})
        self.assertIsNone(results.compare({"ours": side(1.0), "eager": side(1.0)})["over_compile"])


class Budgets(unittest.TestCase):
    def test_a_case_begins_only_where_its_time_is_left(self):
        case = Case("qwen2.5-1.5b", 2048)
        budget = Budget(100.0, started=1000.0)
        needed = budget.expected(case)
        self.assertTrue(budget.fits(case, 1100.0 - needed))
        self.assertFalse(budget.fits(case, 1100.1 - needed))

    def test_learns_from_what_a_case_took(self):
        case, larger = Case("qwen2.5-1.5b", 2048), Case("qwen2.5-3b", 2048)
        budget = Budget(100.0, started=0.0)
        before = budget.expected(larger)
        budget.learn(case, 2 * budget.guess(case))
        self.assertAlmostEqual(budget.expected(larger), 2 * before)

    def test_the_default_time_begins_with_the_most_important_cases(self):
        budget, now, begun = Budget(240.0, 0.0), 15.0, []
        for case in results.cases_by_importance():
            if budget.fits(case, now):
                begun.append((case.model, case.sequence))
                now += budget.expected(case)
        self.assertEqual(begun[:2], [("qwen2.5-1.5b", 2048), ("qwen2.5-3b", 2048)])
        self.assertLessEqual(now, 240.0)

    def test_every_asked_shape_is_a_case(self):
        cases = {(case.model, case.sequence) for case in results.cases_by_importance()}
        for model in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "llama-3.2-1b", "llama-3.2-3b"):
            self.assertLessEqual({(model, 1024), (model, 2048)}, cases)


class Tables(unittest.TestCase):
    def lines(self, **sides):
        return results.report_lines({"machine": MACHINE, "seconds": 1, "cases": [case_result(**sides)],
                                     "not_measured": [{"name": "qwen2.5-3b x 2048", "reason": "3 s were left"}]})

    def test_says_what_was_reached_and_what_was_not_measured(self):
        text = "\n".join(self.lines(ours=side(0.5, 0.5), eager=side(1.0, 1.0), layers=side(0.6, 0.6)))
        self.assertRegex(text, r"Copus +4 x 4 +65,536 \(65,536 \.\. 65,536\) +68\.3 % +85\.1 % +1\.0\n")
        self.assertRegex(text, r"eager .* 2\.00x\n")
        self.assertRegex(text, r"compile, layers .* 1\.20x\n")
        self.assertRegex(text, r"qwen2\.5-3b x 2048 +not measured: 3 s were left")
        self.assertRegex(text, r"qwen2\.5-1\.5b +MFU +aim >= 60\.0 % +68\.3 % at 2048: met")
        self.assertRegex(text, r"qwen2\.5-1\.5b +over torch\.compile +aim >= 1\.15x +1\.20x at 2048: met")
        self.assertRegex(text, r"qwen2\.5-3b +MFU +aim >= 60\.0 % +not measured")

    def test_every_length_is_judged_and_by_the_stronger_compiled_side(self):
        longer = {**case_result(ours=side(0.5), layers=side(0.7)), "sequence": 4096}
        cases = [case_result(ours=side(0.5), layers=side(0.6)), case_result(ours=side(0.5), model=side(0.55)), longer]
        ratios = [(aim["sequence"], round(aim["value"], 2)) for aim in results.aims({"cases": cases})
                  if aim["what"] == "over torch.compile" and aim["value"]]
        self.assertEqual(ratios, [(2048, 1.1), (4096, 1.4)])

    def test_an_aim_can_be_missed(self):
        text = "\n".join(self.lines(ours=side(0.7), layers=side(0.7)))
        self.assertRegex(text, r"48\.8 % at 2048: missed")
        self.assertRegex(text, r"1\.00x at 2048: missed")

    def test_a_side_that_failed_says_why(self):
        text = "\n".join(self.lines(ours={"error": "CUDA out of memory"}, eager=side(1.0)))
        self.assertRegex(text, r"Copus +not measured: CUDA out of memory")


class Floors(unittest.TestCase):
    def test_parts_add_up_and_bound_the_mfu(self):
        for cluster in floors.CLUSTERS:
            for case in floors.cases():
                floor = floors.floor_of(case, floors.device_of(cluster), floors.TOKENS_PER_STEP)
                self.assertAlmostEqual(sum(floor.parts.values()), floor.seconds)
                self.assertLess(floor.mfu, floors.device_of(cluster)["matmul_teraflops"] / 989.4)
                self.assertGreater(floor.mfu, 0.4)

    def test_matmul_floor_by_hand(self):
        case, device = Case("qwen2.5-1.5b", 1024), floors.device_of("h100-sxm")
        floor = floors.floor_of(case, device, 32768)
        attention = 12 * 28 * 1536 * 1024
        seconds = 32768 * (case.flops_per_token() - attention) / 794.5e12
        self.assertAlmostEqual(floor.parts["matmul"], seconds)

    def test_attention_takes_the_published_rate_of_its_length(self):
        rates = {"attention_forward": [[1024, 0.25]], "attention_backward": [[1024, 0.5]]}
        device = {**floors.device_of("h100-sxm"), **rates}
        floor = floors.floor_of(Case("qwen2.5-1.5b", 1024), device, 1024)
        causal = 28 * 4 * 1024 * 1024 * 1536 / 2
        self.assertAlmostEqual(floor.parts["attention"], (causal / 0.25 + 2.5 * causal / 0.5) / 794.5e12)

    def test_the_document_holds_the_table(self):
        text = (results.ROOT / "bench/gpu/README.md").read_text(encoding="utf-8")
        for line in floors.markdown():
            self.assertIn(line, text, "write bench/gpu/floors.py's output into bench/gpu/README.md again")


if __name__ == "__main__":
    unittest.main()
