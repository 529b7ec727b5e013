"""The first page of a report in plain words: what happens to 1,000 requests, what it assumes, what voids it.

Turns figures into short texts, for HTML and Markdown alike. Knows no markup.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from desist.calibration.accounting import Share
from desist.calibration.certificate import Certificate
from desist.calibration.exact import exact_text
from desist.calibration.figures import Figures
from desist.calibration.intervals import Interval

__all__ = [
    "ASSUMES",
    "FirstPage",
    "direction_warning",
    "direction_words",
    "first_page",
    "floor_rows",
    "net_rows",
    "point_note",
    "point_rows",
    "probability_words",
    "weighted_words",
]

_REQUESTS = 1000
HEAD = ("of 1,000 requests", "stopped", "lose their answer", "tokens saved", "seconds saved")
ASSUMES = (
    "The problems to come are drawn like the calibration problems, each of them independently.",
    "The forced answers were made with the same hand-off, sampler and answer mode as in use.",
    "Method, grid, probe and cue set were fixed before these problems were looked at.",
    "The probe was trained on none of these problems.",
)


@dataclass(frozen=True, slots=True)
class FirstPage:
    """`lead`: the sentence that says it all; `rows`: one policy each, under `head`; `expiry`: till when."""

    lead: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str
    expiry: str


def first_page(figures: Figures) -> FirstPage:
    """The page for one operating point."""
    found = figures.certified
    if not isinstance(found, Certificate):
        return FirstPage(
            f"{found.message[0].upper()}{found.message[1:]}. No request is stopped, none loses its answer, "
            "nothing is saved.",
            HEAD,
            [["this policy", "0", "0", "0", "0"]],
            "",
            "nothing to expire",
        )
    limit = found.alpha * _REQUESTS
    word = {"consistency": "get another answer than the full run's", "harm": "lose a right answer"}.get(
        found.loss, "lose reasoning that they needed (share of it)"
    )
    saved = _tokens(figures, figures.saved)
    lead = (
        f"Of {_REQUESTS:,} requests like the calibration problems about "
        f"{round(_REQUESTS * figures.stopped.value):,} are stopped early; at most {exact_text(limit)} {word}"
        f"{_surety(found)}; about {saved:,} tokens are saved ({100 * figures.saved:.1f} % of all)."
    )
    rows = [
        _row("this policy", figures, figures.stopped, figures.lost, figures.saved, figures.saved_interval)
    ]
    budget = figures.budget
    if budget is not None:
        rows.append(
            _row(
                f"fixed budget of {budget.budget:,} tokens",
                figures,
                budget.stopped,
                budget.lost,
                budget.saved,
                budget.saved_interval,
            )
        )
    note = f"{weighted_words(found)} ".lstrip() + (
        "Seen on the calibration problems, with 95 % intervals. The budget is the one that saves most there "
        "at no more losses; it was chosen by looking, so it carries no promise."
    )
    return FirstPage(lead, HEAD, rows, note, _expiry(found))


def direction_words(figures: Figures) -> str:
    """Which way the score points, and how many traces it stopped and never stopped."""
    stopped, found = figures.stopped, figures.direction
    never = 100 * (1 - stopped.value)
    fired = f"{stopped.count} of {stopped.n} traces stopped, {never:.1f} % never reached a stop"
    if found is None or found.auroc is None:
        return f"Direction of the score: not known (no good, or no bad boundary). {fired}."
    return (
        f"Direction of the score: AUROC {found.auroc:.3f} over {found.boundaries:,} boundaries (above 0.5: "
        f"higher is safer to stop). {fired}."
    )


def direction_warning(figures: Figures) -> str | None:
    """What to say loudly of a score that is higher where a stop is worse."""
    found = figures.direction
    if found is None or found.auroc is None or not found.wrong:
        return None
    return (
        f"THE SCORE '{figures.certified.scorer}' POINTS THE WRONG WAY: AUROC {found.auroc:.3f} < 0.5 over "
        f"{found.boundaries:,} boundaries, it is higher where a stop is worse. desist stops at HIGH scores: "
        "store 1 - score if this one measures doubt, else train again. Do not serve with it."
    )


def point_rows(figures: Figures) -> list[list[str]]:
    """Operating points: alpha, threshold, loss seen, saved; and what is left to who chooses after looking."""
    rows = []
    for point in figures.points:
        one = ["never stops", "-", "-"]
        if point.lam is not None and point.risk is not None and point.saved is not None:
            one = [f"{point.lam:.6g}", f"{100 * point.risk:.2f} %", f"{100 * point.saved:.1f} %"]
        safe = "never stops" if point.safe_lam is None else f"{point.safe_lam:.6g}"
        kept = "-" if point.safe_saved is None else f"{100 * point.safe_saved:.1f} %"
        rows.append([f"{exact_text(point.alpha * 100)} %", *one, safe, kept])
    return rows


def net_rows(figures: Figures) -> list[list[str]]:
    """Savings before and after what audits cost: their full runs, and their branches at the would-be stop."""
    share = figures.audit_share
    branch = figures.stop_tokens * figures.stopped.value / max(1e-9, figures.run_tokens)
    net = (1 - share) * figures.saved - share * branch
    return [
        ["tokens saved, no audits", f"{100 * figures.saved:.2f} %"],
        [f"audited requests ({100 * share:.3g} %) that run in full", f"-{100 * share * figures.saved:.2f} %"],
        ["their branches (hand-off and answer)", f"-{100 * share * branch:.2f} %"],
        ["net", f"{100 * net:.2f} %"],
    ]


def point_note(figures: Figures) -> str:
    """How the operating points are to be read, with both deltas."""
    count, delta = len(figures.points), figures.certified.delta
    return (
        f"Each row holds alone with delta = {exact_text(delta)}, if it was the one declared before looking. "
        f"Who looks at all {count} and then chooses needs delta/{count} = "
        f"{exact_text(delta / max(1, count))}: the last two columns."
    )


def probability_words(figures: Figures) -> str:
    """Is the score a probability? MAPIE's calibration metrics on one boundary of each trace."""
    found = figures.probability
    if found is None:
        return ""
    return (
        f"Is the score a probability? On one boundary of each of {found.n:,} traces: expected calibration "
        f"error {100 * found.ece:.1f} %, p-values of a yes {found.kolmogorov_smirnov_p:.2g} (Kolmogorov-"
        f"Smirnov) and {found.spiegelhalter_p:.2g} (Spiegelhalter). The guarantee does not need it."
    )


