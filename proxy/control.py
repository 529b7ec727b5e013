"""Resolves how one request is controlled: `desist` field > explicit budget > effort name > server default.

Knows certificates as operating points (an exact alpha and a policy). Does not know engines beyond the
names of what they offer, and nothing of HTTP but the names of the fields that it blames.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, cast, get_args

from desist.controller.core import AnswerMode, Control, Mode, Policy
from desist.data.errors import CalibrationError, NotOffered
from desist.data.schema import Sampling
from desist.proxy.engines.base import Need
from desist.proxy.errors import ApiError, shorten
from desist.proxy.estimates import EstimateTable
from desist.proxy.schemas import CommonBody, DesistField, parse_alpha
from desist.proxy.settings import ControlSettings

if TYPE_CHECKING:
    from desist.calibration.drift_reference import DriftReference

__all__ = ["CertificateLike", "ControlResolver", "OperatingPoint", "Resolved", "check_offered", "needs_of"]

# What each scorer of a policy reads (design, section 5). Unknown names are taken to read hidden states.
_NEEDS: Mapping[str, frozenset[Need]] = {
    "position": frozenset({"text"}),
    "first_cue": frozenset({"text"}),
    "agreement": frozenset({"text", "forced_answer"}),
    "confidence": frozenset({"text", "forced_answer", "logprobs"}),
}


class CertificateLike(Protocol):
    """What the proxy reads of a certificate."""

    @property
    def alpha(self) -> Fraction: ...
    @property
    def loss(self) -> str: ...
    @property
    def answer_mode(self) -> AnswerMode: ...
    def policy(self, lam: float | None = None, /) -> Policy: ...


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A certificate as the proxy uses it. `estimates`: how much reasoning is left (None: unknown).

    `voided`: fields that differ from what was calibrated, where it was loaded by force all the same.
    `certificate`: what is asked whether another threshold is covered (None: no other one is). `drift`: its
    calibration traces as the beginning of a drift detector's history (None: drift is not watched).
    """

    alpha: Fraction
    loss: str
    answer: AnswerMode
    policy: Policy
    name: str = ""
    estimates: EstimateTable | None = None
    voided: tuple[str, ...] = ()
    certificate: CertificateLike | None = None
    drift: DriftReference | None = None

    @property
    def digest(self) -> str:
        """Names the certificate; empty where it has no digest."""
        return str(getattr(self.certificate, "digest", ""))

    @property
    def judge(self) -> str:
        """Who decides that two answers are the same."""
        return str(getattr(self.certificate, "judge", "math"))

    @classmethod
    def of(
        cls,
        certificate: CertificateLike,
        *,
        name: str = "",
        estimates: EstimateTable | None = None,
        drift: DriftReference | None = None,
    ) -> OperatingPoint:
        return cls(
            certificate.alpha,
            certificate.loss,
            certificate.answer_mode,
            certificate.policy(),
            name,
            estimates,
            tuple(getattr(certificate, "voided", ())),
            certificate,
            drift,
        )


@dataclass(frozen=True, slots=True)
class Resolved:
    """The control of one request and the operating point behind it.

    `uncontrolled` says why its thinking cannot be stopped although that was asked for, `uncertified` why a
    stop would be outside the certificate.
    """

    control: Control
    point: OperatingPoint | None = None
    uncontrolled: str | None = None
    uncertified: str | None = None

    @property
    def estimates(self) -> EstimateTable | None:
        return self.point.estimates if self.point else None


def needs_of(policy: Policy) -> frozenset[Need]:
    """What the policy's scorer reads; nothing for a policy that never stops."""
    return frozenset() if policy.lam is None else _NEEDS.get(policy.scorer, frozenset({"hidden"}))


def check_offered(engine: str, offers: Collection[Need], points: Sequence[OperatingPoint]) -> None:
    """Refuse at start-up what the engine cannot do. Raises `NotOffered` naming the missing signal."""
    for point in points:
        missing = sorted(needs_of(point.policy) - set(offers))
        offered = ", ".join(sorted(offers)) or "nothing"
        if missing:
            raise NotOffered(
                f"certificate '{point.name or point.alpha}' decides by scorer '{point.policy.scorer}', which "
                f"reads {', '.join(missing)}; engine '{engine}' offers {offered}. "
                "Use an engine that offers it (--engine embedded or vllm), or leave the certificate out and "
                "set control.budget."
            )


