"""The parts of a report that are drawn from figures: first page, points, splits, groups, worst, provenance.

Each gives a piece of HTML. Knows figures and words; everything is escaped where it becomes markup.
"""

from __future__ import annotations

from html import escape

from desist.calibration.figures import Figures
from desist.calibration.report_tables import interval, percent, table
from desist.calibration.report_words import (
    ASSUMES,
    direction_warning,
    direction_words,
    first_page,
    floor_rows,
    net_rows,
    point_note,
    point_rows,
    probability_words,
)
from desist.calibration.svg import bar_chart, reliability_chart

__all__ = ["charts_more", "details", "opening"]

_BINS = 20
_POINTS = ("alpha", "threshold", "loss seen", "saved", "threshold (delta/K)", "saved (delta/K)")


def opening(figures: Figures) -> str:
    """The first page: 1,000 requests in plain words, a fixed budget beside, assumptions and expiry."""
    page = first_page(figures)
    assumes = "".join(f"<li>{escape(text)}</li>" for text in ASSUMES)
    warning = direction_warning(figures)
    loud = "" if warning is None else f"<p class='lead'><strong>{escape(warning)}</strong></p>"
    return (
        f"{loud}<p class='lead'>{escape(page.lead)}</p>{table(page.head, page.rows)}"
        f"<p>{escape(direction_words(figures))}</p>"
        f"<p class='soft'>{escape(page.note)}</p><h3>What it assumes</h3><ul>{assumes}</ul>"
        f"<p><strong>Valid until:</strong> {escape(page.expiry)}</p>"
    )


def charts_more(figures: Figures) -> str:
    """First stops, reliability, and the losses of repeated splits."""
    tenths = [(tick / 4, f"{25 * tick} %") for tick in range(5)]
    charts = [
        bar_chart("Where the first stop falls", figures.first_stops, "share of the reasoning kept", tenths),
        reliability_chart("What a score means", figures.reliability.scores, figures.reliability.good),
    ]
    splits = figures.splits
    if splits is not None and splits.risks:
        alpha = float(figures.certified.alpha)
        top = max(2 * alpha, *splits.risks)
        counts = [0] * _BINS
        for risk in splits.risks:
            counts[min(_BINS - 1, int(_BINS * risk / top))] += 1
        charts.append(
            bar_chart(
                "Loss on the other half, calibrated on one half",
                counts,
                "loss on problems that were not calibrated on",
                [(tick / 4, f"{100 * top * tick / 4:.3g} %") for tick in range(5)],
                mark=(alpha / top, f"alpha {100 * alpha:.3g} %"),
                name="splits",
            )
        )
    words = f"<p class='soft'>{escape(probability_words(figures))}</p>"
    return f'<div class="charts">{"".join(charts)}</div>{words}'


def details(figures: Figures) -> str:
    """Held-out loss, operating points, groups, worst losses, net savings, floors, the command."""
    parts = [_held_out(figures), _points(figures)]
    if len(figures.groups) > 1:
        worst = figures.groups[0]
        parts.append(
            f"<h3>Groups</h3><p class='soft'>At the one threshold for all; the promise is about all of them "
            f"together. The worst is {escape(worst.name)}, {interval(worst.lost)}.</p>"
        )
        rows = [
            [g.name, str(g.n), str(g.stopped), interval(g.lost), percent(g.saved)] for g in figures.groups
        ]
        parts.append(table(["group", "traces", "stopped", "lost", "saved"], rows))
    if figures.worst:
        parts.append("<h3>Worst losses</h3>" + _worst(figures))
    if figures.audit_share:
        parts.append("<h3>Net of audits and branches</h3>" + table(["", ""], net_rows(figures)))
    if figures.floors:
        parts.append(
            "<h3>The model's disagreement with itself</h3><p class='soft'>Two runs differ even when nothing "
            "is stopped; read the consistency risk against this.</p>"
            + table(["compared", "differ", ""], floor_rows(figures))
        )
    if figures.command:
        parts.append(f"<h3>Made by</h3><p><code>{escape(figures.command)}</code></p>")
    return "".join(parts)


def _held_out(figures: Figures) -> str:
    held, splits = figures.held_out, figures.splits
    if held is None:
        return ""
    how = "other traces" if held.how == "file" else "five folds: each fifth under a threshold from the others"
    text = (
        f"<h3>On problems outside calibration</h3><p>{held.lost} of {held.n} lost ({percent(held.risk)}; "
        f"95 % {percent(held.low)} to {percent(held.high)}), {percent(held.saved)} saved; {escape(how)}.</p>"
    )
    if splits is not None:
        text += (
            f"<p class='soft'>Repeated splits: {splits.above} of {len(splits.risks)} above alpha, "
            f"{splits.refused} could not be certified ({splits.n} problems each).</p>"
        )
    return text


def _points(figures: Figures) -> str:
    return f"<h3>Operating points</h3><p class='soft'>{escape(point_note(figures))}</p>" + table(
        _POINTS, point_rows(figures), numbers=True
    )


def _worst(figures: Figures) -> str:
    texts = any(loss.right or loss.stopped for loss in figures.worst)
    head = [
        "trace",
        "problem",
        "score",
        "kept",
        "cut",
        "source",
        *(["full answer", "at the stop"] if texts else []),
    ]
    rows = [
        [
            loss.trace_id,
            loss.problem_id,
            f"{loss.score:.6g}",
            str(loss.position),
            str(loss.cut),
            loss.source,
            *([loss.right, loss.stopped] if texts else []),
        ]
        for loss in figures.worst
    ]
    return table(head, rows)
