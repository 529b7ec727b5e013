"""Which test answers which public report, and whether it passes: docs/reports.md.

    python -m benchmarks.reports [--run] [--extended] [--junit FILE] [--write] [--json]

Tests are found by their names: `test_R21_...`, `test_r35_r41_...`, `test_B3_...`. `--run` runs them (`--extended`: those
that take minutes too); `--junit` reads the XML of a run of pytest's instead; `--write` writes docs/reports.md. Exit 1 if
a test fails, 2 if a report that bears on tested parts has no test.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report_list import REPORTS, Report

__all__ = ["Answer", "answers", "find_tests", "main", "page", "read_junit"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reports.md"
_IDS = re.compile(r"_((?:[rR]\d{2}|[bB]3)(?=_|$))")
_HEAD = """# Public reports, and the tests that answer them

Faults that users of reasoning models have reported in public, of servers, gateways and clients, and how desist is tested
for each. The id is in the test's name. Made by `python -m benchmarks.reports --run --write`; do not edit.

"""


@dataclass(frozen=True)
class Test:
    """A test function: `path` from the root, `name` without parameters."""

    path: str
    name: str

    @property
    def node(self) -> str:
        return f"{self.path}::{self.name}"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.upper() for each in _IDS.findall(self.name)))


@dataclass
class Answer:
    """A report with its tests, and how their cases ended (nothing: they were not run)."""

    report: Report
    tests: list[Test] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def missing(self) -> bool:
        return self.report.applicable and not self.tests

    @property
    def verdict(self) -> str:
        if not self.tests:
            return "NO TEST" if self.report.applicable else "documentation only"
        passed, failed, skipped = (self.ends[end] for end in ("passed", "failed", "skipped"))
        if failed:
            return f"WRONG ({failed} of {failed + passed} cases)"
        if not passed:
            return "skipped here" if skipped else "not run"
        return f"right ({passed} cases" + (f", {skipped} skipped)" if skipped else ")")


def find_tests(folder: Path = ROOT / "tests") -> list[Test]:
    """All tests whose names carry ids, in order of path and place."""
    found = []
    for file in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        path = file.relative_to(folder.parent).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                test = Test(path, node.name)
                found += [test] if test.ids else []
    return found


def read_junit(file: Path) -> dict[Test, Counter[str]]:
    """How the cases of each test ended, from an XML file of pytest's."""
    ends: dict[Test, Counter[str]] = {}
    for case in ET.parse(file).getroot().iter("testcase"):
        path = case.get("classname", "").replace(".", "/") + ".py"
        test = Test(path, case.get("name", "").partition("[")[0])
        kinds = {child.tag for child in case}
        end = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        ends.setdefault(test, Counter())[end] += 1
    return ends


def answers(tests: Sequence[Test], ends: Mapping[Test, Counter[str]]) -> list[Answer]:
    """Every report with its tests."""
    made = {report.id: Answer(report) for report in REPORTS}
    for test in tests:
        for identity in test.ids:
            if identity in made:
                made[identity].tests.append(test)
                made[identity].ends.update(ends.get(test, Counter()))
    return list(made.values())


def page(found: Sequence[Answer]) -> str:
    """The page as Markdown."""
    missing = [answer.report.id for answer in found if answer.missing]
    right = sum(answer.verdict.startswith("right") for answer in found)
    lines = [
        _HEAD
        + f"{len(found)} reports, {right} with passing tests; without a test: {', '.join(missing) or 'none'}."
    ]
    lines += [
        "",
        "| id | what went wrong | reported | bears on | tests | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for answer in found:
        report = answer.report
        tests = "<br>".join(
            f"`{test.path.removeprefix('tests/')}` {test.name.removeprefix('test_')}" for test in answer.tests
        )
        lines.append(
            f"| {report.id} | {report.kind} | {report.link} | {', '.join(report.parts)} | {tests} | {answer.verdict} |"
        )
    return "\n".join(lines) + "\n"


def run(tests: Sequence[Test], extended: bool) -> dict[Test, Counter[str]]:
    """Runs the tests with pytest, its output on stderr."""
    nodes = [test.node for test in tests]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={file}", *nodes]
        command += [] if extended else ["-m", "not extended"]
        subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        return read_junit(file)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reports")
    parser.add_argument("--run", action="store_true", help="run the tests")
    parser.add_argument("--extended", action="store_true", help="run those that take minutes too")
    parser.add_argument(
        "--junit", type=Path, action="append", default=[], help="XML of a run; several add up"
    )
    parser.add_argument("--write", action="store_true", help="write docs/reports.md")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    asked = parser.parse_args(arguments)
    tests = find_tests()
    ends = run(tests, asked.extended) if asked.run else {}
    for file in asked.junit:
        ends |= read_junit(file)
    found = answers(tests, ends)
    text = page(found)
    if asked.write:
        PAGE.write_text(text, "utf-8")
    if asked.json:
        rows = [
            {
                "id": a.report.id,
                "kind": a.report.kind,
                "tests": [t.node for t in a.tests],
                "verdict": a.verdict,
            }
            for a in found
        ]
        sys.stdout.write(
            json.dumps({"reports": rows, "missing": [a.report.id for a in found if a.missing]}) + "\n"
        )
    else:
        sys.stdout.write(text)
    if any(answer.verdict.startswith("WRONG") for answer in found):
        return 1
    return 2 if any(answer.missing for answer in found) else 0


if __name__ == "__main__":
    sys.exit(main())
