"""Tables of a report as HTML. Knows rows and how to show them; escapes every text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from desist.calibration.accounting import PolicyRow, Share
from desist.calibration.rival_rows import RivalTable

__all__ = ["interval", "percent", "policy_table", "rival_table", "table"]


def policy_table(rows: Sequence[PolicyRow]) -> str:
    """What each policy did, one row each."""
    head = [
        "policy",
        "n",
        "saved",
        "accuracy, full",
        "stopped",
        "inconsistent",
        "lost",
        "gained",
        "p (risk ≤ alpha)",
    ]
    cells = [
        [
            row.policy,
            str(row.n),
            percent(row.saved_fraction),
            percent(row.accuracy_full),
            percent(row.accuracy_stopped),
            interval(row.consistency_risk),
            interval(row.harm_risk),
            "-" if row.gained is None else str(row.gained),
            "-" if row.alpha_p is None else f"{row.alpha_p:.3f}",
        ]
        for row in rows
    ]
    return table(head, cells, numbers=True)


def rival_table(compared: RivalTable) -> str:
    """Ours against its rivals, with the verdict in a sentence."""
    head = ["policy", "saved", f"{compared.plan['loss']} risk", "worse / better", "McNemar p", "how"]
    cells = []
    for found in compared.rows:
        row = found.row
        risk = None if row is None else row.consistency_risk if row.loss == "consistency" else row.harm_risk
        pair = "-" if found.worse is None else f"{found.worse} / {found.better}"
        cells.append(
            [
                found.name,
                percent(None if row is None else row.saved_fraction),
                interval(risk),
                pair,
                "-" if found.mcnemar_p is None else f"{found.mcnemar_p:.2g}",
                found.unavailable or found.how,
            ]
        )
    beaten = compared.unbeaten
    verdict = (
        f"<p>Certified rivals that saved at least as much: {escape(', '.join(beaten))}.</p>"
        if beaten
        else "<p>No certified rival saved as much.</p>"
    )
    return verdict + table(head, cells)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False, code: bool = False
) -> str:
    """An HTML table; the first column names the row. Everything is escaped."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = []
    for row in rows:
        cells = [f"<td>{escape(row[0])}</td>"]
        for cell in row[1:]:
            inner = f"<code>{escape(cell)}</code>" if code else escape(cell)
            cells.append(f'<td class="number">{inner}</td>' if numbers else f"<td>{inner}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    header = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class="scroll"><table>{header}<tbody>{"".join(body)}</tbody></table></div>'


def interval(share: Share | None) -> str:
    """Count, share and exact interval; "-" where not known."""
    if share is None:
        return "-"
    return f"{share.count} ({percent(share.value)}; {percent(share.low)} to {percent(share.high)})"


def percent(value: float | None) -> str:
    """A share in percent; "-" where not known."""
    return "-" if value is None else f"{value * 100:.1f} %"
