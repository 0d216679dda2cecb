#!/usr/bin/env python3
"""Collects the results of scripts/gpu-check into one gpu-check.json, and prints a summary. The last line of the summary
says whether Copus works on this machine as it should."""

import json
import pathlib
import sys
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench/gpu"))

from results import aim_lines, report_lines  # noqa: E402


def read_phases(folder: pathlib.Path) -> list[dict]:
    rows = [line.split("\t") for line in (folder / "phases.tsv").read_text().splitlines()]
    return [{"name": name, "seconds": float(seconds), "outcome": outcome} for name, seconds, outcome in rows]


def read_tests(path: pathlib.Path) -> list[dict]:
    """Reads CTest's JUnit file, which is missing if CTest was stopped."""
    if not path.is_file():
        return []
    outcomes = {"run": "passed", "fail": "failed", "disabled": "skipped", "notrun": "skipped"}
    return [
        {
            "name": case.get("name"),
            "seconds": float(case.get("time", 0)),
            "outcome": outcomes.get(case.get("status"), case.get("status")),
        }
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase")
    ]


def read_json(path: pathlib.Path) -> dict | None:
    """None if the phase that writes the file was stopped or left out."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def count_outcomes(tests: list[dict]) -> dict[str, int]:
    return {name: sum(test["outcome"] == name for test in tests) for name in ("passed", "failed", "skipped")}


def self_test_line(result: dict | None) -> str:
    if not result:
        return "self-test of ranks on one GPU: not run"
    counted = ", ".join(f"{len(result.get(what, []))} {what}" for what in ("groups", "layouts", "relayouts"))
    shortened = ", shortened for want of time" if result["shortened"] else ""
    verdict = "passed" if result["passed"] else "FAILED"
    return f"self-test of {len(result['ranks'])} ranks on one GPU: {verdict} ({counted}{shortened})"


def relayout_line(row: dict) -> str:
    moved, received = row["bytes_moved"] / 2**20, row["bytes_received"] / 2**20
    return (
        f"{row['ranks']} ranks on one GPU, {row['from']} -> {row['to']}: pause {row['pause_seconds'] * 1e3:.1f} ms; "
        f"moves {moved:,.0f} MiB, {received:,.0f} between ranks, which takes {row['bound_seconds'] * 1e3:.1f} ms at "
        f"{row['copy_bytes_per_second'] / 1e9:.1f} GB/s; {row['pause_over_limit']:.2f} of 1.5 times that + 20 ms"
    )


def verdict_lines(
    tests: list[dict], self_test: dict | None, relayout: dict | None, measurements: dict | None
) -> list[str]:
    counted = ", ".join(f"{count} {name}" for name, count in count_outcomes(tests).items())
    lines = [f"tests on the GPU: {counted if tests else 'not run'}", self_test_line(self_test)]
    lines += [relayout_line(row) for row in relayout["rows"]] if relayout else ["re-layout on one GPU: not measured"]
    return lines + aim_lines(measurements or {"cases": []})


def main(folder: pathlib.Path) -> None:
    phases = read_phases(folder)
    tests = read_tests(folder / "tests.xml")
    self_test, relayout, measurements = (
        read_json(folder / f"{name}.json") for name in ("selftest", "relayout", "measure")
    )
    everything = {
        "phases": phases, "tests": tests, "selftest": self_test, "relayout": relayout, "measurements": measurements
    }
    (folder / "gpu-check.json").write_text(json.dumps(everything, indent=1) + "\n")

    if measurements:
        print("", *report_lines(measurements, with_aims=False), sep="\n")
    print()
    for phase in phases:
        print(f"  {phase['name']:<12} {phase['seconds']:7.1f} s  {phase['outcome']}")
    for test in tests:
        if test["outcome"] == "failed":
            print(f"    failed: {test['name']}")
    print(f"  everything is in {folder / 'gpu-check.json'}\n")
    print("\n".join(verdict_lines(tests, self_test, relayout, measurements)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
