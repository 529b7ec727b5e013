"""A request's control in `vllm_xargs`: flat fields with the prefix `desist_`, and `Control` again.

Knows names and ranges; the same module writes the fields in the proxy and reads them in the engine. Every
refusal names the field, the value and what may stand there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, cast, get_args

from desist.controller.core import SAME, AnswerMode, Control, GiveUp, Mode, Policy
from desist.data.errors import ControlError
from desist.proxy.intake.schemas import parse_alpha

__all__ = ["PREFIX", "AlphaPolicy", "RequestControl", "read_params", "to_xargs"]

PREFIX = "desist_"
_NAMES = (
    "key", "mode", "alpha", "lam", "scorer", "patience", "warmup_tokens", "ema", "certified", "budget",
    "lasting", "answer", "min_answer_tokens", "give_up", "give_up_after", "give_up_certified",
)  # fmt: skip
_MAX_KEY = 256
_NOTHING = -1  # of a budget: none
_MOST = 1 << 30  # more tokens than any model reads


class AlphaPolicy(Protocol):
    """What is read of a certificate: its risk and the policy that keeps it."""

    @property
    def alpha(self) -> Fraction: ...
    @property
    def answer_mode(self) -> AnswerMode: ...
    def policy(self) -> Policy: ...


@dataclass(frozen=True, slots=True)
class RequestControl:
    """What one request asks for. `control` resolves `alpha` against the certificates that are loaded."""

    key: str
    asked: Control
    alpha: Fraction | None = None
    min_answer_tokens: int | None = None

    def control(self, certificates: Sequence[AlphaPolicy] = ()) -> Control:
        """The control, `alpha` put into the policy of the nearest certificate that is at least as strict.

        Raises `ControlError` where none is.
        """
        if self.alpha is None:
            return self.asked
        fitting = [each for each in certificates if each.alpha <= self.alpha]
        if not fitting:
            known = ", ".join(f"{float(each.alpha):.6g}" for each in certificates) or "none is loaded"
            raise ControlError(
                f"vllm_xargs field '{PREFIX}alpha' is {float(self.alpha):.6g}: no certificate tolerates so "
                f"little. Certified: {known}. Send one of these, or {PREFIX}lam."
            )
        best = max(fitting, key=lambda each: (each.answer_mode == self.asked.answer, each.alpha))
        policy = best.policy()
        if best.answer_mode != self.asked.answer:
            policy = policy.uncertified()
        return replace(self.asked, policy=policy)


def to_xargs(
    key: str, control: Control, *, min_answer_tokens: int | None = None
) -> dict[str, str | int | float]:
    """The fields that say `control` for one request."""
    policy = control.policy
    fields: dict[str, str | int | float | None] = {
        "key": key,
        "mode": control.mode,
        "answer": control.answer,
        "budget": None if control.budget is None else min(control.budget, _MOST),
        "min_answer_tokens": min_answer_tokens,
    }
    if control.lasting != SAME:
        fields["lasting"] = _NOTHING if control.lasting is None else min(control.lasting, _MOST)
    if policy.lam is not None:
        fields |= {
            "lam": policy.lam,
            "scorer": policy.scorer,
            "patience": policy.patience,
            "warmup_tokens": policy.warmup_tokens,
            "ema": policy.ema,
            "certified": int(policy.certified),
        }
    if policy.give_up is not None:
        fields |= {
            "give_up": policy.give_up.above,
            "give_up_after": policy.give_up.after,
            "give_up_certified": int(policy.give_up.certified),
        }
    return {PREFIX + name: value for name, value in fields.items() if value is not None}


def read_params(extra_args: Mapping[str, Any] | None) -> RequestControl | None:
    """The control in a request's extra arguments, or None where it names none.

    Raises `ControlError` for an unknown field of ours, a wrong type or a value out of range.
    """
    given = {
        name[len(PREFIX) :]: value for name, value in (extra_args or {}).items() if name.startswith(PREFIX)
    }
    if not given:
        return None
    for name in given:
        if name not in _NAMES:
            raise ControlError(
                f"vllm_xargs field '{PREFIX}{name}' is not known. Known: "
                + ", ".join(PREFIX + known for known in _NAMES)
            )
    if "alpha" in given and "lam" in given:
        raise ControlError(f"vllm_xargs names both '{PREFIX}alpha' and '{PREFIX}lam'. Send one of them.")
    mode = _choice(given, "mode", "active", get_args(Mode))
    answer = _choice(given, "answer", "write", get_args(AnswerMode))
    policy = Policy(
        scorer=_text(given, "scorer", "probe"),
        lam=None if "lam" not in given else _number(given, "lam", -1e9, 1e9, 0.0),
        patience=_whole(given, "patience", 1, 1 << 20) or 1,
        warmup_tokens=_whole(given, "warmup_tokens", 0, 1 << 30) or 0,
        ema=_number(given, "ema", 1e-9, 1.0, 1.0),
        certified=bool(_whole(given, "certified", 0, 1) or 0),
        give_up=_give_up(given),
    )
    return RequestControl(
        _text(given, "key", ""),
        Control(
            cast(Mode, mode),
            policy,
            _whole(given, "budget", 0, _MOST),
            cast(AnswerMode, answer),
            _lasting(_whole(given, "lasting", _NOTHING, _MOST)),
        ),
        _alpha(given),
        _whole(given, "min_answer_tokens", 1, 1 << 30),
    )


def _refuse(name: str, value: object, wanted: str) -> ControlError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return ControlError(f"vllm_xargs field '{PREFIX}{name}' is {shown}; give {wanted}.")


def _choice(given: Mapping[str, Any], name: str, default: str, allowed: Sequence[str]) -> str:
    value = given.get(name, default)
    if value not in allowed or not isinstance(value, str):
        raise _refuse(name, value, f"one of {', '.join(allowed)}")
    return value


def _text(given: Mapping[str, Any], name: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or len(value) > _MAX_KEY or (name in given and not value):
        raise _refuse(name, value, f"a text of 1 to {_MAX_KEY} characters")
    return value


def _whole(given: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    if name not in given:
        return None
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _refuse(name, value, f"a whole number from {least} to {most}")
    return value


def _lasting(value: int | None) -> int | None:
    """`Control.lasting`: left out it is the budget itself, below 0 it is none."""
    return SAME if value is None else None if value == _NOTHING else value


def _give_up(given: Mapping[str, Any]) -> GiveUp | None:
    """The other side of the policy, which only goes with a threshold to stop at."""
    for name in ("give_up_after", "give_up_certified"):
        if name in given and "give_up" not in given:
            raise ControlError(f"vllm_xargs field '{PREFIX}{name}' goes with '{PREFIX}give_up'. Send both.")
    if "give_up" not in given:
        return None
    if "lam" not in given:
        raise ControlError(f"vllm_xargs field '{PREFIX}give_up' goes with '{PREFIX}lam'. Send both.")
    return GiveUp(
        _number(given, "give_up", -1e9, 1e9, 0.0),
        _whole(given, "give_up_after", 0, 1 << 30) or 0,
        bool(_whole(given, "give_up_certified", 0, 1) or 0),
    )


def _number(given: Mapping[str, Any], name: str, least: float, most: float, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise _refuse(name, value, f"a number from {least:g} to {most:g}")
    return float(value)


def _alpha(given: Mapping[str, Any]) -> Fraction | None:
    if "alpha" not in given:
        return None
    try:
        return parse_alpha(given["alpha"])
    except ValueError:
        raise _refuse("alpha", given["alpha"], "a number between 0 and 1 such as 0.05 or '1/20'") from None
