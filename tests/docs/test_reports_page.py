"""docs/reports.md lists every report and names only tests that exist; no page claims what hints save."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.report_list import REPORTS
from benchmarks.reports import PAGE, ROOT, answers, find_tests, page, read_junit
from benchmarks.reports import Test as NamedTest

ROW = re.compile(r"^\| (R\d{2}|B3) \|.*$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)` (\w+)")
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if path != PAGE)


def test_the_page_lists_every_report_once_and_names_tests_that_exist() -> None:
    text = PAGE.read_text("utf-8")
    assert ROW.findall(text) == [report.id for report in REPORTS]
    there = {
        (test.path.removeprefix("tests/"), test.name.removeprefix("test_")): test.ids for test in find_tests()
    }
    for row in ROW.finditer(text):
        for named in TEST.findall(row.group()):
            assert row.group(1) in there[named], named
    assert re.search(
        r"^Made by `python -m benchmarks\.reports .+` on \d{4}-\d{2}-\d{2}\.", text, re.MULTILINE
    )


def test_every_report_that_bears_on_a_tested_part_has_a_test() -> None:
    with_tests = {identity for test in find_tests() for identity in test.ids}
    assert [report.id for report in REPORTS if report.applicable and report.id not in with_tests] == []
    assert with_tests <= {report.id for report in REPORTS}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_R76_no_page_claims_that_a_hint_saves(page: Path) -> None:
    claims = re.findall(
        r"(?i)[^.|\n]*\bhints?\b[^.|\n]*\b(?:sav(?:e|es|ing)|short(?:er|ens)|fewer)\b",
        page.read_text("utf-8"),
    )
    assert claims == []


def junit(file: Path, **cases: str) -> Path:
    """A file of pytest's with cases of tests/proxy/test_x.py; each is passed, or has the child named."""
    head = '<testcase classname="tests.proxy.test_x"'
    rows = "".join(
        f'{head} name="{name}[a]"/>'
        if end == "passed"
        else f'{head} name="{name}[a]"><{end} message="why"/></testcase>'
        for name, end in cases.items()
    )
    file.write_text(f"<testsuites><testsuite>{rows}</testsuite></testsuites>", "utf-8")
    return file


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"test_R01_a": "passed", "test_R01_b": "passed"}, {}, "right (2 cases)"),
        ({"test_R01_a": "passed", "test_R01_b": "failure"}, {}, "WRONG (1 of 2 cases)"),
        ({"test_R01_a": "passed", "test_R01_b": "error"}, {"test_R01_b": "passed"}, "right (2 cases)"),
        ({"test_R01_a": "passed", "test_R01_b": "skipped"}, {}, "right (1 cases, 1 skipped)"),
        ({"test_R01_a": "passed"}, {}, "right (1 cases, 1 tests not run)"),
        ({"test_R01_a": "skipped"}, {}, "skipped here"),
        ({}, {}, "not run"),
    ],
)
def test_a_verdict_tells_what_failed_and_what_was_not_run(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], verdict: str
) -> None:
    there = [NamedTest("tests/proxy/test_x.py", name) for name in ("test_R01_a", "test_R01_b")]
    ends, skipped = read_junit(junit(tmp_path / "1.xml", **first))
    more, more_skipped = read_junit(junit(tmp_path / "2.xml", **second))
    found = answers(there, ends | more)
    assert next(answer for answer in found if answer.report.id == "R01").verdict == verdict
    text = page(found, "python -m benchmarks.reports", "2026-02-03", skipped | more_skipped)
    assert ("## Skipped here" in text) == ("skipped" in {**first, **second}.values())
    assert ("wrong: R01" in text) == verdict.startswith("WRONG")
    assert ("## Not run here" in text) == (len({**first, **second}) < 2)
