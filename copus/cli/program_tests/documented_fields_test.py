"""Compares the fields of the JSON that small runs write with the tables of the documentation, both ways.

Usage: documented_fields_test.py PATH_TO_COPUS [unittest options], of a build with libtorch.
1. Every written key must be in backticks in the section about its file.
2. Every field in the first column of a table there (of decisions.jsonl: the second, event by event) must be written by
   these runs, unless NOT_WRITTEN_HERE says why not.
A section without a table of fields fails, and so does output without keys, because nothing would be compared.
"""

import json
import re
import signal
import sys
import unittest

from program_test_support import MODELLED_CLOCK, ROOT, VIRTUAL_CLUSTER, ProgramTest

FORMATS, BENCHES, PLAN = "docs/file-formats.md", "docs/benches.md", "docs/plan.md"
# Objects whose keys are data: paths, names of phases, of files, of policies' families.
DATA = {"held_out_losses", "phase_seconds", "pause_by_phase", "files", "by_worth", "by_growth", "by_job", "constants", "left_out"}
# The members of these are documented behind a link: the sums for the noise scale.
ELSEWHERE = {"noise_average", "sign_noise", "spectral_noise", "preconditioned_noise"}
NOT_WRITTEN_HERE = {
    "decisions.jsonl": {
        "state": "after 1,000 steps",
        "calibration": "where a run measures its critical batch; cli.modelled_clock writes it",
        "unmeasured": "an adviser's; adviser.AdviserTest writes it",
        "ranks changed": "where ranks fail; cli.heal writes it",
    },
    "JSON": {"tokens": "with --tokens alone", "document_length": "with --document-length alone",
             "optimizer": "with an --optimizer other than adamw"},
}

RUN = """
[parallel]
data_parallel = 2
""" + VIRTUAL_CLUSTER + """
[adapt]
policy = "copus"
global_batches = [8, 16]
interval_samples = 16
dwell_samples = 32
"""
JOB = """
[parallel]
data_parallel = 8
tensor_parallel = 2
pipeline_parallel = 4
""" + MODELLED_CLOCK + """
[adapt]
policy = "copus"
global_batches = [8, 16]
micro_batches = [1]
"""
EXPERIMENT = """
base = "run.toml"
set = ["adapt.policy=none", "train.max_steps=8", "evaluate.interval=0", "evaluate.interval_tokens=512"]
seeds = [1, 2]
screening_seeds = [3]
targets = [5.5]
final_loss = true
reference = "eight"
[[arm]]
name = "eight"
[[arm]]
name = "high"
group = "rates"
set = ["optimizer.lr=3e-3"]
[[arm]]
name = "low"
group = "rates"
set = ["optimizer.lr=1e-3"]
"""
# Two sets of two published runs each, and one run that is labelled out of memory although it fits.
PUBLISHED = """\
row_id,rank_set,group,framework,hardware,n_gpus,gpus_per_node,model,params_b,n_layers,hidden,heads,kv_heads,ffn,glu,vocab,\
seq_len,precision,dp,tp,pp,vpp,cp,sp,zero_stage,micro_batch,grad_accum,global_batch,recompute,notes,tokens_per_s_per_gpu,mem_gb,status
"""
PUBLISHED_RUN = ("{row},{set},g,nanotron,H100-80GB SXM,8,8,m,1.2,16,2048,16,16,8192,1,32000,2048,bf16,{dp},{tp},1,1,1,1,1,1,4,{batch},"
                 "none,,{speed},40,{status}\n")


def section_of(page: str, heading: str) -> str:
    sections = re.split(r"(?m)^## ", (ROOT / page).read_text(encoding="utf-8"))
    found = [text for text in sections if text.split("\n", 1)[0] == heading]
    assert len(found) == 1, f"{page} has {len(found)} sections {heading}"
    return found[0]


def names_in(text: str) -> set[str]:
    """The names in backticks, and the keys in examples of JSON."""
    spans = re.findall(r"`([^`]+)`", text) + re.findall(r"(?s)```json\n(.*?)```", text)
    return {name for span in spans for name in ([span] if re.fullmatch(r"\w+", span) else re.findall(r'"(\w+)":', span))}


def rows_of(text: str) -> list[list[str]]:
    """The cells of all rows in tables of fields."""
    rows, is_of_fields = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            is_of_fields = False
        elif re.match(r"(field|event)\b", cells[0]):
            is_of_fields = True
        elif is_of_fields and not cells[0].startswith("---"):
            rows.append(cells)
    return rows


