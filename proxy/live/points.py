"""Certificates as the proxy uses them: an exact alpha, a policy, and what its scorer reads.

Knows what engines call the signals that they offer. Does not know requests: `control` chooses among points.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from desist.controller.core import AnswerMode, Policy
from desist.data.errors import NotOffered
from desist.proxy.answering.estimates import EstimateTable
from desist.proxy.engines.base import Need

if TYPE_CHECKING:
    from desist.calibration.drift_reference import DriftReference

__all__ = ["CertificateLike", "OperatingPoint", "check_offered", "needs_of"]

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
    def group(self) -> str | None:
        """The group of problems that it speaks of; None: of all that it was calibrated on together."""
        found = getattr(self.certificate, "group", None)
        return None if found is None else str(found)

    @property
    def give_up_alpha(self) -> Fraction | None:
        """The certified risk of giving up a problem that would have come right; None: none is certified."""
        found = getattr(self.certificate, "give_up_alpha", None)
        return found if isinstance(found, Fraction) else None

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


def of_group(points: Sequence[OperatingPoint], group: str | None) -> Sequence[OperatingPoint]:
    """The points for problems of a group: its own where it has some, else those for no group in particular.

    A certificate of another group says nothing of these problems. None: nobody said which group it is.
    """
    if group is None:
        return points
    own = [point for point in points if point.group == group]
    return own or [point for point in points if point.group is None]


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
