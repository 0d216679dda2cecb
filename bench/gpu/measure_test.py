#!/usr/bin/env python3
"""Tests of how measure.py lets sides take turns, with sides that do not train. Needs no GPU."""

import argparse
import contextlib
import io
import sys
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import measure
from results import Case

MACHINE = {"name": "NVIDIA H200", "matmul_tflops": 800.0, "copy_bytes_per_second": 4e12}
PARTS = {"peak_memory_bytes": 7, "parts": {}}


class PretendedSide:
    """Fits micro-batches up to `fits`, makes steps of `seconds`, and fails on request."""

    def __init__(self, log: list, name: str, fits: int = 1 << 20, seconds: float = 1.0, fails_in: str = ""):
        self.log, self.name, self.fits, self.seconds, self.fails_in = log, name, fits, seconds, fails_in

    def note(self, what: str, *more) -> None:
        self.log.append((what, self.name, *more))
        if self.fails_in == what:
            raise measure.SideFailed(f"{what} failed")

    def machine(self) -> dict:
        return MACHINE

    def load(self, case, micro_batch, tokens_per_step, seconds) -> dict:
        self.note("load", micro_batch)
        while micro_batch > self.fits:
            micro_batch //= 2
        return {"micro_batch": micro_batch, "seconds": 5.0, "seconds_per_step": 0.5}

    def run(self, steps, seconds) -> dict:
        self.note("run", steps)
        return {"seconds_per_step": self.seconds, "peak_memory_bytes": 3}

    def report(self, steps, seconds) -> dict:
        self.note("report")
        return PARTS

    def unload(self) -> None:
        self.note("unload")


class Turns(unittest.TestCase):
    def measured(self, sides: dict, cases=(Case("qwen2.5-1.5b", 2048),), seconds=1e4, rounds=3) -> tuple[dict, list]:
        log = []
        pretended = {name: PretendedSide(log, name, **options) for name, options in sides.items()}
        arguments = argparse.Namespace(seconds=seconds, rounds=rounds, turn_seconds=1.5, tokens_per_step=32768,
                                       micro_batch_tokens=16384)
        with contextlib.redirect_stderr(io.StringIO()):
            return measure.Measurement(arguments, list(cases), pretended).measure(), log

    def test_sides_alternate(self):
        results, log = self.measured({"ours": {}, "eager": {"seconds": 2.0}, "layers": {"seconds": 1.5}})
        runs = [entry[1:] for entry in log if entry[0] == "run"]
        self.assertEqual(sorted(runs[:3]), [("eager", 3), ("layers", 3), ("ours", 3)], "1.5 s are 3 steps of 0.5 s")
        self.assertEqual(runs, runs[:3] * 3)
        case = results["cases"][0]
        self.assertEqual(list(case["sides"]), ["ours", "eager", "layers"])
        self.assertEqual(case["over_eager"]["ratio"], 2.0)
        self.assertEqual(case["over_compile"], {"side": "layers", "ratio": 1.5, "quartiles": [1.5, 1.5]})
        self.assertEqual([side["peak_memory_bytes"] for side in case["sides"].values()], [7, 3, 3])

    def test_all_take_the_micro_batch_that_fits_eager(self):
        results, log = self.measured({"ours": {}, "eager": {"fits": 2}, "layers": {}})
        self.assertEqual([entry for entry in log if entry[0] == "load"],
                         [("load", "eager", 8), ("load", "ours", 2), ("load", "layers", 2)])
        self.assertEqual({side["micro_batch"] for side in results["cases"][0]["sides"].values()}, {2})
        self.assertEqual(results["cases"][0]["sides"]["ours"]["micro_batches"], 8)

    def test_eager_begins_anew_where_ours_needs_less(self):
        _, log = self.measured({"ours": {"fits": 4}, "eager": {}, "layers": {}})
        self.assertEqual([entry[1:] for entry in log if entry[0] == "load"],
                         [("eager", 8), ("ours", 8), ("eager", 4), ("layers", 4)])

    def test_a_side_that_fails_leaves_the_others(self):
        for moment in ("load", "run"):
            results, log = self.measured({"ours": {}, "eager": {}, "layers": {"fails_in": moment}})
            sides = results["cases"][0]["sides"]
            self.assertEqual(sides["layers"], {"error": f"{moment} failed"})
            self.assertEqual(len(sides["ours"]["seconds_per_step"]), 3)
            self.assertIsNone(results["cases"][0]["over_compile"])
            self.assertEqual(sum(entry[:2] == ("run", "layers") for entry in log), int(moment == "run"))
        results, _ = self.measured({"ours": {"fails_in": "report"}, "eager": {}, "layers": {}})
        self.assertIsNone(results["cases"][0]["report"])
        self.assertIn("tokens_per_second", results["cases"][0]["sides"]["ours"])

    def test_what_does_not_fit_into_the_time_is_left_out(self):
        cases = (Case("qwen2.5-3b", 2048), Case("qwen2.5-0.5b", 1024))
        results, _ = self.measured({"ours": {}, "eager": {}, "layers": {}}, cases, seconds=60)
        self.assertEqual([case["model"] for case in results["cases"]], ["qwen2.5-0.5b"])
        self.assertEqual([case["model"] for case in results["not_measured"]], ["qwen2.5-3b"])

    def test_what_was_measured_before_a_stop_is_reported(self):
        cases = (Case("qwen2.5-0.5b", 1024), Case("qwen2.5-3b", 2048))
        original = PretendedSide.load

        def load(side, case, *more):
            if case.model == "qwen2.5-3b":
                measure.stop()
            return original(side, case, *more)

        with unittest.mock.patch.object(PretendedSide, "load", load):
            results, _ = self.measured({"ours": {}, "eager": {}, "layers": {}}, cases)
        self.assertEqual([case["model"] for case in results["cases"]], ["qwen2.5-0.5b"])
        self.assertEqual(results["not_measured"][0]["reason"], "stopped before its end")


class Processes(unittest.TestCase):
    def process(self, program: str) -> measure.LineProcess:
        process = measure.LineProcess([sys.executable, "-c", program], {})
        self.addCleanup(process.end)
        return process

    def test_answers_come_line_by_line(self):
        process = self.process("""import json, sys
for line in sys.stdin:
    print(json.dumps({"said": line.strip()}), flush=True)""")
        self.assertEqual([process.ask(word, 60)["said"] for word in ("a", "b")], ["a", "b"])

    def test_an_end_is_told_with_its_last_words(self):
        process = self.process("import sys; sys.exit('CUDA out of memory. ' + 'Tried. ' * 100)")
        with self.assertRaises(measure.SideFailed) as caught:
            process.read(60)
        self.assertTrue(caught.exception.is_out_of_memory)
        self.assertRegex(str(caught.exception), r"^ended with exit code 1: .*Tried\.$")

    def test_silence_is_not_waited_for(self):
        process = self.process("import time; time.sleep(600)")
        with self.assertRaisesRegex(measure.SideFailed, "no answer within 0 s"):
            process.ask("run 1", 0.2)
        self.assertIsNotNone(process.process.poll())


if __name__ == "__main__":
    unittest.main()
