"""The guarantee of a certificate in plain English, and what makes it void. Words only."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from desist.calibration.exact import exact_text
from desist.calibration.losses import Loss, Truncated

__all__ = ["guarantee_text", "void_sentences"]

_EVENTS: dict[Loss, str] = {
    "consistency": "the answer after stopping differs from the full run's answer",
    "harm": "the full run's answer is right and the answer after stopping is wrong",
}
_SHARE = "the expected share of the run's reasoning that is cut although the answer still needed it"

_CONVENTIONS: dict[Truncated, str] = {
    "answered": "",  # the default: a stop that answers is a loss there
    "loss": " Every stop in a run that the token limit would have cut counts as a loss.",
    "no_answer": " In a run that the token limit would have cut, 'no answer' counts as its answer.",
}


def guarantee_text(
    *,
    guarantee: str,
    n: int,
    risks: Sequence[tuple[Loss, Fraction]],
    delta: Fraction,
    give_up: Fraction | None = None,
    worst: bool = False,
    truncated: Truncated = "no_answer",
    group: str | None = None,
    group_by: str | None = None,
    n_groups: int = 1,
    joint: bool = True,
    pooled: Sequence[str] = (),
    weighted: tuple[float, float | None] | None = None,
) -> str:
    """The statement for `n` calibration problems; `risks`: each loss with its level.

    `pooled`: the small groups that this one holds. `weighted`: what the problems are worth after weighting,
    and the largest weight of a new problem.
    """
    where = f" of group '{group}'" if group else ""
    if guarantee == "none":
        return (
            "No guarantee per trace: a risk that holds at each boundary can be broken in nearly every trace, "
            "which shows many of them."
        )
    if guarantee == "pac":
        head = f"With probability at least {_percent(1 - delta)} over the {n} calibration problems"
    else:
        head = f"On average over choices of {n} calibration problems (no promise about these ones)"
    traffic = "the same distribution"
    if weighted is not None:
        worth, most = weighted
        head += f", weighted to the later traffic (worth {worth:.1f} equal ones)"
        traffic = "the later traffic" + ("" if most is None else f", of weight {most:.6g} at most")
    parts = [_risk(loss, alpha) for loss, alpha in risks]
    if give_up is not None:
        parts.append(
            "the probability that a problem is given up which the full run answers right is at most "
            f"{_percent(give_up)}"
        )
    text = (
        f"{head}, for a new problem{where} from {traffic}, run with the same model, template, "
        f"sampler, probe and policy, {', and '.join(parts)}."
    )
    if worst:
        text += " A problem counts as lost when any of its samples is."
    if weighted is not None:
        text += (
            " It assumes that only the prompts differ, not what happens on a given prompt, and that the "
            "weights are right; with estimated ones the risk may be larger by half their mean error."
        )
    text += _CONVENTIONS[truncated]
    if group_by is not None:
        text += _of_groups(guarantee, group_by, n_groups, delta, joint=joint)
    if pooled:
        text += (
            f" This group holds {len(pooled)} that were too small by themselves ({', '.join(pooled)}); the "
            "statement is about all of them together, not about each."
        )
    return text


def void_sentences(answer_mode: str, *, gives_up: bool = False, weighted: bool = False) -> tuple[str, ...]:
    """What makes a statement void, one sentence each. `gives_up`: giving up is inside the statement.

    `weighted`: the problems were weighted to a later traffic.
    """
    others = "budget, loop, manual" if gives_up else "budget, loop, give-up, manual"
    kind = "the later traffic that the weights stand for" if weighted else "the calibration problems"
    return (
        f"Problems of another kind than {kind}: the statement is an average over problems "
        "like those, never a promise about a single one.",
        "Another model, tokenizer, chat template, number format, sampler, token limit, hand-off, cue set, "
        f"judge or probe, or another answer mode than '{answer_mode}': each changes answers or scores.",
        "A lower threshold, or another patience, warm-up or smoothing than the ones calibrated.",
        "Calibration problems that the probe was trained on, or repeats of one problem counted as several.",
        "Hints, steering or budget messages that change the reasoning before the stop.",
        "Trying several plans on these calibration problems and keeping the best one.",
        f"Stops for other reasons ({others}): they are outside the statement.",
    )


def _of_groups(guarantee: str, by: str, count: int, delta: Fraction, *, joint: bool) -> str:
    """Whether the statements of the groups hold together."""
    if count == 1:
        return f" It is the only group (by {by}) that was calibrated."
    if guarantee != "pac":
        return f" The statements of the {count} groups (by {by}) hold one at a time, each by itself."
    if joint:
        return (
            f" The statements of the {count} groups (by {by}) hold together with probability at least "
            f"{_percent(1 - count * delta)}: each was given 1/{count} of the error probability."
        )
    return (
        f" The statements of the {count} groups (by {by}) hold one at a time, each with the "
        "probability said, not together."
    )


def _risk(loss: Loss, alpha: Fraction) -> str:
    event = _EVENTS.get(loss)
    what = _SHARE if event is None else f"the probability that {event}"
    return f"{what} is at most {_percent(alpha)}"


def _percent(value: Fraction) -> str:
    return f"{exact_text(value * 100)} %"
