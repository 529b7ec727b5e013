"""The calibration report: one HTML file that opens offline, with everything that a reader must know.

For each operating point: the statement, the figures, the curves, what voids it, and the fingerprints. No
scripts and no outside requests; the numbers behind each chart stand in a table below it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from desist.calibration.accounting import PolicyRow
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.curves import Curves
from desist.calibration.exact import exact_text
from desist.calibration.figures import Figures, calibration_figures
from desist.calibration.group_table import GROUP_HEAD, group_cells, group_lines, group_words
from desist.calibration.plan import voids
from desist.calibration.report_parts import charts_more, details, opening
from desist.calibration.report_tables import percent, policy_table, rival_table, table
from desist.calibration.rival_rows import RivalTable
from desist.calibration.scorers import TraceScorer
from desist.calibration.svg import Line, Mark, histogram, threshold_chart
from desist.data.jsonl import atomic_file
from desist.data.schema import Trace

__all__ = ["ReportSection", "report_html", "write_report"]

_TABLE_ROWS = 40
_METHODS = {
    "ltt": "Learn then Test, fixed sequence, exact binomial",
    "pac": "PAC order statistic of the critical score",
    "pareto": "Learn then Test over threshold and shape, the order learned on a part of the problems",
    "split": "split conformal quantile of the critical score",
    "crc": "conformal risk control of the monotone envelope",
    "weighted": "split conformal quantile of the critical score, problems weighted to a later traffic",
    "cue-level": "split conformal over boundaries: no guarantee per trace",
}


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One operating point. `test`: rows on problems never used before; `rivals`: the comparison, if made.

    `figures`: what the first page and the details need; without them only curves and tables are shown.
    """

    title: str
    certified: Certificate | CannotCertify
    curves: Curves
    test: Sequence[PolicyRow] = ()
    rivals: RivalTable | None = None
    figures: Figures | None = None

    @classmethod
    def of(
        cls,
        certified: Certificate | CannotCertify,
        traces: Sequence[Trace],
        *,
        scorer: TraceScorer | None = None,
        test: Sequence[PolicyRow] = (),
        rivals: RivalTable | None = None,
    ) -> ReportSection:
        """The section of `certified`, its curves drawn from the `traces` that it was calibrated on."""
        return cls.drawn(calibration_figures(certified, traces, scorer=scorer, missing="pass"), test, rivals)

    @classmethod
    def drawn(
        cls, figures: Figures, test: Sequence[PolicyRow] = (), rivals: RivalTable | None = None
    ) -> ReportSection:
        """The section of figures that are there already."""
        found = figures.certified
        title = f"{found.loss.capitalize()} at most {_level(found)}"
        title += "" if found.group_by is None else f", group {found.group}"
        return cls(title, found, figures.curves, test, rivals, figures)


def write_report(
    path: str | os.PathLike[str],
    points: Sequence[ReportSection | Figures | Certificate | CannotCertify],
    traces: Sequence[Trace] = (),
    *,
    title: str = "desist calibration report",
    floors: Mapping[str, float] | None = None,
) -> Path:
    """Write the report, in one step.

    `points`: sections or figures, or certificates (refusals too), whose figures are then taken from `traces`,
    the ones they were calibrated on. `floors`: named rates of the model's disagreement with itself.
    """
    sections = [
        p if isinstance(p, ReportSection)
        else ReportSection.drawn(p) if isinstance(p, Figures)
        else ReportSection.of(p, traces)
        for p in points
    ]  # fmt: skip
    target = Path(path)
    with atomic_file(target) as file:
        file.write(report_html(sections, title=title, floors=floors).encode())
    return target


def report_html(
    sections: Sequence[ReportSection],
    *,
    title: str = "desist calibration report",
    floors: Mapping[str, float] | None = None,
) -> str:
    """The report as one HTML text."""
    page = files("desist.calibration").joinpath("templates/report.html").read_text(encoding="utf-8")
    dates = sorted({s.certified.created for s in sections if isinstance(s.certified, Certificate)})
    subtitle = f"{len(sections)} operating point{'s' if len(sections) != 1 else ''}" + (
        f", calibrated {', '.join(date for date in dates if date)}" if any(dates) else ""
    )
    body = _groups([section.figures for section in sections if section.figures is not None])
    body += [_overview(sections)] if len(sections) > 1 and not body else []
    body += [_section(section) for section in sections]
    if floors:
        body.append(_floors(floors))
    return Template(page).substitute(title=escape(title), subtitle=escape(subtitle), body="\n".join(body))


