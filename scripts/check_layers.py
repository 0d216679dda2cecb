#!/usr/bin/env python3
"""Checks that no #include breaks the order of the rooms (docs/design.md, section 3).

Usage: check_layers.py [ROOT]. Prints one line per violation, `file:line: what is wrong`, and exits with 1 if there is
any.

The rules:
1. a file of a room includes only its own room and rooms before it in ROOMS; within a room that has smaller ones
   (SUB_ROOMS), it includes only the top of that room, its own smaller room and smaller rooms before that;
2. pure rooms include no tensors, threads, files or clocks (their tests may read files and clocks);
3. rooms whose CMakeLists.txt declares neither TORCH nor a torch part include no header of libtorch, except the files in
   TORCH_FILES, which are libraries of their own;
4. no file includes both libtorch and a JSON, TOML or logging library, not even through headers of ours: the wheel's
   include folder has its own versions of some of these, and compile times would add up;
5. <torch/torch.h>, which takes half a minute to compile, is for tests alone;
6. the contents of a room's folder `testing` are for tests, and for the workshop;
7. the room `train`, apart from `experiments`, includes nothing of the rooms in APART_FROM_TRAINING, not even
   through other headers;
8. only WALL_CLOCK_FILES read the wall clock, to write it down or compare it. It may be set while a job runs, so code
   that waits, measures or judges uses a steady clock.
"""

import pathlib
import re
import sys
from typing import Iterator, NamedTuple

ROOMS = (
    "base description config schedule placement statistics performance page plan record orchestrator simulate report "
    "adviser comm data checkpoint model train cli workshop"
).split()
# config reads the files that a run configuration names.
PURE_ROOMS = [room for room in ROOMS[ROOMS.index("description") : ROOMS.index("simulate") + 1] if room != "config"]

SUB_ROOMS = {
    "base": "text numbers process files".split(),
    "statistics": ["compared"],
    "performance": ["measured"],
    "orchestrator": ["baselines"],
    "report": "logs files progress viewers drawn".split(),
    "comm": "health shared_memory messages gpu timed job".split(),
    "model": "cpu gpu kernels memory layers".split(),
    "train": "optimizer recording step switch state trainer experiments run job".split(),
    "cli": "generate compare predict noise".split(),
    "workshop": "published self_test profile bench doctor".split(),
}
PURE_SUB_ROOMS = ["workshop/published"]
# Research and drawing. Training includes nothing of these, so readers who want to understand a run can skip them.
APART_FROM_TRAINING = ["page", "plan", "simulate", "statistics/compared", "orchestrator/baselines", "report/drawn"]
TESTING = "testing"

TORCH_FILES = ["copus/comm/job/meeting/tcp_store.cpp"]

# They write times of events, names of folders and ids of commands; the self-test reports how far hosts' clocks differ.
WALL_CLOCK_FILES = [
    "copus/report/files/control_files.cpp",
    "copus/report/viewers/tensorboard.cpp",
    "copus/train/run/run_output.cpp",
    "copus/train/run/run_plan.cpp",
    "copus/workshop/doctor/command.cpp",
    "copus/workshop/self_test/self_test.cpp",
]

WALL_CLOCK = re.compile(
    r"\b(system_clock|high_resolution_clock|utc_clock|file_clock|CLOCK_REALTIME\w*|gettimeofday|timespec_get"
    r"|std::time\(|time\((nullptr|NULL|0)\)|pthread_cond_timedwait|sem_timedwait)")
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
IMPURE = re.compile(r"(thread|fstream|filesystem|chrono)$")
APART = re.compile("copus/(%s)/" % "|".join(APART_FROM_TRAINING))
TEXT_LIBRARY = re.compile(r"(nlohmann|spdlog|fmt|toml\+\+)/|toml\.hpp$")
OUR_FILE = re.compile(r"copus/(\w+)/(?:(\w+)/)?")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


