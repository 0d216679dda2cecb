#!/usr/bin/env python3
"""Checks that readers can run the commands in README.md and docs/: every file that a command names is in the tree, is
made by an earlier command, is shown under "Save this as `NAME`", or is introduced by a sentence with "stands for".

Pages are read in the order in which README.md lists them. Whether the commands run is tested by
cli.documented_commands.
"""

import re
import unittest

from documented_commands import (ROOT, Command, commands_of, documented_commands, files_named, files_written, is_alike,
                                 outputs_of, page_text, saved_files, stand_ins)

IN_THE_TREE = re.compile(r"(bench|configs|copus|deploy|docs|python|scripts|tests|tools)(/|$)")


def unexplained(texts: dict[str, str]) -> list[str]:
    """The names in the commands of these pages, in reading order, that nothing explains."""
    wrong: list[str] = []
    made: set[str] = set()
    for page, text in texts.items():
        made |= saved_files(text).keys()
        explained = stand_ins(text)
        for command in commands_of(page, text):
            made |= files_written(command.text)
            for name in sorted(files_named(command.text) - explained):
                is_made = any(name == one or name.startswith((f"{one}/", f"{one}.")) for one in made)
                if not is_made and not (IN_THE_TREE.match(name) and (ROOT / name).exists()):
                    wrong.append(f"{command.place}: nothing makes or explains {name}: {command.text.splitlines()[0]}")
    return wrong


class Placeholders(unittest.TestCase):
    def test_every_file_that_a_command_names_is_there_or_explained(self):
        wrong = unexplained({page: page_text(page) for page in documented_commands()})
        self.assertFalse(wrong, "\n" + "\n".join(wrong))

    def wrong_with(self, *lines, prose=""):
        return unexplained({"page": f"{prose}\n```sh\n" + "\n".join(lines) + "\n```\n"})

    def test_finds_what_nothing_makes(self):
        for command in ("build/copus train RUN.toml", "build/copus report runs/b", "build/copus plan --model MODEL.json",
                        "build/copus plan --model my/config.json", "build/copus replay RUN",
                        "build/copus gns --model my-model", "build/copus train configs/runs/none.toml",
                        "build/copus train configs/runs/parallel.toml --set cluster.config=here.toml"):
            with self.subTest(command):
                self.assertEqual(len(self.wrong_with(command)), 1)

    def test_finds_what_is_made_too_late(self):
        self.assertEqual(len(self.wrong_with("build/copus report runs/b", "build/copus train configs/runs/parallel.toml "
                                             "--run-dir runs/b")), 1)

    def test_knows_what_earlier_commands_make(self):
        self.assertEqual(self.wrong_with(
            "build/copus train configs/runs/parallel.toml --run-dir runs/b", "build/copus report runs/b",
            "build/copus train configs/runs/parallel.toml --set adapt.file=runs/b/decisions.jsonl",
            "cat > x.toml <<'END'", "END", "build/copus train x.toml", "head -c 9 configs/runs/parallel.toml > y.txt",
            "python3 tools/tokenize_corpus.py y.txt --output data/y", "build/copus gns --data data/y",
            "build/copus compare x.toml", "build/copus report runs/x"), [])

    def test_knows_what_the_page_explains(self):
        train = "build/copus train RUN.toml --set model.config=my/config.json"
        self.assertEqual(self.wrong_with(train, prose="`RUN.toml` stands for a run, and\n`my/config.json` for its model."), [])
        self.assertEqual(len(self.wrong_with(train, prose="`RUN.toml` stands for a run. Take `my/config.json`.")), 1)
        self.assertEqual(unexplained({"page": "Save this as `a.toml`:\n\n```toml\nx\n```\n\n```sh\nbuild/copus train a.toml\n```"}),
                         [])


class Reading(unittest.TestCase):
    def commands(self, *lines):
        return [(command.line, command.text) for command in commands_of("page", "\n".join(lines))]

    def test_lines_are_joined_and_comments_dropped(self):
        self.assertEqual(self.commands("```sh", "one --a \\", "  two  # why", "", "# a remark", "three # and", "```"),
                         [(2, "one --a two"), (6, "three")])

    def test_what_spans_lines_is_one_command(self):
        self.assertEqual(self.commands("```sh", "cat > a <<'END'", "b  # kept", "END", "until c; do", "  d", "done", "```"),
                         [(2, "cat > a <<'END'\nb  # kept\nEND"), (5, "until c; do\n  d\ndone")])
        self.assertEqual(self.commands("```sh", "#!/bin/sh", "a", "b", "```"), [(2, "#!/bin/sh\na\nb")])

    def test_other_languages_are_no_commands_and_backticks_are(self):
        self.assertEqual(self.commands("```text", "build/copus no", "```", "see `build/copus watch r` and `copus x`"),
                         [(4, "build/copus watch r")])

    def test_output_is_of_the_command_right_before(self):
        page = "```sh\na\nb --c\n```\n\n```text\nsays\n```\n\nand\n\n```text\nnothing\n```\n"
        self.assertEqual(outputs_of("page", page), [(Command("page", 3, "b --c"), ["says"])])

    def test_saved_files_are_as_shown(self):
        self.assertEqual(saved_files("Save this as `a.toml`:\n\n```toml\n[a]\nb = 1\n```\nThen\n```sh\nc\n```\n"),
                         {"a.toml": "[a]\nb = 1\n"})


class Comparing(unittest.TestCase):
    def test_numbers_may_differ_in_their_last_digit_and_nothing_else_may(self):
        for one, other, alike in [("a 1,234 b", "a 1,235 b", True), ("a 1,234 b", "a 1,236 b", False), ("2.50 %", "2.49 %", True),
                                  ("2.50 %", "2.5 %", False), ("38,525 fit", "38,412 fit", False), ("GB 1", "GiB 1", False),
                                  ("a 1", "a  1", False), ("d=8,t=1", "d=8,t=1\n", False), ("", "", True),
                                  ("d=2,t=1", "d=1,t=2", False), ("d=8,t=1", "d=8t=1", False), ("100 s", "101 s", True)]:
            with self.subTest(f"{one} {other}"):
                self.assertEqual(is_alike(one, other), alike)


if __name__ == "__main__":
    unittest.main()