def _groups(drawn: Sequence[Figures]) -> list[str]:
    """The groups side by side; nothing where there are none."""
    lines = group_lines(drawn)
    if not lines:
        return []
    shown = table(GROUP_HEAD, group_cells(lines))
    return [f"<section><h2>Groups</h2><p class='lead'>{escape(group_words(drawn))}</p>{shown}</section>"]


def _overview(sections: Sequence[ReportSection]) -> str:
    rows = []
    for section in sections:
        found = section.certified
        if isinstance(found, Certificate):
            cells = [percent(found.saved_fraction), _share(found), f"{found.lam:.6g}", "certified"]
        else:
            cells = ["0 %", "-", "never stops", found.message]
        limit = f"{found.loss} at most {_level(found)} ({exact_text(found.delta * 100)} % error)"
        rows.append([section.title, limit, *cells])
    head = ["operating point", "promise", "tokens saved", "lost on calibration", "threshold", "status"]
    return f"<section><h2>Operating points</h2>{table(head, rows)}</section>"


def _section(section: ReportSection) -> str:
    found, curves = section.certified, section.curves
    figures = section.figures
    parts = [_head(section.title, found)]
    if figures is not None:
        parts.append(opening(figures))
    parts += [_statement(found), _tiles(found, curves), _charts(found, curves)]
    if figures is not None:
        parts.append(charts_more(figures))
    parts.append(_numbers(curves))
    if figures is not None:
        parts.append(details(figures))
    if section.test:
        parts.append("<h3>On test problems</h3>" + policy_table(section.test))
    if section.rivals is not None:
        parts.append("<h3>Against its rivals, on test problems</h3>" + rival_table(section.rivals))
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in voids(found))
    parts.append(f"<h3>What voids it</h3><ul>{sentences}</ul>")
    parts.append(_facts(found))
    return f"<section>{''.join(parts)}</section>"


def _head(title: str, found: Certificate | CannotCertify) -> str:
    sort, word = ("", "certified") if found.certified else (" no", "not certified")
    return f'<div class="head"><h2>{escape(title)}</h2><span class="pill{sort}">{word}</span></div>'


def _statement(found: Certificate | CannotCertify) -> str:
    if isinstance(found, CannotCertify):
        words = found.message[0].upper() + found.message[1:]
        return f"<blockquote>{escape(words)}. The policy never stops.</blockquote>"
    forced = "" if found.certified else f"<p>Void here: other {escape(', '.join(found.voided))}.</p>"
    return (
        f"<blockquote>{escape(found.text)}</blockquote>{forced}<p class='soft'>An average over problems, not "
        f"a promise about one. Of 100 such calibrations, up to {exact_text(found.delta * 100)} may be "
        "wrong.</p>"
    )


def _tiles(found: Certificate | CannotCertify, curves: Curves) -> str:
    tiles = [("tolerated risk", _level(found), f"{found.loss}, error probability {exact_text(found.delta)}")]
    if isinstance(found, Certificate):
        ceiling = "" if curves.oracle_first is None else f"zero-loss ceiling {percent(curves.oracle_first)}"
        tiles += [
            ("threshold", f"{found.lam:.6g}", f"score '{found.scorer}', stops above it"),
            ("tokens saved", percent(found.saved_fraction), ceiling),
            (
                "lost on calibration",
                f"{found.n_bad} of {found.n}",
                f"95 % interval {percent(found.risk_low)} to {percent(found.risk_high)}",
            ),
            ("stopped", f"{found.n_stopped} of {found.n}", "calibration problems"),
        ]
    else:
        tiles.append(("calibration problems", str(found.n), f"needed: {found.needed_n or 'not known'}"))
    inner = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{inner}</dl>'


