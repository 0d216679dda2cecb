#!/usr/bin/env python3
"""Checks the names in the documentation against the tree: if a file, function, test or heading is renamed, the pages
must be updated.

Checked are README.md, CONTRIBUTING.md, everything under docs/ and the README of every room:
1. paths of our files, in backticks or in blocks of code, exist;
2. the first column of a table of files in a room's README names files or folders of that room;
3. a test in CTest's notation, `room.Suite.Name`, is in that room;
4. a relative link leads to a file and, if it has an anchor, to a heading of it;
5. a type, a `Class::function` or a `function()` in docs/tour.md is in the file that was last named by its whole path
   before it in the same paragraph or list item.
"""

import fnmatch
import functools
import pathlib
import re
import tempfile
import unittest
from typing import Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = "apps bench cmake configs copus deploy docs python scripts tests tools".split()
TOUR = "docs/tour.md"

# Files of other projects that our pages mention.
FOREIGN = {"modeling_llama.py", "nccl.h", "sysexits.h"}

CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"#+ +(.*)")
PATH = re.compile(r"[\w*][\w.+*/-]*")
OURS = re.compile(rf"(?:{'|'.join(FOLDERS)})/")
SOURCE = re.compile(r"\.(?:h|cpp|cu|py|md|cmake)$")
TEST = re.compile(r"([a-z]+)\.([A-Z]\w+)\.([A-Z]\w+)")
NAME = re.compile(r"((?:\w+::)*)(\w+)(\(\))?")


class Line(NamedTuple):
    page: str
    number: int
    text: str
    is_code: bool  # within a block of code
    table: str  # the first cell of the header of the table that the line is in, else ""

    def wrong(self, what: str) -> str:
        return f"{self.page}:{self.number}: {what}"


def read_lines(page: str, text: str) -> list[Line]:
    lines, is_code, table = [], False, ""
    for number, line in enumerate(text.splitlines(), start=1):
        fence = line.lstrip().startswith("```")
        if not line.startswith("|"):
            table = ""
        elif not table:
            table = line.split("|")[1].strip() or "-"
        lines.append(Line(page, number, line, is_code and not fence, table))
        is_code ^= fence
    return lines


def anchor_of(heading: str) -> str:
    """The anchor that GitHub makes."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def declares(source: str, scope: str, name: str, is_call: bool) -> bool:
    """Whether a source names a function or a type. `scope`: its class, else ""."""
    word = rf"\b{name}\b" + (r"\s*\(" if is_call else "")
    if not scope:
        return re.search(word, source) is not None
    in_class = re.search(rf"\b(?:class|struct)\s+(?:\w+::)*{scope}\b", source) and re.search(word, source)
    return re.search(rf"\b{scope}::{name}\b", source) is not None or in_class is not None


class Tree:
    """The pages under `root`, and the files that they may name."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        paths = [*root.iterdir(), *(path for folder in FOLDERS for path in (root / folder).rglob("*"))]
        self.paths = {path.relative_to(root).as_posix() for path in paths if "__pycache__" not in path.parts}
        rooms = sorted(path for path in self.paths if re.fullmatch(r"copus/\w+/README\.md", path))
        docs = sorted(path for path in self.paths if re.fullmatch(r"docs/.*\.md", path))
        self.pages = [page for page in ("README.md", "CONTRIBUTING.md", *docs, *rooms) if page in self.paths]

    @functools.cache
    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def lines(self, page: str) -> list[Line]:
        return read_lines(page, self.text(page))

    def find(self, page: str, name: str) -> list[str]:
        """The paths that a name on a page may mean. The end of a path suffices; in a room's README, a bare name means
        that room's file."""
        is_of_room = page.startswith("copus/") and "/" not in name
        room = f"{pathlib.PurePosixPath(page).parent}/" if is_of_room else ""
        ending = name.rstrip("/")
        return [path for path in self.paths if path.startswith(room) and fnmatch.fnmatchcase(f"/{path}", f"*/{ending}")]

    def wrong_names(self) -> Iterator[str]:
        for page in self.pages:
            for line in self.lines(page):
                yield from self.wrong_paths(line)
                yield from self.wrong_tests(line)
                yield from self.wrong_links(line)
        if TOUR in self.paths:
            yield from self.wrong_in_tour()

    def wrong_paths(self, line: Line) -> Iterator[str]:
        words = line.text.split() if line.is_code else [w for span in CODE.findall(line.text) for w in span.split()]
        for word in words:
            word = word.strip("\"',:;()")
            looks_like_ours = OURS.match(word) or (SOURCE.search(word) and not line.is_code)
            if PATH.fullmatch(word) and looks_like_ours and word not in FOREIGN and not self.find(line.page, word):
                yield line.wrong(f"there is no {word}")
        if line.page.startswith("copus/") and line.table in ("file", "folder"):
            for name in CODE.findall(line.text.split("|")[1]):
                if not self.find(line.page, name) and not self.find(line.page, f"{name}.*"):
                    yield line.wrong(f"there is no {name} in this room")

    def wrong_tests(self, line: Line) -> Iterator[str]:
        for match in filter(None, map(TEST.fullmatch, CODE.findall(line.text))):
            room, suite, name = match.groups()
            sources = [path for path in self.paths if path.startswith(f"copus/{room}/") and path.endswith("_test.cpp")]
            test = re.compile(rf"\bTEST(?:_[FP])?\(\s*{suite},\s*{name}\)")
            if not any(test.search(self.text(path)) for path in sources):
                yield line.wrong(f"there is no test {room}.{suite}.{name}")

    def wrong_links(self, line: Line) -> Iterator[str]:
        for link in [] if line.is_code else LINK.findall(line.text):
            path, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            target = (self.root / line.page).parent.joinpath(path) if path else self.root / line.page
            if not target.exists():
                yield line.wrong(f"the link leads to {path}, which does not exist")
            elif anchor and anchor not in self.anchors(target.resolve().relative_to(self.root.resolve()).as_posix()):
                yield line.wrong(f"{path or 'the page'} has no heading #{anchor}")

    def anchors(self, page: str) -> set[str]:
        headings = (HEADING.fullmatch(line.text) for line in self.lines(page) if not line.is_code)
        return {anchor_of(match.group(1)) for match in headings if match}

    def wrong_in_tour(self) -> Iterator[str]:
        file = None
        for line in self.lines(TOUR):
            if re.match(r"\s*$|#|- |\d+\. ", line.text):
                file = None  # every paragraph and every item of a list names its own files
            for span in CODE.findall(line.text):
                if SOURCE.search(span):
                    file = span if span in self.paths else None
                    continue
                match = NAME.fullmatch(span)
                if not match or not (match[1] or match[3] or re.match(r"[A-Z]\w*[a-z]", span)):
                    continue
                scope = match[1].removesuffix("::").rsplit("::", 1)[-1]
                if file is None:
                    yield line.wrong(f"{span} is named without its file")
                elif not declares(self.text(file), scope, match[2], bool(match[3])):
                    yield line.wrong(f"{file} has no {span}")


