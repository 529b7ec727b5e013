"""A report as Markdown: the same words and tables, without charts. Knows figures and words."""

from __future__ import annotations

from collections.abc import Sequence

from desist.calibration.certificate import Certificate
from desist.calibration.figures import Figures
from desist.calibration.plan import voids
from desist.calibration.report_tables import interval, percent
from desist.calibration.report_words import (
    ASSUMES,
    direction_warning,
    direction_words,
    first_page,
    floor_rows,
    net_rows,
    point_rows,
)
from desist.data.markdown import table

__all__ = ["report_markdown"]


def report_markdown(points: Sequence[Figures], title: str = "desist calibration report") -> str:
    """All operating points, one after the other."""
    return "\n\n".join([f"# {title}", *(_point(figures) for figures in points)]) + "\n"


def _point(figures: Figures) -> str:
    found, page = figures.certified, first_page(figures)
    level = f"{float(found.alpha) * 100:.4g} %"
    parts = [
        f"## {found.loss.capitalize()} at most {level}: {'' if found.certified else 'not '}certified",
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
    parts.append(
        "### Other operating points\n\nEach holds alone; who chooses after looking needs delta/K.\n\n"
        + table(head, point_rows(figures))
    )
    if len(figures.groups) > 1:
        rows = [
            [g.name, str(g.n), str(g.stopped), interval(g.lost), percent(g.saved)] for g in figures.groups
        ]
        parts.append(
            "### Groups, the worst first\n\n" + table(["group", "n", "stopped", "lost", "saved"], rows)
        )
    if figures.audit_share:
        parts.append("### Net of audits and branches\n\n" + table(["", ""], net_rows(figures)))
    if figures.floors:
        parts.append("### Floors\n\n" + table(["compared", "differ", ""], floor_rows(figures)))
    if figures.command:
        parts.append(f"Made by `{figures.command}`")
    return "\n\n".join(parts)


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
