"""Compares the options of `copus` with those in the documentation, both ways.

Usage: documented_options_test.py PATH_TO_COPUS [unittest options], of a build with libtorch.
Only code counts: code blocks and text in backticks. A section begins with its heading.
1. Each option in a command's --help must be documented for that command in a section of README.md or docs/*.md. The
   option must follow `copus COMMAND`, or be without a command in a section whose code or heading has `copus COMMAND`.
2. Every option after `copus COMMAND` on a page must be in the --help of that command.
"""

import functools
import re
import sys
import unittest

from program_test_support import ROOT, ProgramTest

sys.path.insert(0, str(ROOT / "scripts"))
from documented_commands import page_text, pages  # noqa: E402

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
IN_EVERY_COMMAND = {"--help"}


def sections_of(text: str) -> list[str]:
    """The text before the first heading, then each heading with the text after it. In code blocks, `#` does not begin a
    heading."""
    sections, is_in_block = [""], False
    for line in text.splitlines(keepends=True):
        is_in_block ^= bool(re.match(r" *```", line))
        if not is_in_block and re.match(r"#+ ", line):
            sections.append("")
        sections[-1] += line
    return sections


def heading_of(section: str) -> str:
    """The words of its heading; empty for the text before the first heading."""
    return match[1] if (match := re.match(r"#+ (.*)", section)) else ""


def code_of(text: str) -> list[str]:
    """The lines of code blocks, with continued lines joined, and the spans in backticks."""
    parts = re.split(r"(?m)^ *```.*\n", text)
    blocks = "".join(parts[1::2]).replace("\\\n", " ")
    spans = re.findall(r"`([^`]+)`", "\n\n".join(parts[::2]))
    return [re.sub(r"\s# .*", "", line) for line in blocks.splitlines()] + [" ".join(span.split()) for span in spans]


def calls_in(line: str, commands: list[str]) -> list[tuple[str, list[str]]]:
    """(command, options) for every `copus COMMAND` in a line of code."""
    names = "|".join(sorted(commands, key=len, reverse=True))
    call = re.compile(rf"(?:^|[\s/(])copus ({names})(?![\w-])([^;|]*)")
    return [(match[1], OPTION.findall(match[2])) for match in call.finditer(line)]


def options_used(text: str, commands: list[str]) -> list[tuple[str, str]]:
    """(command, option) for every option that a page gives to a command."""
    return [(command, option) for line in code_of(text) for command, options in calls_in(line, commands) for option in options]


def options_documented(section: str, commands: list[str]) -> set[tuple[str, str]]:
    """(command, option) for every option that a section gives to a command, or has in code next to a command."""
    lines = [heading_of(section), *code_of(section)]
    calls = [call for line in lines for call in calls_in(line, commands)]
    alone = [option for line in lines if not calls_in(line, commands) for option in OPTION.findall(line)]
    return {(command, option) for command, options in calls for option in [*options, *alone]}


class Options(ProgramTest):
    @functools.cache
    def help_of(self, *command: str) -> str:
        return self.assert_done(*command, "--help").stdout

    def options_of(self, command: str) -> set[str]:
        return set(re.findall(r"(?m)^  .*?(--[\w-]+)", self.help_of(*command.split()).split("\nExample")[0])) | {
            name for names in re.findall(r"(?m)^  (-\S+)", self.help_of(*command.split())) for name in OPTION.findall(names)}

    def test_every_option_is_documented_with_its_command(self):
        commands = self.commands()
        documented = {pair for page in pages() for section in sections_of(page_text(page))
                      for pair in options_documented(section, commands)}
        options = {command: self.options_of(command) for command in commands}
        self.assertEqual([command for command in commands if not options[command]], [], "--help lists no option")
        wrong = [f"copus {command} {option}" for command in commands
                 for option in sorted(options[command] - IN_EVERY_COMMAND) if (command, option) not in documented]
        self.assertFalse(wrong, "no section gives the command this option in code:\n" + "\n".join(wrong))

    def test_every_option_of_a_documented_command_is_there(self):
        options = {command: self.options_of(command) for command in self.commands()}
        used = [(page, command, option) for page in pages() for command, option in options_used(page_text(page), list(options))]
        self.assertTrue(used, "no page gives a command any option")
        wrong = [f"{page}: copus {command} has no {option}" for page, command, option in used if option not in options[command]]
        self.assertFalse(wrong, "\n" + "\n".join(wrong))


class Reading(unittest.TestCase):
    def test_options_of_commands_are_found(self):
        page = ("`copus train A --set b=c` and `--json`, `copus bench step\n--as d`.\n"
                "```sh\nbuild/copus train A \\\n  --resume # --not-this\ntorchrun --no-python build/copus train --dry-run; copus ctl\n```\n")
        self.assertEqual(options_used(page, ["train", "bench", "bench step", "ctl"]),
                         [("train", "--resume"), ("train", "--dry-run"), ("train", "--set"), ("bench step", "--as")])

    def test_only_code_documents_an_option(self):
        section = ("# How\nAs `copus gns` says, plan --top and `--seed`; also `copus plan --json`.\n"
                   "```sh\nbuild/copus gns --data d  # --batches 2\n```\n")
        self.assertEqual(options_documented(section, ["gns", "plan"]),
                         {("gns", "--seed"), ("gns", "--data"), ("plan", "--seed"), ("plan", "--json")})

    def test_words_of_prose_are_no_command(self):
        self.assertEqual(options_documented("# A\nTo watch a run: `--wait`, `watch`.\n", ["watch"]), set())

    def test_a_heading_names_a_command(self):
        self.assertEqual(options_documented("## copus bench step\nWith `--as`.\n", ["bench", "bench step"]),
                         {("bench step", "--as")})

    def test_sections_begin_with_headings_alone(self):
        page = "before\n# a\n```sh\n# no heading\n```\n## b\n"
        self.assertEqual(sections_of(page), ["before\n", "# a\n```sh\n# no heading\n```\n", "## b\n"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
