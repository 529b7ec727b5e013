"""What was generated, stopped and probably saved, as the objects that go into responses.

Knows `Finished` events and the resolved control. Does not know streams or HTTP. Costs count in both
directions: forced and rewound tokens are generated tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from desist.controller.core import StopReason
from desist.proxy.answering.estimates import ESTIMATE_BASIS
from desist.proxy.control import OperatingPoint, Resolved
from desist.proxy.engines.base import Finished, Usage

__all__ = [
    "begun_object",
    "certificate_id",
    "desist_object",
    "saved_estimate",
    "summary_object",
    "usage_object",
]

_SUMMED = (
    "generated_tokens",
    "reasoning_tokens",
    "answer_tokens",
    "forced_tokens",
    "rewound_tokens",
    "reprefill_tokens",
)


def usage_object(usages: Sequence[Usage], choices_per_prompt: int = 1) -> dict[str, Any]:
    """OpenAI's `usage` over all choices. Each prompt counts once, as its choices share it."""
    prompt = sum(usage.prompt_tokens for usage in usages[::choices_per_prompt])
    completion = sum(usage.completion_tokens for usage in usages)
    reasoning = sum(usage.reasoning_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def saved_estimate(finished: Finished, resolved: Resolved) -> int | None:
    """Tokens that the stop probably saved, net of what it cost; None if there was no stop or no table."""
    decision, table = finished.decision, resolved.estimates
    if decision is None or not decision.stops or table is None:
        return None
    remaining = table.remaining_tokens(decision.position)
    if remaining is None:
        return None
    return round(remaining - finished.usage.handoff_tokens - finished.usage.rewound_tokens)


def certificate_id(point: OperatingPoint) -> str:
    """Names a certificate: its file, and the beginning of its digest."""
    return f"{point.name or 'certificate'}-{point.digest[:8]}".rstrip("-")


def _give_up_alpha(point: OperatingPoint | None) -> float | None:
    """The certified risk of giving up a problem that would have come right; None: none is certified."""
    found = None if point is None else point.give_up_alpha
    return None if found is None else float(found)


def begun_object(resolved: Resolved) -> dict[str, Any]:
    """What of the `desist` object is known before the first token."""
    point = resolved.point if resolved.control.policy.lam is not None else None
    return {
        "mode": resolved.control.mode,
        "alpha": None if point is None else float(point.alpha),
        "certificate": None if point is None else certificate_id(point),
        "budget": resolved.control.budget,
        "budget_by": resolved.budget_by,
        "uncontrolled": resolved.uncontrolled,
        "notices": list(resolved.notices),
    }


def desist_object(finished: Finished, resolved: Resolved) -> dict[str, Any]:
    """The `desist` object of one choice."""
    control, point, usage = resolved.control, resolved.point, finished.usage
    decision = finished.decision
    scored = point is not None and control.policy.lam is not None
    give_up = control.policy.give_up if scored else None
    saved = saved_estimate(finished, resolved)
    told: dict[str, Any] = {
        "mode": control.mode,
        "stop_reason": str(finished.stop_reason),
        "stop_position": decision.position if decision else None,
        "stop_index": decision.index if decision else None,
        "score": decision.score if decision else None,
        "threshold": control.policy.lam if scored else None,
        "give_up_threshold": None if give_up is None else give_up.above,
        "give_up_alpha": _give_up_alpha(point) if give_up is not None else None,
        "alpha": float(point.alpha) if point is not None and scored else None,
        "loss": point.loss if point is not None and scored else None,
        "certificate": certificate_id(point) if point is not None and scored else None,
        "certified": bool(decision and decision.certified),
        "budget": control.budget,
        "budget_by": resolved.budget_by,
        "enforced_by": finished.budget_by,
        "budget_exhausted_in_thinking": finished.finish_reason == "length"
        and finished.stop_reason is StopReason.LENGTH,
        "saved_tokens_estimate": saved,
        "saved_tokens_basis": ESTIMATE_BASIS if saved is not None else None,
        "generated_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "answer_tokens": usage.answer_tokens,
        "forced_tokens": usage.handoff_tokens,
        "rewound_tokens": usage.rewound_tokens,
        "reprefill_tokens": usage.reprefill_tokens,
        "usage_estimated": usage.estimated,
        "boundaries_scored": len(finished.boundaries),
        "uncontrolled": finished.uncontrolled or resolved.uncontrolled,
        "uncertified": resolved.uncertified,
        "notices": list(resolved.notices),
    }
    if control.mode == "shadow":
        shadow = finished.shadow
        told["shadow"] = shadow and {
            "stop_reason": str(shadow.reason),
            "stop_position": shadow.position,
            "stop_index": shadow.index,
            "score": shadow.score,
            "reasoning_tokens_after": usage.reasoning_tokens - shadow.position,
        }
    return told


def summary_object(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One `desist` object for the whole response: token counts are sums, other keys hold where all agree."""
    if len(choices) == 1:
        return choices[0]
    first = choices[0]
    told = {key: first[key] if all(c.get(key) == first[key] for c in choices) else None for key in first}
    told |= {key: sum(choice[key] for choice in choices) for key in _SUMMED}
    saved = [
        choice["saved_tokens_estimate"] for choice in choices if choice["saved_tokens_estimate"] is not None
    ]
    told["saved_tokens_estimate"] = sum(saved) if saved else None
    told["saved_tokens_basis"] = ESTIMATE_BASIS if saved else None
    told["certified"] = all(choice["certified"] for choice in choices)
    told["budget_exhausted_in_thinking"] = any(choice["budget_exhausted_in_thinking"] for choice in choices)
    return told
