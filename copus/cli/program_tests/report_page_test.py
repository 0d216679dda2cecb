"""Tests the pages of `copus report` and `copus plan --plot` in a headless Chromium: they must draw the contents of the
logs, zoom, fit a phone, print no warnings and use no network. Called as report_page_test.py PATH_TO_COPUS. Exits with
77, which CTest takes for skipped, if there is no Chromium.
"""

import json
import sys
import unittest
import unittest.mock

from browser import Browser, find_browser
from program_test_support import ProgramTest

STEPS = 400
BEFORE, AFTER = "d=2,t=1,p=2", "d=4,t=1,p=1"
HOSTILE = "</script><img src='http://localhost/x'><b>&amp; 'reason'"
EXPERIMENT = """
base = "run.toml"
seeds = [1, 2]
targets = [3.0]
reference = "slow"
[[arm]]
name = "slow"
[[arm]]
name = "fast"
"""


def step_record(step, adapts):
    batch = 8 if step <= 200 or not adapts else 16
    known = adapts and step > 20
    seconds = 0.02 * batch
    elapsed = 0.16 * min(step, 200) + seconds * max(0, step - 200) + (1.5 if adapts and step > 200 else 0)
    return {"version": 1, "step": step, "consumed_samples": 8 * step, "consumed_tokens": 2048 * step, "loss": 2 + 3 / step,
            "lr": 1e-3, "grad_norm": 1.0, "step_seconds": seconds,
            "switch_seconds": 1.5 if adapts and step == 201 else None,
            "predicted_step_seconds": seconds if adapts else None, "tokens_per_second": 1e4,
            "strategy": BEFORE if step <= 200 or not adapts else AFTER, "global_batch": batch, "micro_batch": 1,
            "small_batch": None, "small_batch_squared_norm": None, "noise_scale": 30.0 if known else None,
            "noise_scale_low": 20.0 if adapts else None, "noise_scale_high": 50.0 if known else None,
            "noise_scale_tokens": None, "critical_batch": 60.0 if known else None,
            "statistical_efficiency": 0.9 if known else None, "goodput": 45.0 if known else None, "skipped_samples": 0,
            "held_out_loss": 2.5 if step % 100 == 0 else None, "elapsed_seconds": elapsed}


def decision(step, moves, target):
    return {"event": "decision", "step": step, "consumed_samples": 8 * step, "policy": "copus",
            "current": f"{BEFORE},B=8,b=1", "moves": moves, "target": target, "commit_after_step": 200,
            "predicted_gain": 0.1, "reason": HOSTILE if moves else "holds", "noise_scale": 30.0,
            "noise_scale_low": 20.0, "noise_scale_high": 50.0, "critical_batch": 60.0, "best": [],
            "rate_factor": 1.0, "target_rate_factor": None, "rate_cap": None,
            "wanted_boundary": None, "inputs_hash": "0" * 16}


def decisions():
    target = f"{AFTER},B=16,b=1"
    yield from (decision(step, False, None) for step in range(20, 180, 20))
    yield decision(198, True, target)
    yield {"event": "switch", "after_step": 200, "consumed_samples": 1600, "from": f"{BEFORE},B=8,b=1",
           "to": target, "outcome": "moved", "reason": "", "rate_factor": 1.0, "pause_seconds": 1.5,
           "prepare_seconds": 0.1, "phase_seconds": {}, "bytes_copied": 0, "bytes_received": 0, "peak_bytes": 0,
           "peak_bound_bytes": 0}


def difference(mean, low, high):
    return {"pairs": 2, "mean": mean, "low": low, "high": high, "standard_deviation": 0.1, "detectable": 0.2}


def result(name, seconds, against):
    ratios = dict(zip(("time_ratio", "time_ratio_low", "time_ratio_high"), against or (None, None, None)))
    target = {"held_out_loss": 3.0, "refusal": None, "seconds": seconds, "tokens": 1e5,
              "log_seconds_difference": difference(-0.5, -0.7, -0.3) if against else None, **ratios,
              "runs": [{"seed": seed, "seconds": seconds * seed, "tokens": 1e5} for seed in (1, 2)]}
    return {"name": name, "arm": name, "set": [], "targets": [target], "final_loss": None}


class PageTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())

    def write_logs(self, name, adapts, steps=STEPS, change=lambda record: {}):
        run = self.folder / name
        run.mkdir(parents=True)
        records = (step_record(step, adapts) for step in range(1, steps + 1))
        lines = (json.dumps({**record, **change(record)}) for record in records)
        (run / "run.jsonl").write_text("\n".join(lines) + "\n")
        if adapts:
            (run / "decisions.jsonl").write_text("".join(json.dumps(event) + "\n" for event in decisions()))
        return run

    def open(self, *arguments, page="page.html", command=("report",)):
        output = "--plot" if command[0] == "plan" else "--output"
        self.assert_done(*command, *arguments, output, page)
        opened = self.browser.open(self.folder / page)
        self.addCleanup(self.assert_silent, opened)
        return opened

    def assert_silent(self, page):
        self.assertEqual(page.complaints, [])
        self.assertEqual([url for url in page.requests if not url.startswith("file://")], [])

    def assert_fits(self, page, width):
        page.resize(width, 800, phone=width < 700)
        # On a phone, innerWidth grows with overflowing content.
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
        narrowest = page.evaluate("Math.min(...group.plots.map((plot) => plot.over.clientWidth))")
        self.assertGreater(narrowest, 0.35 * min(width, 400), f"a chart's plot, at a width of {width}")


