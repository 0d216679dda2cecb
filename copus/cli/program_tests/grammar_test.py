"""Tests that all commands read and print configurations in the same way. They accept the same strings, refuse others
with the same message, and read what any other command prints. adaptation_test.py tests what a running job prints.

Usage: grammar_test.py PATH_TO_COPUS [unittest options].
"""

import json
import re
import sys
import unittest

from program_test_support import WITH_TORCH, ProgramTest

# Configurations of two ranks.
GOOD = [
    "d=2",
    "b=1,B=16,p=1,t=1,d=2",
    "d=2,t=1,p=1,B=16,b=4,zero=1",
    "p=2,v=2,schedule=interleaved",
    "schedule=zb-h1,p=2,recompute=attention",
    "t=2,sp=1",
    "d=2,v=1,schedule=1f1b,sp=0,zero=0,recompute=none",
]
BAD = {
    "": 'its value is empty; give one, or leave the option out',
    " ": 'is no part of a configuration; expected NAME=VALUE, separated by commas, as in d=2,t=1,p=2,B=32,b=4',
    "d=2,": '"" is no part of a configuration; expected NAME=VALUE',
    "d": '"d" is no part of a configuration; expected NAME=VALUE',
    "d=": '"d=": expected a whole number from 1 to 131072',
    "d=0": '"d=0": expected a whole number from 1 to 131072',
    "d=2.0": '"d=2.0": expected a whole number',
    "b=16777217": '"b=16777217": expected a whole number from 1 to 16777216',
    "zero=4": '"zero=4": expected a whole number from 0 to 3',
    "sp=yes": '"sp=yes": expected a whole number from 0 to 1',
    "schedule=2f2b": '"schedule=2f2b": expected one of gpipe, 1f1b, interleaved, zb-h1',
    "recompute=some": '"recompute=some": expected one of none, attention, full',
    "d=2,d=2": '"d" is given twice',
    "d=2,q=1": '"q=1": a configuration has no "q"; its parts are d (data parallelism), t (',
    "d=2,shedule=1f1b": 'did you mean "schedule"?',
}
PLAN = ["plan", "--model", "llama-3.2-3b", "--cluster", "h100-sxm", "--gpus", "2", "--global-batch", "16"]
# Words of each command with a configuration at the end, and the command's next message after it accepts the
# configuration.
COMMANDS = {
    "ctl": (["ctl", "r", "force"], "there is no run in r"),
    "plan": ([*PLAN, "--plot", "plot.png", "--explain"], "--plot plot.png"),
}
if WITH_TORCH:
    COMMANDS |= {
        "profile": (["profile", "--config", "nowhere.toml", "--cell"], "nowhere.toml"),
        "from": (["bench", "relayout", "--parameters", "tiny", "--to", "d=64", "--from"], "has 2 ranks and --to d=64"),
        "to": (["bench", "relayout", "--parameters", "tiny", "--from", "d=64", "--to"], "has 64 ranks and --to "),
    }
CONFIGURATION = re.compile(r"d=\d+,t=\d+,p=\d+(?:,\w+=[\w-]+)*")


class Grammar(ProgramTest):
    def assert_says(self, words, *arguments):
        result = self.copus(*arguments)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("copus: error:"), 1, result.stderr)
        self.assertIn(words, result.stderr)

    def assert_read_everywhere(self, *configurations):
        for configuration in configurations:
            for name, (arguments, accepted) in COMMANDS.items():
                with self.subTest(command=name, configuration=configuration):
                    self.assert_says(accepted, *arguments, configuration)

    def test_good_ones_are_read_by_every_command(self):
        self.assert_read_everywhere(*GOOD)

    def test_bad_ones_are_refused_alike_by_every_command(self):
        for configuration, message in BAD.items():
            for name, (arguments, _) in COMMANDS.items():
                with self.subTest(command=name, configuration=configuration):
                    self.assert_says(message, *arguments, configuration)

    def printed(self, *arguments):
        found = CONFIGURATION.findall(self.assert_done(*arguments).stdout)
        self.assertTrue(found, arguments)
        return sorted(set(found))

    def test_what_a_plan_prints_is_read(self):
        explained = self.printed(*PLAN, "--explain", "t=2")
        self.assert_read_everywhere(*explained)
        sweep = self.printed(*PLAN[:-1], "8..64")
        for configuration in explained + sweep:
            text = self.assert_done(*PLAN, "--explain", configuration).stdout
            self.assertIn(configuration, text)
            self.assertNotIn("impossible", text)

    def test_explained_at_the_batch_that_is_named(self):
        text = self.assert_done(*PLAN, "--explain", "d=2,B=48").stdout
        self.assertEqual(re.findall(r"Global batch (\d+)", text), ["48"])

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_what_a_self_test_prints_is_read(self):
        forms = self.printed("selftest", "--ranks", "2", "--device", "cpu")
        self.assertGreater(len(forms), 1)
        for form in forms:
            self.assertNotIn("impossible", self.assert_done(*PLAN, "--explain", form).stdout)

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_what_a_profile_prints_is_the_same_cell_again(self):
        self.write("cluster.toml", "ranks_per_node = 2\nteraflops_per_rank = 0.01\n"
                   "within_node = { latency_microseconds = 1, gigabytes_per_second = 8 }\n"
                   "between_nodes = { latency_microseconds = 1, gigabytes_per_second = 8 }\n")
        profile = ["profile", "--config", "run.toml", "--cluster", "cluster.toml", "--set", "parallel.zero_stage=1",
                   "--set", "parallel.data_parallel=2", "--steps", "1", "--rounds", "1", "--json"]

        def measured(*cells):
            arguments = [word for cell in cells for word in ("--cell", cell)]
            return [row["cell"] for row in json.loads(self.assert_done(*profile, *arguments).stdout)["cells"]]

        printed = measured("b=2", "zero=0")
        self.assertEqual(printed, ["d=2,t=1,p=1,B=8,b=2,zero=1", "d=2,t=1,p=1,B=8,b=4,zero=0"])
        self.assertEqual(measured(*printed), printed)
        self.assert_read_everywhere(*printed)

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_what_a_changed_layout_prints_is_read(self):
        result = self.assert_done("bench", "relayout", "--parameters", "tiny", "--rounds", "1", "--json",
                                  "--directory", str(self.folder), "--from", "p=2,v=2,schedule=interleaved",
                                  "--to", "d=2,b=2")
        there = json.loads(result.stdout)["rows"][0]
        self.assertEqual(there["from"], "d=1,t=1,p=2,B=8,b=1,v=2,schedule=interleaved")
        self.assertEqual(there["to"], "d=2,t=1,p=1,B=8,b=2")
        self.assert_read_everywhere(there["from"], there["to"])

    def test_examples_of_the_help_are_read(self):
        for command in (["ctl"], ["plan"], *([["profile"], ["bench", "relayout"]] if WITH_TORCH else [])):
            text = self.assert_done(*command, "--help").stdout
            examples = re.findall(r"(?:force|--explain|--cell|--from|--to|usually|or) ([dtpBb]=[^\s;]+)", text)
            self.assertTrue(examples, text)
            for example in examples:
                self.assert_says("no run in", "ctl", "r", "force", example.rstrip(","))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