def fields_of(text: str) -> set[str]:
    return {name for row in rows_of(text) for name in names_in(row[0])}


def events_of(text: str) -> dict[str, set[str]]:
    """The fields of each event in the table of decisions.jsonl."""
    events: dict[str, set[str]] = {}
    for row in rows_of(text):
        if row[0]:
            event = row[0].strip("`")
            events[event] = set()
        events[event] |= names_in(row[1])
    return events


def keys_of(value) -> set[str]:
    if isinstance(value, list):
        return {key for each in value for key in keys_of(each)}
    if not isinstance(value, dict):
        return set()
    inner = (keys_of(each) for key, each in value.items() if key not in DATA | ELSEWHERE)
    return set(value).union(*inner)


class Fields(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write_run("run.toml", steps=24, checkpoint_interval=12, more=RUN)
        text = (self.folder / "run.toml").read_text().replace("[optimizer]", "[optimizer]\nscale_beta2 = true")
        self.write("run.toml", text)

    def printed(self, *arguments):
        return json.loads(self.assert_done(*arguments).stdout)

    def read(self, path):
        return json.loads((self.folder / path).read_text())

    def lines(self, path):
        return [json.loads(line) for line in (self.folder / path).read_text().splitlines()]

    def assert_written(self, heading, documented, written):
        """Expects NOT_WRITTEN_HERE to list exactly the fields that are documented but not written."""
        allowed = NOT_WRITTEN_HERE.get(heading, {}).keys()
        self.assertEqual(sorted(documented - written - allowed), [], "in the section, and not written")
        self.assertEqual(sorted(allowed - documented), [], "in NOT_WRITTEN_HERE, and not in the section")

    def assert_documented(self, page, heading, *written, part=None):
        """`part`: words of the section from which on it counts."""
        text = section_of(page, heading)
        if part:
            text = part + text.split(part, 1)[1].split("\n\n**", 1)[0]
        keys, named, fields = ({re.sub("_quartiles$", "", name) if "quartiles beside" in text else name for name in names}
                               for names in (keys_of(list(written)), names_in(text), fields_of(text)))
        with self.subTest(f"{page}: {heading}"):
            self.assertTrue(keys, "the program has written no keys")
            self.assertTrue(fields, "the section has no table of fields")
            self.assertEqual(sorted(keys - named), [], "written, and not in the section")
            self.assert_written(heading, fields, keys)

    def assert_events_documented(self, events):
        documented = events_of(section_of(FORMATS, "decisions.jsonl"))
        written: dict[str, set[str]] = {}
        for event in events:
            written.setdefault(event["event"], set()).update(set(event) - {"event", "step", "after_step"})
        self.assertEqual(sorted(keys_of(events) - names_in(section_of(FORMATS, "decisions.jsonl"))), [])
        self.assertEqual(sorted(written.keys() - documented.keys()), [], "events written, and not in the section")
        self.assert_written("decisions.jsonl", documented.keys(), written.keys())
        for event, fields in written.items():
            self.assertEqual(fields, documented[event], f"the event {event}: written, and documented")

    def test_the_run_directory(self):
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=36")
        self.assert_documented(FORMATS, "run.jsonl", *self.lines("r/run.jsonl"))
        self.assert_documented(FORMATS, "summary.json", self.read("r/summary.json"))
        self.assert_documented(FORMATS, "profile.json", self.read("r/profile.json"))
        checkpoint = "r/checkpoints/step-00000036/"
        self.assert_documented(FORMATS, "Checkpoints", self.read(checkpoint + "training_state.json"), part="**training_state.json**")
        self.assert_documented(FORMATS, "Checkpoints", self.read(checkpoint + "manifest.json"), part="**manifest.json**")
        self.assert_documented(FORMATS, "copus gns --json", self.printed(
            "gns", "--checkpoint", "r", "--batches", "2", "--large-batch", "4", "--json"))
        other = self.printed("replay", "r", "--policy", "static", "--json")
        other["decisions"] = len(other["decisions"])  # a list of events, which have their own section
        self.assert_documented(FORMATS, "copus replay --json", self.printed("replay", "r", "--json"), other)
        self.write_run("steered.toml", steps=100000, more=RUN)
        steered = self.start("train", "steered.toml", "--run-dir", "s")
        self.wait_for_steps("s", 2, steered)
        self.assert_done("ctl", "s", "force", "B=16")
        steered.send_signal(signal.SIGINT)
        steered.communicate()
        self.assert_events_documented(self.lines("r/decisions.jsonl") + self.lines("s/decisions.jsonl"))

    def test_calibrations(self):
        self.write_run("calibrated.toml", steps=100)
        self.assert_done("train", "calibrated.toml", "--run-dir", "r", "--set", "train.global_batch=2", "--set", "train.micro_batch=2")
        self.assert_done("calibrate", "r", "--time", "600s")  # an upper limit; a quiet machine needs a sixth
        branches = [line for path in (self.folder / "r").glob("calibration/*/branches-*.jsonl") for line in self.lines(path)]
        self.assertTrue(branches)
        self.assert_documented(FORMATS, "calibration.json", self.read("r/calibration.json"), *branches)

    def test_comparisons(self):
        self.write("experiment.toml", EXPERIMENT)
        dry = self.printed("compare", "experiment.toml", "--dry-run", "--json")
        self.assert_documented(FORMATS, "copus compare --dry-run --json", dry)
        self.assert_done("compare", "experiment.toml", "--dir", "e")
        self.assert_documented(FORMATS, "results.json", self.read("e/results.json"))

    def test_predictions(self):
        self.write_run("job.toml", more=JOB)
        self.write("job.toml", (self.folder / "job.toml").read_text().replace("micro_batch = 4", "micro_batch = 1"))
        self.assert_documented(FORMATS, "copus simulate --json", self.printed("simulate", "job.toml", "--tokens", "1e9", "--targets", "6",
                                                                              "--json"))
        self.assert_documented(PLAN, "JSON", self.printed("plan", "--model", "llama-2-13b", "--cluster", "h100-sxm", "--gpus", "16",
                                                          "--global-batch", "32,64", "--explain", "d=16", "--json"))

    def test_the_bench_of_published_runs(self):
        runs = [PUBLISHED_RUN.format(row=10 * number + dp, set=f"R{number}", dp=dp, tp=8 // dp, batch=4 * dp, speed=1000 * dp, status="")
                for number in (1, 2) for dp in (8, 4)]
        failure = PUBLISHED_RUN.format(row=31, set="", dp=8, tp=1, batch=32, speed="", status="OOM Error")
        self.write("runs.csv", PUBLISHED + "".join(runs))
        self.write("failures.csv", PUBLISHED + failure)
        printed = self.printed("bench", "model", "--data", "runs.csv", "--failures", "failures.csv", "--runs", "--json")
        self.assertTrue(printed["misjudged"])
        self.assert_documented(BENCHES, "copus bench model", printed)

    def test_benches(self):
        shape = ["--model", "tiny-llama", "--sequence-length", "8", "--micro-batch", "1", "--steps", "1"]
        for bench, options in {
                "step": shape, "gns": ["--shapes", "tiny", "--steps", "4"], "decide": ["--rounds", "1"],
                "comm": ["--ranks", "2", "--largest", "64", "--rounds", "1"], "agreement": ["--ranks", "8", "16"],
                "relayout": ["--parameters", "tiny", "--from", "t=2", "--to", "p=2", "--rounds", "1"],
                "regret": ["--scenarios", "1", "--policy", "static", "--steps", "200", "--interval-steps", "64"]}.items():
            self.assert_documented(BENCHES, f"copus bench {bench}", self.printed("bench", bench, *options, "--json"))


class Reading(unittest.TestCase):
    def test_fields_and_events_are_read_from_tables(self):
        text = ("| field | meaning |\n|---|---|\n| `a`, `b` | of `c` |\n\n| file | is |\n|---|---|\n| `d` | no field |\n")
        self.assertEqual(fields_of(text), {"a", "b"})
        self.assertEqual(names_in(text), {"a", "b", "c", "d"})
        text = "| event | field |\n|---|---|\n| `x` | | at first\n| | `a`, `b` |\n| `y z` | `c` |\n"
        self.assertEqual(events_of(text), {"x": {"a", "b"}, "y z": {"c"}})

    def test_keys_are_those_of_all_levels_but_data(self):
        self.assertEqual(keys_of([{"a": [{"b": 1}], "files": {"x.txt": 1}}]), {"a", "b", "files"})


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