class RunPage(PageTest):
    def test_a_run_that_adapts(self):
        self.write_logs("r", adapts=True)
        page = self.open("r")
        self.assertEqual(
            page.evaluate("group.plots.map((plot) => [plot.chart.title, plot.series.length - 1])"),
            [["Loss", 3], ["Batch and micro-batch", 2], ["Layout", 1], ["Noise scale and critical batch", 5],
             ["Goodput", 2], ["Throughput", 2], ["Statistical efficiency", 1], ["Learning rate", 1],
             ["Gradient norm", 2], ["Step time", 3], ["Pauses", 1]])
        self.assertEqual(page.evaluate("document.querySelectorAll('canvas').length"), 11)
        # The switch is a button with its reason, escaped as text. The decisions to hold are next to it.
        self.assertEqual(page.evaluate("document.querySelectorAll('.mark').length"), 1)
        page.evaluate("document.querySelector('.mark').click()")
        tip = page.evaluate("[...document.querySelectorAll('.tip:not([hidden])')].map((one) => one.innerText)")
        self.assertEqual(len(tip), 1)
        self.assertIn("after step 200: d=2,t=1,p=2,B=8 -> d=4,t=1,p=1,B=16", tip[0])
        self.assertIn(HOSTILE, tip[0])
        self.assertEqual(page.evaluate("document.querySelectorAll('img').length"), 0)
        self.assertEqual(page.evaluate("group.plots[1].chart.ticks.length"), 8)
        self.assertEqual(page.evaluate("runs[0].curves.global_batch.value"), [8, 8, 16])
        self.assertEqual(page.evaluate("runs[0].curves.layout.value.at(-1)"), "d=4,t=1,p=1")

    def test_zooming_one_chart_zooms_all_and_they_go_on_working(self):
        self.write_logs("r", adapts=True)
        page = self.open("r")
        ranges = "group.plots.map((plot) => [plot.scales.x.min, plot.scales.x.max])"
        whole = page.evaluate(ranges)
        left, top, width, height = page.evaluate("(() => { const r = group.plots[1].over.getBoundingClientRect();"
                                                 "return [r.left, r.top, r.width, r.height]; })()")
        page.drag((left + width / 4, top + height / 2), (left + width / 2, top + height / 2))
        zoomed = page.evaluate(ranges)
        for (low, high), (first, last) in zip(zoomed, whole):
            self.assertAlmostEqual(low, first + (last - first) / 4, delta=0.01 * (last - first))
            self.assertAlmostEqual(high, first + (last - first) / 2, delta=0.01 * (last - first))
        self.assertEqual(len({tuple(ends) for ends in zoomed}), 1, "the same window in every chart")
        page.drag((left + width / 4, top + height / 2), (left + width / 2, top + height / 2))
        again = page.evaluate(ranges)
        self.assertLess(again[0][1] - again[0][0], zoomed[0][1] - zoomed[0][0])
        page.evaluate("document.querySelector('[aria-label=\"the whole range\"]').click()")
        page.settle()
        self.assertEqual(page.evaluate(ranges), whole)
        page.evaluate("group.zoom_to([0, 100 * 2048])")
        for _ in range(3):
            page.evaluate("document.querySelector('[aria-label=\"to the left\"]').click()")
        self.assertEqual(page.evaluate("group.window"), [0, 100 * 2048], "at an end a window stays as wide")
        page.evaluate("document.querySelector('[aria-label=\"to the right\"]').click()")
        self.assertEqual(page.evaluate("group.window"), [50 * 2048, 150 * 2048])
        page.evaluate("document.querySelector('[aria-label=\"zoom in\"]').click()")
        page.evaluate("document.querySelector('[aria-label=\"curves over training time\"]').click()")
        page.settle()
        self.assertEqual(page.evaluate("group.axis.label"), "training time")
        self.assertAlmostEqual(page.evaluate("group.plots[0].scales.x.max"), 97.5, delta=0.1)

    def test_a_window_without_a_point_shows_the_curves_that_go_through_it(self):
        self.write_logs("r", adapts=True)
        page = self.open("r")
        tops = "[0, 1].map((chart) => group.plots[chart].scales.y.max)"
        page.evaluate("group.zoom_to([250 * 2048, 299 * 2048])")  # the batch is recorded at steps 200 and 400
        self.assertGreater(page.evaluate(tops)[1], 16)
        page.evaluate("group.zoom_to([250.2 * 2048, 250.8 * 2048])")  # a line with held-out loss 2.5 passes through it
        self.assertGreater(page.evaluate(tops)[0], 2.5)
        self.assertLess(page.evaluate(tops)[0], 2.6)

    def test_an_interval_that_begins_at_zero_does_not_stretch_its_axis(self):
        self.write_logs("r", adapts=True,
                        change=lambda record: {"noise_scale_low": 0.0 if record["step"] < 300 else 20.0})
        page = self.open("r")
        self.assertGreater(page.evaluate("group.plots[3].scales.y.min"), 1)
        self.assertLess(page.evaluate("group.plots[3].data[2][100]"), 1e-6, "the area goes on below")

    def test_labels_of_the_horizontal_axis_tell_places_apart(self):
        start = 2_000_000  # seconds; in days and hours, all labels of a window of a few steps would be equal
        late = {"elapsed_seconds": start, "consumed_tokens": 3 * 10**9, "step": 123_000}
        self.write_logs("r", adapts=False, change=lambda record: {name: record[name] + late[name] for name in late})
        page = self.open("r")
        labels = ("group.plots[0].axes[0]._values", "group.plots[0].root.querySelector('.u-value').textContent")
        for axis, ends, seen, last in (("training tokens", (3e9 + 2e5, 3e9 + 3e5), "3.00024 B", "3.0008192 B"),
                                       ("training time", (start + 10.0, start + 10.8), "23 d 03:33:30.2",
                                        "23 d 03:34:24"),
                                       ("steps", (123_010, 123_014), "123,012", "123,400")):
            page.evaluate(f"document.querySelector('[aria-label=\"curves over {axis}\"]').click()")
            page.evaluate(f"group.zoom_to({list(ends)})")
            page.settle()
            texts = [text for text in page.evaluate(labels[0]) if text]
            self.assertGreater(len(texts), 3)
            self.assertEqual(len(set(texts)), len(texts), texts)
            self.assertIn(seen, texts)
            self.assertEqual(page.evaluate(labels[1]), last)

    def test_fits_a_phone_and_a_desktop_in_both_colours(self):
        self.write_logs("r", adapts=True)
        page = self.open("r")
        backgrounds = set()
        for dark in (False, True):
            page.set_dark(dark)
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            for width in (1400, 400):
                self.assert_fits(page, width)
        self.assertEqual(len(backgrounds), 2)

    def test_long_names_fit_a_phone(self):
        layouts = ("d=2,t=2,p=2,v=2,schedule=interleaved,sp=1,zero=1,recompute=full", "d=8,t=1,p=1")
        for name in ("a" * 100, f"{'b' * 100} <img src=x>"):
            self.write_logs(name, adapts=True, change=lambda record: {"strategy": layouts[record["step"] > 200]})
        page = self.open("a" * 100)
        self.assert_fits(page, 400)
        self.assertEqual(page.evaluate("group.plots[2].axes[1]._values.map((text) => text.replaceAll('\\n', ''))"),
                         sorted(layouts, reverse=True))
        page = self.open("a" * 100, f"{'b' * 100} <img src=x>")
        self.assert_fits(page, 400)
        self.assertEqual(page.evaluate("document.querySelectorAll('img').length"), 0)

    def test_a_run_whose_logs_hold_little(self):
        self.write_logs("r", adapts=False, steps=3)
        with (self.folder / "r" / "run.jsonl").open("a") as log:
            log.write('{"step": 4, "consumed')
        page = self.open("r")
        self.assertEqual(page.evaluate("group.plots.map((plot) => plot.chart.title)"),
                         ["Loss", "Batch and micro-batch", "Layout", "Throughput", "Learning rate", "Gradient norm",
                          "Step time"])
        self.assertIn("goodput", page.evaluate("document.getElementById('lacking').textContent"))

    def test_several_runs(self):
        self.write_logs("a", adapts=True)
        self.write_logs("b", adapts=False)
        page = self.open("a", "b")
        self.assertEqual(page.evaluate("group.plots[0].series.slice(1).map((series) => series.label)"),
                         ["a: training", "b: training", "a: held-out", "b: held-out"])
        page.evaluate("document.querySelector('.runs button').click()")
        page.settle()
        self.assertEqual(page.evaluate("group.plots[0].series.slice(1).map((series) => series.label)"),
                         ["b: training", "b: held-out"])
        self.assertEqual(page.evaluate("document.querySelectorAll('.mark').length"), 0)
        self.assert_fits(page, 400)

    def test_an_experiment_shows_intervals(self):
        (self.folder / "experiment").mkdir()
        self.write("experiment/experiment.toml", EXPERIMENT)
        for arm in ("slow", "fast"):
            self.write_logs(f"experiment/runs/{arm}/seed-1", adapts=arm == "fast")
        results = {"format": "copus-comparison", "version": 1, "base": "run.toml", "set": [], "seeds": [1, 2],
                   "screening_seeds": [], "targets": [3.0], "reference": "slow", "groups": [],
                   "results": [result("slow", 10.0, None), result("fast", 6.0, (0.6, 0.5, 0.72))]}
        self.write("experiment/results.json", json.dumps(results))
        page = self.open("experiment")
        self.assertIn("0.600 (0.500 to 0.720)", page.evaluate("document.querySelector('.block').innerText"))
        self.assertEqual(page.evaluate("document.querySelectorAll('#intervals canvas').length"), 1)
        self.assertEqual(page.evaluate("data.comparison[0].rows.map((row) => [row.value, row.low, row.high])"),
                         [[0.6, 0.5, 0.72]])
        self.assertEqual(page.evaluate("runs.map((run) => run.name)"), ["slow, seed-1", "fast, seed-1"])
        self.assert_fits(page, 400)