class Documentation(unittest.TestCase):
    def test_every_name_exists(self):
        tree = Tree(ROOT)
        self.assertGreater(len(tree.pages), 30)
        wrong = list(tree.wrong_names())
        self.assertFalse(wrong, "\n" + "\n".join(wrong))


SMALL_TREE = {
    "README.md": "See [the guide](docs/guide.md#a-runs-life), [this](#the-end).\n\n## The end\n",
    "docs/guide.md": "# Guide\n\n## A run's life\n\n`scripts/a --all`, `copus/train/*_test.cpp`, `train.Step.Adds`\n",
    "docs/tour.md": "# Tour\n\n`copus/train/step.h` `Step::add` and `add_up()` make\na `Sum`.\n",
    "copus/train/README.md": "| file | holds |\n|---|---|\n| `step` | a step of `base/sum.h` |\n",
    "copus/train/step.h": "struct Sum {};\nclass Step { void add(); };\nvoid add_up();\n",
    "copus/train/step_test.cpp": "TEST(Step, Adds) {}\n",
    "copus/base/sum.h": "",
    "scripts/a": "",
}


class DocumentationTest(unittest.TestCase):
    def wrong_with(self, planted: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in (SMALL_TREE | planted).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return list(Tree(root).wrong_names())

    def assert_one_wrong(self, page: str, text: str, expected: str) -> None:
        self.assertEqual([expected], self.wrong_with({page: text}))

    def test_accepts_names_that_exist(self):
        self.assertEqual(self.wrong_with({}), [])

    def test_finds_a_path_that_does_not_exist(self):
        self.assert_one_wrong("README.md", "a\n`copus/train/stop.h`\n", "README.md:2: there is no copus/train/stop.h")
        self.assert_one_wrong("README.md", "`stop.h`\n", "README.md:1: there is no stop.h")
        self.assert_one_wrong("README.md", "`scripts/b -x`\n", "README.md:1: there is no scripts/b")
        self.assert_one_wrong("README.md", "```sh\nscripts/b\n```\n", "README.md:2: there is no scripts/b")

    def test_finds_a_file_of_another_room_in_a_rooms_readme(self):
        self.assert_one_wrong("copus/train/README.md", "`sum.h`\n", "copus/train/README.md:1: there is no sum.h")

    def test_finds_a_row_of_a_table_of_files_that_are_not_there(self):
        self.assert_one_wrong("copus/train/README.md", "| file | holds |\n|---|---|\n| `stop`, `step` | |\n",
                              "copus/train/README.md:3: there is no stop in this room")

    def test_finds_a_test_that_does_not_exist(self):
        self.assert_one_wrong("docs/guide.md", "## A run's life\n`train.Step.Takes`\n",
                              "docs/guide.md:2: there is no test train.Step.Takes")

    def test_finds_a_link_to_nothing(self):
        self.assert_one_wrong("README.md", "[a](docs/no.md)\n",
                              "README.md:1: the link leads to docs/no.md, which does not exist")
        self.assert_one_wrong("README.md", "[a](docs/guide.md#no)\n", "README.md:1: docs/guide.md has no heading #no")
        self.assert_one_wrong("README.md", "[a](#no)\n", "README.md:1: the page has no heading #no")

    def test_finds_a_name_of_the_tour_that_is_not_in_its_file(self):
        for name in ("Step::take", "take()", "Stop", "Stop::add"):
            with self.subTest(name):
                self.assert_one_wrong(TOUR, f"`copus/train/step.h` `{name}`\n",
                                      f"docs/tour.md:1: copus/train/step.h has no {name}")
        self.assert_one_wrong(TOUR, "`copus/train/step.h`\n\n`Step::add`\n",
                              "docs/tour.md:3: Step::add is named without its file")


if __name__ == "__main__":
    unittest.main()
