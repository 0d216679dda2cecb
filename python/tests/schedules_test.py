"""Schedules go to other trainers and come back; what they refuse is refused before they do."""

import json
import math
import pathlib
import tempfile
import types
import unittest

from copus.integrations.schedules import BatchSchedule

SCHEDULES = [
    BatchSchedule(((0, 768),), 4096),
    BatchSchedule(((0, 8), (56, 16), (88, 8), (1001, 32)), 128),
    BatchSchedule(((0, 768), (61035136, 1536), (122070272, 3072)), 4096),
    BatchSchedule(((0, 1), (1, 3), (2, 7), (999, 2), (1234567, 5)), 1),
    BatchSchedule(tuple((index * 777 + (index > 0), 4 + index % 2) for index in range(200)), 2048),
    BatchSchedule(((0, 512), (10**9 + 7, 1024)), 8192),
]


def copus_reads(text: str, sequence_length: int) -> tuple[tuple[int, int], ...]:
    """As parse_step_schedule of copus/orchestrator/baselines/policy_schedule.cpp does: a plain number is of sequences."""
    pieces = []
    for piece in text.split():
        threshold, batch = piece.split(":")
        if threshold[-1] in "KMBT":
            thousands = "KMBT".index(threshold[-1]) + 1
            samples = math.floor(float(threshold[:-1]) * math.pow(1000, thousands) / sequence_length)
        else:
            samples = int(threshold)
        pieces.append((samples, int(batch)))
    return tuple(pieces)


class Schedules(unittest.TestCase):
    def test_a_schedule_comes_back_from_megatrons_notation(self):
        for schedule in SCHEDULES:
            self.assertEqual(BatchSchedule.parse(schedule.megatron(), schedule.sequence_length), schedule)

    def test_copus_reads_the_same_text_alike(self):
        for schedule in SCHEDULES:
            self.assertEqual(copus_reads(schedule.megatron(), schedule.sequence_length), schedule.pieces)

    def test_thresholds_are_as_short_as_they_can_be(self):
        # 250 B tokens are 61,035,156.25 sequences of 4096.
        schedule = BatchSchedule(((0, 768), (61035156, 1536)), 4096)
        self.assertEqual(schedule.megatron(), "0:768 250B:1536")

    def test_a_repeated_batch_is_no_piece(self):
        self.assertEqual(BatchSchedule(((0, 8), (16, 8), (32, 16)), 128).pieces, ((0, 8), (32, 16)))

    def test_what_is_no_schedule_is_named(self):
        for pieces, expected in [((), "at least one"), (((8, 8),), "begins at 0"), (((0, 8), (0, 16)), "not behind"),
                                 (((0, 0),), "at least 1")]:
            with self.assertRaisesRegex(ValueError, expected):
                BatchSchedule(pieces, 128)
        for text in ["0:8 16", "0:8 x:16", "0:8 16:y", "0:8 :16"]:
            with self.assertRaisesRegex(ValueError, "THRESHOLD:BATCH"):
                BatchSchedule.parse(text, 128)

    def test_olmo_core_gets_tokens_and_whole_factors(self):
        schedule = BatchSchedule(((0, 8), (56, 16), (88, 8)), 128)
        self.assertEqual(schedule.olmo_core(), {"batch_sizes": [1024, 2048, 1024], "starts": [0, 7168, 11264]})
        with self.assertRaisesRegex(ValueError, "whole factors.*8 becomes 12"):
            BatchSchedule(((0, 8), (56, 12)), 128).olmo_core()

    def test_levanter_gets_steps_that_train_the_same_batches(self):
        schedule = BatchSchedule(((0, 8), (56, 16), (90, 4), (93, 8)), 128)
        # 7 steps of 8 end at 56 and 3 of 16 behind 90, at 104, where the piece of 4 is over already.
        self.assertEqual(schedule.levanter(),
                         [{"start": 0, "value": 8}, {"start": 7, "value": 16}, {"start": 10, "value": 8}])
        consumed, step, batch = 0, 0, 0
        while consumed < 200:
            batch = [piece["value"] for piece in schedule.levanter() if piece["start"] <= step][-1]
            self.assertEqual(batch, schedule.batch_at(consumed), consumed)
            consumed, step = consumed + batch, step + 1

    def test_advice_counts_from_the_step_behind_it_on(self):
        advice = [types.SimpleNamespace(step=7, batch=16), types.SimpleNamespace(step=9, batch=8)]
        self.assertEqual(BatchSchedule.of_advice(advice, 8, 128).pieces, ((0, 8), (56, 16), (88, 8)))
        self.assertEqual(BatchSchedule.of_advice([], 8, 128).pieces, ((0, 8),))


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_directory = pathlib.Path(folder.name)
        (self.run_directory / "config.toml").write_text("[train]\nsequence_length = 128\n")

    def write(self, name, records, rest=""):
        (self.run_directory / name).write_text("".join(json.dumps(record) + "\n" for record in records) + rest)

    def test_what_was_trained(self):
        consumed, records = 0, []
        for step, batch in enumerate([8, 8, 16, 16, 8], start=1):
            consumed += batch
            records.append({"step": step, "consumed_samples": consumed, "global_batch": batch})
        self.write("run.jsonl", records, rest='{"step": 6, "cons')
        self.assertEqual(BatchSchedule.trained(self.run_directory), BatchSchedule(((0, 8), (16, 16), (48, 8)), 128))

    def test_what_was_advised(self):
        def decision(consumed, batch):
            target = None if batch is None else f"d=1,t=1,p=1,B={batch},b=4"
            return {"event": "decision", "step": 1, "consumed_samples": consumed, "current": "d=1,t=1,p=1,B=8,b=4",
                    "target": target, "moves": False}

        begin = {"event": "begin", "step": 0, "configuration": "d=1,t=1,p=1,B=8,b=4"}
        self.write("decisions.jsonl", [begin, decision(40, None), decision(80, 16), decision(120, 16), decision(160, None),
                                       {"event": "resumed", "step": 20}])
        self.assertEqual(BatchSchedule.advised(self.run_directory), BatchSchedule(((0, 8), (80, 16), (160, 8)), 128))

    def test_a_directory_without_logs_is_named(self):
        with self.assertRaisesRegex(ValueError, "no file .*run.jsonl"):
            BatchSchedule.trained(self.run_directory)
        self.write("run.jsonl", [])
        with self.assertRaisesRegex(ValueError, "no step"):
            BatchSchedule.trained(self.run_directory)
        self.write("decisions.jsonl", [])
        with self.assertRaisesRegex(ValueError, "no decisions"):
            BatchSchedule.advised(self.run_directory)


if __name__ == "__main__":
    unittest.main()