class PlanPage(PageTest):
    def test_a_plan(self):
        page = self.open("--model", "llama-2-13b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "16..128",
                         command=("plan",), page="plan.html")
        self.assertGreaterEqual(page.evaluate("group.plots[0].series.length"), 3)
        self.assertEqual(page.evaluate("group.plots[0].scales.y.min"), 0, "the axis begins at zero")
        self.assertEqual(page.evaluate("Math.max(...group.plots[1].data.slice(1).flat())"), 0, "the fastest itself")
        self.assertEqual(page.evaluate("data.fastest.low.every((low, i) => low < data.fastest.speeds[i])"), True)
        self.assert_fits(page, 400)

    def test_labels_of_many_batches_stand_apart(self):
        batches = ",".join(str(16 * i) for i in range(1, 41))
        page = self.open("--model", "llama-3.2-1b", "--cluster", "h100-sxm", "--gpus", "2", "--global-batch", batches,
                         command=("plan",), page="plan.html")
        texts = page.evaluate("group.plots[0].axes[0]._values")
        places = page.evaluate("data.batches.map((batch) => group.plots[0].valToPos(batch, 'x'))")
        shown = [(text, place) for text, place in zip(texts, places, strict=True) if text]
        self.assertGreater(len(shown), 8)
        for (_, before), (text, place) in zip(shown, shown[1:]):
            self.assertGreater(place - before, 20, text)


class TheTestItself(PageTest):
    def test_a_page_that_is_too_wide_for_a_phone_is_noticed(self):
        page = self.browser.open(self.write("wide.html", "<meta name='viewport' content='width=device-width'>"
                                                         "<script>const group = {plots: []};</script>"
                                                         "<div style='width: 900px'>.</div>"))
        with self.assertRaises(AssertionError):
            self.assert_fits(page, 400)

    def test_a_browser_that_does_not_answer_is_noticed(self):
        page = self.browser.open(self.write("empty.html", ""))
        with unittest.mock.patch("browser.DEADLINE", 0.5), self.assertRaisesRegex(AssertionError, "said nothing"):
            page.evaluate("new Promise(() => {})")

    def test_a_page_that_asks_a_network_or_fails_is_noticed(self):
        page = self.browser.open(self.write("bad.html", "<img src='http://localhost:9/x'><script>missing();</script>"))
        self.assertTrue(any("missing" in complaint for complaint in page.complaints), page.complaints)
        self.assertIn("http://localhost:9/x", page.requests)


if __name__ == "__main__":
    if find_browser() is None:
        print("skipped: no Chromium; apt-get install chromium")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
