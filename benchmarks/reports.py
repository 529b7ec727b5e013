"""Which test answers which public report, and whether it passes: docs/reports.md.

    python -m benchmarks.reports [--run] [--extended] [--junit FILE] [--write] [--json]

Tests are found by their names: `test_R21_...`, `test_r35_r41_...`, `test_B3_...`. `--run` runs them (`--extended`: those
that take minutes too); `--junit` reads the XML of runs of pytest's instead; `--write` writes docs/reports.md, with the
command, the day, and what was skipped or not run. Exit 1 if a test fails, 2 if a report that bears on tested parts has
no test.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report_list import REPORTS, Report

__all__ = ["PAGE", "ROOT", "Answer", "Test", "answers", "find_tests", "main", "page", "read_junit"]

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reports.md"
_IDS = re.compile(r"_((?:[rR]\d{2}|[bB]3)(?=_|$))")
_HEAD = """# Public reports, and the tests that answer them

Faults that users of reasoning models have reported in public, of servers, gateways and clients, and how desist is tested
for each. The id is in the test's name; do not edit this page. `python -m benchmarks.reports --run --extended --write`
makes it anew in one go; `--junit` adds up runs that were made in parts.

Made by `{command}` on {day}.

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
    """A report with its tests, how their cases ended, and the tests that were not run."""

    report: Report
    tests: list[Test] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    not_run: list[Test] = field(default_factory=list)

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
        told = [f"{passed} cases"]
        told += [f"{skipped} skipped"] if skipped else []
        told += [f"{len(self.not_run)} tests not run"] if self.not_run else []
        return f"right ({', '.join(told)})"


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


def read_junit(file: Path) -> tuple[dict[Test, Counter[str]], dict[Test, dict[str, str]]]:
    """How the cases of each test ended, from an XML file of pytest's, and which were skipped for what reason."""
    ends: dict[Test, Counter[str]] = {}
    reasons: dict[Test, dict[str, str]] = {}
    for case in ET.parse(file).getroot().iter("testcase"):
        path, name = case.get("classname", "").replace(".", "/") + ".py", case.get("name", "")
        test = Test(path, name.partition("[")[0])
        kinds = {child.tag: child.get("message", "") for child in case}
        end = (
            "failed" if kinds.keys() & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        )
        ends.setdefault(test, Counter())[end] += 1
        reasons.setdefault(test, {}).update({name: kinds["skipped"]} if "skipped" in kinds else {})
    return ends, reasons


def answers(tests: Sequence[Test], ends: Mapping[Test, Counter[str]]) -> list[Answer]:
    """Every report with its tests."""
    made = {report.id: Answer(report) for report in REPORTS}
    for test in tests:
        for identity in test.ids:
            if identity in made:
                made[identity].tests.append(test)
                made[identity].ends.update(ends.get(test, Counter()))
                made[identity].not_run += [] if test in ends else [test]
    return list(made.values())


def page(found: Sequence[Answer], command: str, day: str, skipped: Mapping[Test, Mapping[str, str]]) -> str:
    """The page as Markdown. `skipped`: cases and why, of the runs that it was made from."""
    missing = [answer.report.id for answer in found if answer.missing]
    right = sum(answer.verdict.startswith("right") for answer in found)
    wrong = [answer.report.id for answer in found if answer.verdict.startswith("WRONG")]
    lines = [
        _HEAD.format(command=command, day=day)
        + f"{len(found)} reports, {right} with passing tests; wrong: {', '.join(wrong) or 'none'}; without a test: "
        f"{', '.join(missing) or 'none'}."
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
    absent = dict.fromkeys(test for answer in found for test in answer.not_run)
    if absent:
        lines += ["", "## Not run here", "", *(f"- `{test.path}` {test.name}" for test in absent)]
    cases = {name: why for reasons in skipped.values() for name, why in reasons.items()}
    if cases:
        lines += ["", "## Skipped here", "", *(f"- `{name}`: {why}" for name, why in cases.items())]
    return "\n".join(lines) + "\n"


def run(tests: Sequence[Test], extended: bool) -> tuple[dict[Test, Counter[str]], dict[Test, dict[str, str]]]:
    """Runs the tests with pytest, its output on stderr; as `read_junit`."""
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
    ends, skipped = run(tests, asked.extended) if asked.run else ({}, {})
    for file in asked.junit:
        more_ends, more_skipped = read_junit(file)  # of a test that ran twice the later run counts
        ends, skipped = ends | more_ends, skipped | more_skipped
    found = answers(tests, ends)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.reports", *(Path(word).name for word in given)])
    text = page(found, command, datetime.datetime.now(datetime.UTC).date().isoformat(), skipped)
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
