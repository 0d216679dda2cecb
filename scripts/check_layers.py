#!/usr/bin/env python3
"""Checks that no #include breaks the layering of the rooms (docs/design.md, section 3).

Usage: check_layers.py [ROOT]. Prints one line a violation, `file:line: what is wrong`, and exits 1 if there is any.

The rules:
1. a file of a room includes only its own room and rooms before it in ROOMS;
2. pure rooms include no tensors, threads, files or clocks (their tests may read files and clocks);
3. rooms that their CMakeLists.txt does not declare TORCH include no header of libtorch, but for the files in
   TORCH_FILES, which are libraries of their own;
4. no file sees both libtorch and a JSON, TOML or logging library, not even through headers of ours: the wheel's include
   folder carries its own versions of some of these, and compile times would add up;
5. <torch/torch.h>, which takes half a minute to compile, is for tests alone.
"""

import pathlib
import re
import sys
from typing import Iterator, NamedTuple

ROOMS = (
    "base strategy config schedule layout statistics performance orchestrator simulate report "
    "comm model data checkpoint train cli"
).split()
# config reads the files that a run configuration names.
PURE_ROOMS = [room for room in ROOMS[ROOMS.index("strategy") : ROOMS.index("simulate") + 1] if room != "config"]

TORCH_FILES = ["copus/comm/tcp_store.cpp"]

TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
IMPURE = re.compile(r"(thread|fstream|filesystem|chrono)$")
TEXT_LIBRARY = re.compile(r"(nlohmann|spdlog|fmt|toml\+\+)/|toml\.hpp$")
OUR_HEADER = re.compile(r"copus/(\w+)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


class Include(NamedTuple):
    line: int
    header: str


def read_includes(path: pathlib.Path) -> list[Include]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = ((number, INCLUDE.match(line)) for number, line in enumerate(lines, start=1))
    return [Include(number, match.group(1)) for number, match in found if match]


def declares_torch(room_folder: pathlib.Path) -> bool:
    build_file = room_folder / "CMakeLists.txt"
    if not build_file.exists():
        return False
    code = re.sub(r"#.*", "", build_file.read_text(encoding="utf-8"))
    return re.search(r"\bTORCH\b", code) is not None


class Tree:
    """The sources under `root`, with what each includes."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        paths = (path for folder in ("copus", "apps") for path in (root / folder).rglob("*"))
        sources = (path for path in paths if path.suffix in (".h", ".cpp", ".cu", ".cuh"))
        self.includes = {path.relative_to(root).as_posix(): read_includes(path) for path in sorted(sources)}

    def chain_to(self, source: str, pattern: re.Pattern) -> list[str] | None:
        """The shortest chain of headers by which `source` includes a header that matches, itself not listed."""
        seen, frontier = {source}, [(source, [])]
        while frontier:
            current, chain = frontier.pop(0)
            for include in self.includes.get(current, []):
                if pattern.match(include.header):
                    return chain + [include.header]
                if include.header not in seen:
                    seen.add(include.header)
                    frontier.append((include.header, chain + [include.header]))
        return None

    def violations(self) -> Iterator[str]:
        for source in self.includes:
            yield from self.violations_of(source)

    def violations_of(self, source: str) -> Iterator[str]:
        room_match = OUR_HEADER.match(source)
        room = room_match.group(1) if room_match else None
        is_test = pathlib.PurePosixPath(source).stem.endswith("_test")
        if room is not None and room not in ROOMS:
            yield f"{source}:1: '{room}' is not a room; the rooms are: {' '.join(ROOMS)}"
            return
        in_torch_room = room not in PURE_ROOMS and room is not None and declares_torch(self.root / "copus" / room)
        may_use_torch = room is None or in_torch_room or source in TORCH_FILES

        for line, header in self.includes[source]:
            where = f"{source}:{line}:"
            target = OUR_HEADER.match(header)
            if room and target and target.group(1) not in ROOMS[: ROOMS.index(room) + 1]:
                yield f"{where} {room} may not include {header}: {target.group(1)} is no room before it"
            if room in PURE_ROOMS and IMPURE.match(header) and not is_test:
                yield f"{where} {room} is a pure room and may not include <{header}>"
            if not may_use_torch and TORCH.match(header):
                yield f"{where} {room} is built without libtorch and may not include <{header}>"
            if header == "torch/torch.h" and not is_test:
                yield f"{where} <torch/torch.h> is for tests alone; include the narrow ATen headers"

        torch_chain = self.chain_to(source, TORCH)
        text_chain = self.chain_to(source, TEXT_LIBRARY)
        if torch_chain and text_chain:
            yield f"{source}:1: sees both {' -> '.join(torch_chain)} and {' -> '.join(text_chain)}"


def main() -> int:
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    tree = Tree(root)
    violations = list(tree.violations())
    for violation in violations:
        print(violation)
    print(f"{len(tree.includes)} files, {len(violations)} violations of the layering")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