def weighted_words(found: Certificate) -> str:
    """What the problems are worth after weighting; empty where they were not weighted."""
    if found.n_effective is None or found.weighted_risk is None:
        return ""
    return (
        f"Weighted to a later traffic: the {found.n} calibration problems are worth {found.n_effective:.1f} "
        f"equal ones; {100 * found.weighted_risk:.2f} % lost by weight. Counts and intervals on this page "
        "are unweighted."
    )


def floor_rows(figures: Figures) -> list[list[str]]:
    """The model's disagreement with itself; a floor of alpha or more says that consistency cannot be had."""
    alpha = float(figures.certified.alpha)
    bound = figures.certified.loss == "consistency"
    return [
        [name, f"{100 * value:.1f} %", "cannot certify consistency" if bound and value >= alpha else ""]
        for name, value in figures.floors.items()
    ]


def _row(
    name: str, figures: Figures, stopped: Share, lost: Share, saved: float, interval: Interval
) -> list[str]:
    low, high = (_tokens(figures, value) for value in interval)
    return [
        name,
        _of_requests(stopped),
        _of_requests(lost),
        f"{_tokens(figures, saved):,} ({low:,} to {high:,})",
        _seconds(figures, saved, interval),
    ]


def _of_requests(share: Share) -> str:
    low, middle, high = (_REQUESTS * value for value in (share.low, share.value, share.high))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def _tokens(figures: Figures, saved: float) -> int:
    return round(_REQUESTS * saved * figures.run_tokens)


def _seconds(figures: Figures, saved: float, interval: Sequence[float]) -> str:
    speed = figures.tokens_per_second
    if speed is None:
        return "not known (--tokens-per-second)"
    middle, low, high = (round(_tokens(figures, value) / speed) for value in (saved, *interval))
    return f"{middle:,} ({low:,} to {high:,})"


def _surety(found: Certificate) -> str:
    if not found.certified:
        return " (not certified here: loaded by force)"
    if found.guarantee == "pac":
        return f", which is wrong for {exact_text(found.delta * 100)} of 100 such calibrations at most"
    return " on average over such calibrations"


def _expiry(found: Certificate) -> str:
    if not found.expires:
        return "No date was set. Calibrate again when the traffic changes."
    try:
        until = datetime.date.fromisoformat(found.expires)
    except ValueError:
        return found.expires
    return f"{until.isoformat()}. Nothing is switched off then: calibrate again, on newer traffic, before."
