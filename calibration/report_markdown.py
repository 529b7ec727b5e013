"""A report as Markdown: the same words and tables, without charts. Knows figures and words."""

from __future__ import annotations

from collections.abc import Sequence

from desist.calibration.certificate import Certificate
from desist.calibration.figures import Figures
from desist.calibration.group_table import GROUP_HEAD, group_cells, group_lines, group_words
from desist.calibration.plan import voids
from desist.calibration.report_tables import interval, percent
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
from desist.data.markdown import table

__all__ = ["report_markdown"]


def report_markdown(points: Sequence[Figures], title: str = "desist calibration report") -> str:
    """All operating points, one after the other."""
    return "\n\n".join([f"# {title}", *_side_by_side(points), *(_point(each) for each in points)]) + "\n"


def _side_by_side(points: Sequence[Figures]) -> list[str]:
    """The groups, where there are some."""
    lines = group_lines(points)
    return [f"## Groups\n\n{group_words(points)}\n\n{table(GROUP_HEAD, group_cells(lines))}"] if lines else []


def _point(figures: Figures) -> str:
    found, page = figures.certified, first_page(figures)
    level = f"{float(found.alpha) * 100:.4g} %"
    group = "" if found.group_by is None else f", group {found.group}"
    parts = [
        f"## {found.loss.capitalize()} at most {level}{group}: {'' if found.certified else 'not '}certified",
        page.lead,
        table(page.head, page.rows),
        direction_words(figures),
    ]
    if (warning := direction_warning(figures)) is not None:
        parts.insert(1, f"> **{warning}**")
    if isinstance(found, Certificate):
        parts += [f"> {found.text}", page.note]
    parts += [
        "### What it assumes\n\n" + _list(ASSUMES),
        "### What voids it\n\n" + _list(voids(found)),
        f"Valid until: {page.expiry}",
    ]
    held = figures.held_out
    if held is not None:
        parts.append(
            f"### Outside calibration ({held.how})\n\n{held.lost} of {held.n} lost ({percent(held.risk)}; "
            f"95 % {percent(held.low)} to {percent(held.high)}), {percent(held.saved)} saved."
        )
    head = ("alpha", "threshold", "loss seen", "saved", "threshold (delta/K)", "saved (delta/K)")
    parts.append(f"### Operating points\n\n{point_note(figures)}\n\n" + table(head, point_rows(figures)))
    parts += [_reliability(figures)]
    splits = figures.splits
    if splits is not None:
        parts.append(
            f"Repeated splits: {splits.above} of {len(splits.risks)} above alpha, {splits.refused} could "
            f"not be certified ({splits.n} problems each)."
        )
    if len(figures.groups) > 1:
        rows = [
            [g.name, str(g.n), str(g.stopped), interval(g.lost), percent(g.saved)] for g in figures.groups
        ]
        parts.append(
            "### Groups, the worst first\n\n" + table(["group", "n", "stopped", "lost", "saved"], rows)
        )
    if figures.worst:
        lost = [
            [
                w.trace_id,
                w.problem_id,
                f"{w.score:.6g}",
                str(w.position),
                str(w.cut),
                w.source,
                w.right,
                w.stopped,
            ]
            for w in figures.worst
        ]
        names = ("trace", "problem", "score", "kept", "cut", "source", "full answer", "at the stop")
        width = 8 if any(w.right or w.stopped for w in figures.worst) else 6
        parts.append("### Worst losses\n\n" + table(names[:width], [row[:width] for row in lost]))
    if figures.audit_share:
        parts.append("### Net of audits and branches\n\n" + table(["", ""], net_rows(figures)))
    if figures.floors:
        parts.append("### Floors\n\n" + table(["compared", "differ", ""], floor_rows(figures)))
    if figures.command:
        parts.append(f"Made by `{figures.command}`")
    return "\n\n".join(parts)


def _reliability(figures: Figures) -> str:
    found = figures.reliability
    rows = [
        [f"{score:.4f}", f"{100 * good:.1f} %", str(count)]
        for score, good, count in zip(found.scores, found.good, found.counts, strict=True)
    ]
    shown = table(("mean score", "good stops", "boundaries"), rows)
    return f"### Reliability\n\n{probability_words(figures)}\n\n{shown}"


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
