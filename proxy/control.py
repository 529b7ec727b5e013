"""Resolves how one request is controlled: `desist` object > header > other fields > server's default.

Knows certificates as operating points (an exact alpha and a policy) and a tenant's ceilings: a client may ask
for less than these, never for more. Does not know engines beyond the names of what they offer, and nothing of
HTTP but the names of the fields that it blames. What fields there are: `desist.proxy.controls`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

from desist.controller.core import AnswerMode, Control, Mode, Policy
from desist.data.errors import CalibrationError
from desist.data.schema import Sampling
from desist.proxy.access.tenants import EVERYONE, Tenant, lower_mode
from desist.proxy.answering.estimates import EstimateTable
from desist.proxy.controls.asked import Asked, Said, read_own, with_natives
from desist.proxy.controls.budget import BudgetChoice, choose_budget
from desist.proxy.controls.values import ReasoningFormat, parse_alpha
from desist.proxy.errors import ApiError
from desist.proxy.live.points import CertificateLike, OperatingPoint, check_offered, needs_of, of_group
from desist.proxy.settings import ControlSettings

__all__ = ["CertificateLike", "ControlResolver", "OperatingPoint", "Resolved", "check_offered", "needs_of"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The control of one request and the operating point behind it.

    `uncontrolled` says why its thinking cannot be stopped although that was asked for, `uncertified` why a
    stop would be outside the certificate. `budget_by`: the field, header or setting that the budget comes
    from. `notices`: what the client should know, one sentence each. `asked`: all that the request said.
    """

    control: Control
    point: OperatingPoint | None = None
    uncontrolled: str | None = None
    uncertified: str | None = None
    budget_by: str | None = None
    notices: tuple[str, ...] = ()
    asked: Asked = field(default_factory=Asked)

    @property
    def estimates(self) -> EstimateTable | None:
        return self.point.estimates if self.point else None

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        """How the request wants its thinking shown; None: it does not say.

        Ours first; of the others one that hides or inlines it, since "as fields" is what servers do anyway.
        """
        if self.asked.own_format is not None:
            return self.asked.own_format.value
        said = [each.value for each in self.asked.formats]
        return next((each for each in ("none", "inline", "field") if each in said), None)


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

    def mode_of(
        self, asked: Asked, *, tenant: Tenant = EVERYONE, defaults: ControlSettings | None = None
    ) -> Mode:
        """The mode of a request: its own, or the server's as far as the tenant may have it.

        Raises `ApiError` 403 where the request asks for more than the tenant may have: off < shadow < active.
        """
        if asked.mode is None:
            return lower_mode((defaults or self.defaults).mode, tenant.mode)
        if not tenant.allows_mode(asked.mode.value):
            raise _above(asked.mode, f"mode '{asked.mode.value}'", f"'{tenant.mode}'")
        return asked.mode.value

    def resolve(
        self,
        body: Mapping[str, Any],
        own: Mapping[str, Any],
        headers: Mapping[str, str],
        sampling: Sampling,
        *,
        tenant: Tenant = EVERYONE,
        defaults: ControlSettings | None = None,
        passes_through: bool = False,
        cap: Mode = "active",
    ) -> Resolved:
        """The control for a request. Raises `ApiError`, 400 or 403, that names the field.

        `body`: as the client sent it; `own`: what its `desist` object says, checked. `defaults`: the settings
        of its model (None: the server's). `passes_through`: a server behind reads the other fields itself, so
        that in mode "off" they are left to it, unless a tenant's budget must hold. `cap`: the highest mode
        that anybody may use now; it takes back the server's own budget too, and nobody is refused for it.
        """
        defaults = defaults or self.defaults
        asked = read_own(own, headers)
        wanted = self.mode_of(asked, tenant=tenant, defaults=defaults)
        mode = lower_mode(wanted, cap)
        if mode != wanted:
            asked = replace(asked, alpha=None, threshold=None)
        if not (mode == "off" and passes_through and tenant.budget is None):
            asked = with_natives(asked, body)
        choose = partial(
            choose_budget,
            asked,
            default=defaults.budget,
            efforts=defaults.efforts,
            tenant=tenant,
            max_tokens=sampling.max_tokens,
            min_answer_tokens=defaults.min_answer_tokens,
        )
        choice = choose(mode=mode)
        found = self._controlled(asked, mode, choice, sampling, tenant, defaults)
        if mode == "active" and choice.budget is not None:
            lasting = choose(mode="shadow").budget
            if lasting != choice.budget:
                found = replace(found, control=replace(found.control, lasting=lasting))
        if mode != wanted:
            found = replace(found, uncontrolled=f"the operator's kill switch is at {cap}")
        return replace(found, budget_by=choice.by, notices=choice.notices, asked=asked)

    def _controlled(
        self,
        asked: Asked,
        mode: Mode,
        choice: BudgetChoice,
        sampling: Sampling,
        tenant: Tenant,
        defaults: ControlSettings,
    ) -> Resolved:
        budget, answer = choice.budget, asked.answer.value if asked.answer else defaults.answer
        if mode == "off":
            for idle in (asked.alpha, asked.threshold):
                if idle is not None:
                    raise ApiError(
                        400,
                        f"'{idle.by}' is {float(idle.value):.6g} but the mode is 'off'. Leave it out or "
                        "ask for mode 'shadow' or 'active'.",
                        param=idle.by,
                        code="invalid_value",
                    )
            return Resolved(Control("off", Policy(), budget, answer))
        point = self._point(asked.alpha, answer, tenant, defaults)
        if asked.threshold is not None and (point is None or point.policy.lam is None):
            raise ApiError(
                400,
                f"'{asked.threshold.by}' is {asked.threshold.value:.6g}, but no certificate that stops is in "
                "use, so that it would have no effect. Leave it out.",
                param=asked.threshold.by,
                code="not_certified",
            )
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
        policy = policy.uncertified() if why else policy
        return Resolved(Control(mode, policy, budget, answer), point, uncertified=why)

    def _threshold(self, point: OperatingPoint, asked: Said[float] | None) -> Policy:
        """The point's policy, or with another threshold that its certificate covers; never a lower one."""
        if asked is None:
            return point.policy
        lowest = point.policy.lam
        try:
            if lowest is None or asked.value < lowest or point.certificate is None:
                raise CalibrationError(
                    f"the certificate's threshold is {lowest}; lower ones are not covered."
                )
            return point.certificate.policy(asked.value)
        except CalibrationError as error:
            raise ApiError(
                400,
                f"'{asked.by}' is {asked.value:.6g}: {error}",
                param=asked.by,
                code="not_certified",
            ) from error

    def _point(
        self, asked: Said[Fraction] | None, answer: AnswerMode, tenant: Tenant, defaults: ControlSettings
    ) -> OperatingPoint | None:
        """The operating point for `asked`: equal, else the nearest stricter one, else refused.

        Without it the server's alpha; without that the first point whose alpha the tenant may have.
        """
        if asked is not None and not tenant.allows_alpha(asked.value):
            raise _above(asked, f"alpha {_decimal(asked.value)}", _decimal(tenant.alpha or asked.value))
        alpha = asked.value if asked is not None else None
        if alpha is None and defaults.alpha is not None:
            alpha = parse_alpha(defaults.alpha)
        points = self.points
        if self.former is not None and 100 * self.coin() >= self.percent:
            points = self.former
        grouped = of_group(points, tenant.group)
        points = tuple(point for point in grouped if tenant.allows_alpha(point.alpha))
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
            f"'{asked.by}' is {_decimal(alpha)}: no certificate tolerates so little. Certified: {exists}. "
            "Send one of these or a larger alpha, or make one with `desist calibrate`.",
            param=asked.by,
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


def _above(asked: Said[Any], what: str, most: str) -> ApiError:
    """A client may tighten what its key has, never loosen it."""
    return ApiError(
        403,
        f"'{asked.by}' asks for {what}; this key may have {most} at most. Send that or less, or leave "
        "it out.",
        param=asked.by,
        code="above_ceiling",
    )


def _decimal(alpha: Fraction) -> str:
    return f"{float(alpha):.6g}"