@dataclass(frozen=True, slots=True)
class ControlResolver:
    """Resolves requests. `sampling` is the server's default, the sampler that the certificates are for.

    `former`: the points of requests outside a stage (None: there is no stage); a stage takes `percent` of
    requests, drawn by `coin`, uniform in [0, 1), for each request anew.
    """

    defaults: ControlSettings
    points: tuple[OperatingPoint, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    former: tuple[OperatingPoint, ...] | None = None
    percent: int = 100
    coin: Callable[[], float] = random.random

    def resolve(self, body: CommonBody, sampling: Sampling, header_mode: str | None = None) -> Resolved:
        """The control for `body`. Raises `ApiError` (400) that names the field."""
        asked = body.desist or DesistField()
        mode = self._mode(asked, header_mode)
        budget, from_request = self._budget(body, asked)
        if mode != "active" and not from_request:
            budget = None  # the server's own limit is part of what "active" means; the client's always holds
        if mode == "off":
            if asked.alpha is not None:
                raise ApiError(
                    400,
                    f"'desist.alpha' is {_decimal(asked.alpha)} but the mode is 'off'. Leave alpha out or "
                    "send desist.mode 'shadow' or 'active'.",
                    param="desist.alpha",
                    code="invalid_value",
                )
            return Resolved(Control("off", Policy(), budget, self._answer(asked)))
        answer = self._answer(asked)
        point = self._point(asked.alpha, answer)
        if point is None:
            note = None if budget is not None else "no certificate is loaded: thinking runs unstopped"
            return Resolved(Control(mode, Policy(), budget, answer), None, note)
        if point.policy.lam is None:
            note = f"the certificate for alpha {_decimal(point.alpha)} never stops: thinking runs unstopped"
            return Resolved(
                Control(mode, point.policy, budget, answer), point, None if budget is not None else note
            )
        why = self._outside(point, answer, sampling)
        policy = self._threshold(point, asked.threshold)
        policy = replace(policy, certified=False) if why else policy
        return Resolved(Control(mode, policy, budget, answer), point, uncertified=why)

    def _threshold(self, point: OperatingPoint, asked: float | None) -> Policy:
        """The point's policy, or with another threshold that its certificate covers; never a lower one."""
        if asked is None:
            return point.policy
        lowest = point.policy.lam
        try:
            if lowest is None or asked < lowest or point.certificate is None:
                raise CalibrationError(
                    f"the certificate's threshold is {lowest}; lower ones are not covered."
                )
            return point.certificate.policy(asked)
        except CalibrationError as error:
            raise ApiError(
                400,
                f"'desist.threshold' is {asked:.6g}: {error}",
                param="desist.threshold",
                code="not_certified",
            ) from error

    def _mode(self, asked: DesistField, header_mode: str | None) -> Mode:
        if asked.mode is not None:
            return asked.mode
        if header_mode is None:
            return self.defaults.mode
        for mode in get_args(Mode):
            if header_mode.strip().lower() == mode:
                return cast(Mode, mode)
        raise ApiError(
            400,
            f"header x-desist-mode is {shorten(header_mode)}. Send off, shadow or active.",
            param="x-desist-mode",
            code="invalid_value",
        )

    def _budget(self, body: CommonBody, asked: DesistField) -> tuple[int | None, bool]:
        """(budget or None, whether the request said it). One path for all aliases; -1 and null: no limit."""
        if "budget" in asked.model_fields_set:
            return _limit(asked.budget), True
        given = {
            "thinking_token_budget": body.thinking_token_budget,
            "thinking_budget": body.thinking_budget,
            "reasoning.max_tokens": body.reasoning.max_tokens if body.reasoning else None,
            "thinking.budget_tokens": body.thinking.budget_tokens if body.thinking else None,
        }
        said = {name: value for name, value in given.items() if value is not None}
        if len(set(said.values())) > 1:
            words = ", ".join(f"{name}={value}" for name, value in said.items())
            raise ApiError(
                400,
                f"the request names two budgets: {words}. Send one.",
                param=next(iter(said)),
                code="conflict",
            )
        if said:
            return _limit(next(iter(said.values()))), True
        effort = body.reasoning_effort or (body.reasoning.effort if body.reasoning else None)
        if effort is not None and self.defaults.efforts:
            if effort not in self.defaults.efforts:
                raise ApiError(
                    400,
                    f"'reasoning_effort' is {shorten(effort)}. Send one of: "
                    f"{', '.join(self.defaults.efforts)}; or an exact desist.budget.",
                    param="reasoning_effort",
                    code="invalid_value",
                )
            return self.defaults.efforts[effort], True
        return self.defaults.budget, False

    def _answer(self, asked: DesistField) -> AnswerMode:
        return asked.answer or self.defaults.answer

    def _point(self, asked: Fraction | None, answer: AnswerMode) -> OperatingPoint | None:
        """The operating point for `asked`: equal, else the nearest stricter one, else refused."""
        alpha = asked
        if alpha is None and self.defaults.alpha is not None:
            alpha = parse_alpha(self.defaults.alpha)
        points = self.points
        if self.former is not None and 100 * self.coin() >= self.percent:
            points = self.former
        fitting = [point for point in points if point.answer == answer] or list(points)
        if alpha is None:
            return fitting[0] if fitting else None
        allowed = [point for point in fitting if point.alpha <= alpha]
        if allowed:
            return max(allowed, key=lambda point: point.alpha)
        if asked is None:
            return None
        exists = ", ".join(f"{_decimal(p.alpha)} ({p.loss})" for p in fitting) or "none is loaded"
        raise ApiError(
            400,
            f"'desist.alpha' is {_decimal(alpha)}: no certificate tolerates so little. Certified: {exists}. "
            "Send one of these or a larger alpha, or make one with `desist calibrate`.",
            param="desist.alpha",
            code="no_certificate",
        )

    def _outside(self, point: OperatingPoint, answer: AnswerMode, sampling: Sampling) -> str | None:
        """Why this request is outside what was calibrated, or None."""
        if point.voided:
            return f"loaded by force although {', '.join(point.voided)} differ from what was calibrated"
        if point.answer != answer:
            return f"calibrated for answer '{point.answer}', asked for '{answer}'"
        ours = self.sampling
        if (sampling.temperature, sampling.top_p) != (ours.temperature, ours.top_p):
            return (
                f"sampled at temperature {sampling.temperature}, top_p {sampling.top_p}; calibrated at "
                f"{ours.temperature}, {ours.top_p}"
            )
        return None


def _limit(value: int | None) -> int | None:
    return None if value is None or value < 0 else value


def _decimal(alpha: Fraction) -> str:
    return f"{float(alpha):.6g}"
