"""The files of results: one row for each attempt at a case, as a JSON line. Its `stage` is "failed" if the program
failed, "interrupted" if the call ended first, and otherwise one of RESULTS."""

import json
import pathlib

RESULTS = ("G0", "trunk", "G1", "G2")
MOST_FAILURES = 2  # of a case


def read_rows(paths: list[pathlib.Path]) -> list[dict]:
    """Returns the rows of files, in their order. A case that has several results keeps the first. A trunk, which later
    calls train again, keeps the first of each call, and so do attempts without a result. Names missing files and lines
    that were not written completely, and leaves them out."""
    first = {}
    for path in paths:
        if not path.is_file():
            print(f"there is no {path}: its rows are not used")
            continue
        complete, _, rest = path.read_text().rpartition("\n")
        if rest:
            print(f"{path}: the last line is incomplete and is not used")
        for row in map(json.loads, complete.splitlines()):
            call = None if row["stage"] in ("G0", "G1", "G2") else row["call"]
            first.setdefault((row["case"], row["stage"], call), row)
    return list(first.values())


def finished(rows: list[dict]) -> set[str]:
    """Returns the cases that have a result."""
    return {row["case"] for row in rows if row["stage"] in RESULTS}


def by_case(rows: list[dict], stage: str) -> dict[str, list[dict]]:
    """Returns the rows of a stage for each case."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        if row["stage"] == stage:
            found.setdefault(row["case"], []).append(row)
    return found


def failure_text(row: dict) -> str:
    last = row["output"][-1] if row["output"] else "no output"
    return f"{row['case']} (exit code {row['exit_code']}: {last})"


def differing_trunk(rows: list[dict]) -> str | None:
    """Returns a message about a trunk that did not repeat its loss; None if all trunks did."""
    for case, calls in by_case(rows, "trunk").items():
        first = calls[0]
        for later in calls[1:]:
            if later["loss"] != first["loss"]:
                return (f"{case} has the loss {later['loss']} in call {later['call']} (program {later['program']}), "
                        f"but {first['loss']} in call {first['call']} (program {first['program']}). Branches of such "
                        "trunks cannot be compared, so no further branch is trained: find the cause, or keep the rows "
                        "of one of the calls.")
    return None
