from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from desist.calibration.accounting import oracle_rows, policy_row
from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.curves import Curves, calibration_curves
from desist.calibration.outcomes import policy_outcomes
from desist.calibration.report import ReportSection, report_html, write_report
from desist.calibration.rivals import compare_rivals
from desist.controller.core import Control
from tests.fakes.traces import make_traces


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order, and collects everything that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object") or dict(attrs).keys() & {"src", "href"}:
            self.loads.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def sections() -> list[ReportSection]:
    learn, held = make_traces(300, 21, noise=1.5), make_traces(200, 22, noise=1.5)
    made = []
    for loss, alpha in (("consistency", 0.1), ("harm", 0.05), ("harm", 0.001)):
        found = calibrate(
            learn,
            alpha=alpha,
            delta=0.1,
            loss=loss,  # type: ignore[arg-type]
            forbidden_problems=(),
            fingerprints={"model": "sha<&>"},
            created="2026-02-03",
        )
        outcomes = policy_outcomes(held, Control(policy=found.policy()))
        row = policy_row("ours", outcomes, loss=found.loss, alpha=found.alpha, oracles=oracle_rows(held))
        rivals = compare_rivals(found, learn, held) if loss == "consistency" else None
        made.append(ReportSection(f"{loss} {alpha}", found, calibration_curves(found, learn), [row], rivals))
    return made


def test_the_report_is_one_sound_file_that_loads_nothing(
    sections: list[ReportSection], tmp_path: Path
) -> None:
    path = write_report(tmp_path / "out" / "report.html", sections, floors={"two full runs": 0.0321})
    text = path.read_text(encoding="utf-8")
    page = Balanced()
    page.feed(text)
    assert (page.open, page.loads) == ([], [])
    assert not re.search(
        r"https?://|url\(|@import|nan|inf[^eolu]", re.sub(r"<style>.*</style>", "", text, flags=re.S)
    )
    assert len(text) < 400_000
    assert "3.2 %" in text
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_the_report_holds_the_numbers_and_the_words(sections: list[ReportSection]) -> None:
    text = report_html(sections)
    for section in sections:
        found = section.certified
        if isinstance(found, Certificate):
            for value in (
                f"{found.lam:.6g}",
                f"{found.n_bad} of {found.n}",
                found.digest,
                "sha&lt;&amp;&gt;",
            ):
                assert value in text
        else:
            assert found.message[1:] in text.replace("&gt;", ">")
    assert isinstance(sections[2].certified, CannotCertify)
    for words in ("What voids it", "Against its rivals", "2026-02-03", "Operating points", "Learn then Test"):
        assert words in text


def test_curves_are_read_back_and_agree_with_the_certificate(sections: list[ReportSection]) -> None:
    for section in sections[:2]:
        found, curves = section.certified, section.curves
        assert isinstance(found, Certificate)
        assert Curves.model_validate_json(curves.model_dump_json()) == curves
        place = min(range(len(curves.thresholds)), key=lambda k: abs(curves.thresholds[k] - found.lam))
        assert curves.risk[place] == pytest.approx(found.risk)
        assert curves.saved[place] == pytest.approx(found.saved_fraction)
        assert all(low <= high for low, high in zip(curves.risk, curves.upper, strict=True))
        assert all(low <= high for low, high in zip(curves.risk, curves.envelope, strict=True))
        assert sum(curves.good) + sum(curves.bad) > 1000
