"""Groups side by side: each with its threshold, its interval, what it lacks, and which one is the worst.

Knows figures and plain words; the same rows serve the command line, the JSON and both reports.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.exact import exact_text
from desist.calibration.figures import Figures
from desist.calibration.group_keys import REST
from desist.calibration.intervals import Interval
from desist.calibration.refusals import smallest_problems

__all__ = [
    "GROUP_HEAD",
    "GroupLine",
    "group_cells",
    "group_lines",
    "group_statement",
    "group_words",
    "worst_line",
]

GROUP_HEAD = ("group", "problems", "threshold", "lost on calibration", "lost outside", "saved", "status")


class GroupLine(BaseModel):
    """One group. `threshold` None: nothing stops in it, `message` says why and `needed_n` what would help.

    `risk`: share lost on calibration, `holdout_risk` on problems outside it, each with its 95 % interval.
    `pooled`: the small groups that it holds; `delta`: its share, as text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str
    pooled: tuple[str, ...] = ()
    certified: bool
    threshold: float | None
    n: int
    needed_n: int | None
    delta: str
    risk: float | None = None
    risk_ci: Interval | None = None
    holdout_risk: float | None = None
    holdout_ci: Interval | None = None
    n_stopped: int = 0
    saved_fraction: float = 0.0
    reason: str | None = None
    message: str


def group_lines(drawn: Sequence[Figures]) -> tuple[GroupLine, ...]:
    """The groups of a report in order of their names; none where it has no groups."""
    grouped = [figures for figures in drawn if figures.certified.group_by is not None]
    lines = [_line(figures) for figures in grouped]
    lines += [_alone(small) for figures in grouped for small in figures.small_groups]
    return tuple(sorted(lines, key=lambda line: line.group))


def _line(figures: Figures) -> GroupLine:
    found, held = figures.certified, figures.held_out
    line = _alone(found)
    if not isinstance(found, Certificate):
        return line
    return line.model_copy(
        update={
            "risk": found.risk,
            "risk_ci": Interval(found.risk_low, found.risk_high),
            "holdout_risk": None if held is None else held.risk,
            "holdout_ci": None if held is None else Interval(held.low, held.high),
            "n_stopped": found.n_stopped,
            "saved_fraction": found.saved_fraction,
        }
    )


def _alone(found: Certificate | CannotCertify) -> GroupLine:
    return GroupLine(
        group=found.group or "",
        pooled=() if found.group_rule is None else found.group_rule.pooled,
        certified=found.certified,
        threshold=found.lam if isinstance(found, Certificate) else None,
        n=found.n,
        needed_n=smallest_problems(found) if isinstance(found, Certificate) else found.needed_n,
        delta=exact_text(found.delta),
        reason=found.reason if isinstance(found, CannotCertify) else None,
        message=found.text if isinstance(found, Certificate) else found.message,
    )


def worst_line(lines: Sequence[GroupLine]) -> GroupLine | None:
    """The certified group that lost most outside calibration, else on it; None where none is certified."""
    stopping = [line for line in lines if line.certified]
    if not stopping:
        return None
    return max(stopping, key=lambda line: (_seen(line), line.risk or 0.0))


def _seen(line: GroupLine) -> float:
    return line.holdout_risk if line.holdout_risk is not None else line.risk or 0.0


def group_statement(found: Certificate | CannotCertify, lines: Sequence[GroupLine]) -> str:
    """Whether the statements of all groups hold together; `found`: any one of them."""
    if all(line.reason == "too_few" for line in lines):
        return "No group has problems enough, so nothing is stated."
    count, delta = found.n_groups, found.delta
    if found.guarantee == "none":
        return "The method promises nothing per trace, in no group."
    if count == 1:
        return f"One group has problems enough; its statement was made with delta {exact_text(delta)}."
    if found.guarantee != "pac" or found.delta_split == "each":
        with_delta = f", made with delta {exact_text(delta)}" if found.guarantee == "pac" else ""
        return (
            f"One at a time: each of the {count} groups' statements holds by itself{with_delta}. That all of "
            "them hold at once is not promised."
        )
    return (
        f"Joint: the statements of all {count} groups hold together with probability at least "
        f"{exact_text(1 - count * delta)}; each was given delta/{count} = {exact_text(delta)}."
    )


def group_words(drawn: Sequence[Figures]) -> str:
    """What a reader must know of the groups, in sentences."""
    grouped = [figures.certified for figures in drawn if figures.certified.group_by is not None]
    lines = group_lines(drawn)
    first = grouped[0]
    made = sum(line.certified for line in lines)
    parts = [
        f"Groups by {first.group_by}: {made} of {len(lines)} certified.",
        group_statement(first, lines),
        "A problem of a group without a certificate, or of a group that is not listed, is never stopped.",
    ]
    for line in lines:
        if line.pooled:
            parts.append(
                f"The group {REST} holds {', '.join(line.pooled)}; its statement is about them together."
            )
    if (worst := worst_line(lines)) is not None:
        parts.append(f"The worst group is {worst.group}: {_share(_seen(worst), _interval(worst))} lost.")
    return " ".join(parts)


def group_cells(lines: Sequence[GroupLine]) -> list[list[str]]:
    """The rows of a table under `GROUP_HEAD`."""
    return [
        [
            line.group,
            str(line.n),
            "never stops" if line.threshold is None else f"{line.threshold:.6g}",
            _share(line.risk, line.risk_ci),
            _share(line.holdout_risk, line.holdout_ci),
            f"{100 * line.saved_fraction:.1f} %",
            "certified" if line.certified else line.message,
        ]
        for line in lines
    ]


def _interval(line: GroupLine) -> Interval | None:
    return line.holdout_ci if line.holdout_risk is not None else line.risk_ci


def _share(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return "-"
    within = "" if interval is None else f" ({100 * interval.low:.1f} to {100 * interval.high:.1f} %)"
    return f"{100 * value:.1f} %{within}"