class Place(NamedTuple):
    """The place of a file of ours: a room and, if it is in one, a smaller room of that (else "")."""

    room: str
    inner: str

    @staticmethod
    def of(path: str) -> "Place | None":
        match = OUR_FILE.match(path)
        return Place(match.group(1), match.group(2) or "") if match else None

    @property
    def is_pure(self) -> bool:
        return self.room in PURE_ROOMS or f"{self.room}/{self.inner}" in PURE_SUB_ROOMS

    def may_include(self, other: "Place") -> bool:
        if self.room != other.room:
            return other.room in ROOMS[: ROOMS.index(self.room)]
        inner = SUB_ROOMS.get(self.room, [])
        if other.inner not in inner or self.inner == TESTING:
            return True
        return self.inner in inner and inner.index(other.inner) <= inner.index(self.inner)


class Include(NamedTuple):
    line: int
    header: str


def read_includes(path: pathlib.Path) -> list[Include]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = ((number, INCLUDE.match(line)) for number, line in enumerate(lines, start=1))
    return [Include(number, match.group(1)) for number, match in found if match]


def lines_with_wall_clock(path: pathlib.Path) -> list[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, start=1) if WALL_CLOCK.search(line.split("//")[0])]


def declares_torch(room_folder: pathlib.Path) -> bool:
    build_file = room_folder / "CMakeLists.txt"
    if not build_file.exists():
        return False
    code = re.sub(r"#.*", "", build_file.read_text(encoding="utf-8"))
    return re.search(r"copus_torch_part\(|copus_room\([^)]*\bTORCH\b", code) is not None


def named(place: Place) -> str:
    return f"{place.room}/{place.inner}" if place.inner else place.room


def is_training(place: Place | None) -> bool:
    return place is not None and place.room == "train" and place.inner not in ("experiments", TESTING)


def is_test_of_room(is_test: bool, place: Place, target: Place) -> bool:
    """Whether a test includes its own room, all of which it may include."""
    return is_test and place.room == target.room


class Tree:
    """The sources under `root`, with what each includes."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        paths = (path for folder in ("copus", "apps") for path in (root / folder).rglob("*"))
        sources = (path for path in paths if path.suffix in (".h", ".cpp", ".cu", ".cuh"))
        found = {path.relative_to(root).as_posix(): path for path in sorted(sources)}
        self.includes = {name: read_includes(path) for name, path in found.items()}
        self.wall_clock = {name: lines_with_wall_clock(path) for name, path in found.items()}

    def chain_to(self, source: str, pattern: re.Pattern) -> list[str] | None:
        """The shortest chain of headers through which `source` includes a header that matches, without that header."""
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
        place = Place.of(source)
        is_test = pathlib.PurePosixPath(source).stem.endswith("_test") or (place and place.inner == TESTING)
        if place and place.room not in ROOMS:
            yield f"{source}:1: '{place.room}' is not a room; the rooms are: {' '.join(ROOMS)}"
            return
        in_torch_room = place and not place.is_pure and declares_torch(self.root / "copus" / place.room)
        may_use_torch = place is None or in_torch_room or source in TORCH_FILES

        for line, header in self.includes[source]:
            where = f"{source}:{line}:"
            target = Place.of(header)
            if place and target and not is_test_of_room(is_test, place, target) and not place.may_include(target):
                yield f"{where} {named(place)} may not include {header}: {named(target)} is no room before it"
            if place and target and target.inner == TESTING and not is_test and place.room != "workshop":
                yield f"{where} {header} is for tests alone"
            if place and place.is_pure and IMPURE.match(header) and not is_test:
                yield f"{where} {named(place)} is a pure room and may not include <{header}>"
            if not may_use_torch and TORCH.match(header):
                yield f"{where} {named(place)} is built without libtorch and may not include <{header}>"
            if header == "torch/torch.h" and not is_test:
                yield f"{where} <torch/torch.h> is for tests alone; include the narrow ATen headers"

        if source not in WALL_CLOCK_FILES:
            for line in self.wall_clock[source]:
                yield f"{source}:{line}: the wall clock may be set while a job runs; go by std::chrono::steady_clock"

        apart = self.chain_to(source, APART) if is_training(place) else None
        if apart:
            yield f"{source}:1: training does without {named(Place.of(apart[-1]))}, and sees {' -> '.join(apart)}"

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