def _charts(found: Certificate | CannotCertify, curves: Curves) -> str:
    risk_mark = saved_mark = lam = None
    if isinstance(found, Certificate):
        lam = found.lam
        risk_mark = Mark(lam, found.risk, f"chosen {lam:.4g}: {percent(found.risk)}")
        saved_mark = Mark(lam, found.saved_fraction, f"{percent(found.saved_fraction)} saved")
    part = _interesting(found, curves)
    if found.method in ("pac", "split", "crc", "weighted"):
        second = Line("critical-score envelope", curves.envelope[part], "second")
    else:
        sure = exact_text((1 - found.delta) * 100)
        second = Line(f"upper bound, each threshold by itself ({sure} %)", curves.upper[part], "second")
    charts = [
        threshold_chart(
            "Risk on the calibration problems",
            curves.thresholds[part],
            [Line(f"{found.loss} loss", curves.risk[part], "main"), second],
            level=(float(found.alpha), f"tolerated: {_level(found)}"),
            mark=risk_mark,
        ),
        threshold_chart(
            "Tokens saved, net of everything generated",
            curves.thresholds[part],
            [Line("saved", curves.saved[part], "main")],
            mark=saved_mark,
        ),
        histogram("Scores where a stop would be good, and bad", curves.good, curves.bad, lam),
    ]
    return f'<div class="charts">{"".join(charts)}</div>'


def _interesting(found: Certificate | CannotCertify, curves: Curves) -> slice:
    """From the last threshold that stops nothing down to where the risk is four times the tolerated one."""
    start = next((place for place, saved in enumerate(curves.saved) if saved != 0), 1) - 1
    beyond = (place for place, risk in enumerate(curves.risk) if risk > 4 * found.alpha)
    end = next(beyond, len(curves.risk)) + 1
    return slice(max(0, start), max(end, start + 2))


def _numbers(curves: Curves) -> str:
    every = max(1, len(curves.thresholds) // _TABLE_ROWS)
    rows = [
        [f"{lam:.6g}", percent(risk), percent(upper), percent(saved)]
        for lam, risk, upper, saved in list(
            zip(curves.thresholds, curves.risk, curves.upper, curves.saved, strict=True)
        )[::every]
    ]
    shown = table(["threshold", "risk", "upper bound", "saved"], rows, numbers=True)
    return f"<details><summary>The numbers behind the curves</summary>{shown}</details>"


def _facts(found: Certificate | CannotCertify) -> str:
    facts = {
        "method": _METHODS[found.method],
        "policy": f"score {found.scorer}, patience {found.patience}, "
        f"warm-up {found.warmup_tokens} tokens, smoothing {found.ema:g}",
        "boundaries": ", ".join(found.kinds or ("all",)),
        "answer mode": found.answer_mode,
        "judge": found.judge,
        "cut full runs": f"convention '{found.truncated}'",
        "seed": str(found.seed),
    }
    if isinstance(found, Certificate):
        facts |= {"cut full runs": f"{found.n_truncated} of {found.n}, convention '{found.truncated}'"}
        facts |= {"further samples left out": str(found.other_samples), "digest": found.digest}
        facts |= {f"fingerprint: {key}": value for key, value in sorted(found.fingerprints.items())}
        facts |= {f"version: {key}": value for key, value in sorted(found.versions.items())}
    rows = [[key, value] for key, value in facts.items()]
    return f"<details><summary>Method and fingerprints</summary>{table(['', ''], rows, code=True)}</details>"


def _floors(floors: Mapping[str, float]) -> str:
    rows = [[name, percent(value)] for name, value in floors.items()]
    return (
        "<section><h2>The model's disagreement with itself</h2><p class='soft'>With sampling, two runs of "
        "one problem differ even when nothing is stopped; read the consistency risk against this.</p>"
        f"{table(['compared', 'differ'], rows)}</section>"
    )


def _level(found: Certificate | CannotCertify) -> str:
    return f"{exact_text(found.alpha * 100)} %"


def _share(found: Certificate) -> str:
    return f"{found.n_bad} of {found.n} ({percent(found.risk)})"
