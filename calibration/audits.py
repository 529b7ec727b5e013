"""Audits: what became of requests that a coin, tossed before they started, let run on beside their stop.

Knows verdicts, counts and certificates; no text, no ids of people. The unit is the problem: of several
audits of one problem the first counts. An audit that was begun and never judged counts AGAINST a
certificate (as a loss) and never FOR an alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from desist.calibration.audits_bound import RiskBounds, needed_audits
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.exact import at_most, exact_text, level
from desist.calibration.intervals import Interval, clopper_pearson
from desist.calibration.monitor_folder import MonitorFolder
from desist.calibration.pac import needed_n, smallest_n
from desist.data.errors import CalibrationError

__all__ = [
    "AuditRecord",
    "AuditSummary",
    "AuditTable",
    "Change",
    "certificate_diff",
    "recertify",
    "summarise",
]

Verdict = Literal["open", "same", "different", "unjudged"]


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audit.

    `certificate`: digest of the one that decided. `problem`: salted hash of the prompt. `verdict`: "open"
    until it is judged; "unjudged" where the judge failed (a loss). Tokens: those of the client's response,
    those of the full run, and what the audit cost the operator on top.
    """

    number: int
    certificate: str
    problem: bytes
    stopped: bool
    verdict: Verdict
    client_tokens: int = 0
    full_tokens: int = 0
    extra_tokens: int = 0

    @property
    def lost(self) -> bool:
        """Whether it counts as a loss for a certificate."""
        return self.verdict != "same"


class AuditTable:
    """The audits in a monitoring folder: a line when the coin falls, and another when it is judged.

    Memory stays constant: what was written is read from the file when it is asked for.
    """

    def __init__(self, folder: MonitorFolder) -> None:
        self._folder = folder
        self._last = max((int(line["number"]) for line in folder.lines()), default=0)

    def open(self, certificate: str, problem: bytes) -> int:
        """Note that an audit begins; its number. One that is never closed stays "open"."""
        self._last += 1
        self._folder.append({"number": self._last, "certificate": certificate, "problem": problem.hex()})
        return self._last

    def close(
        self,
        number: int,
        verdict: Verdict,
        *,
        stopped: bool,
        client_tokens: int,
        full_tokens: int,
        extra_tokens: int,
    ) -> None:
        """Write the verdict of an audit."""
        told = {"verdict": verdict, "stopped": stopped, "client_tokens": client_tokens}
        self._folder.append(
            {"number": number, **told, "full_tokens": full_tokens, "extra_tokens": extra_tokens}
        )

    def records(self, certificate: str | None = None) -> list[AuditRecord]:
        """The audits of one certificate (None: of all), in the order in which they began."""
        found: dict[int, AuditRecord] = {}
        for line in self._folder.lines():
            number = int(line["number"])
            if "certificate" in line:
                if certificate in (None, line["certificate"]):
                    problem = bytes.fromhex(line["problem"])
                    found[number] = AuditRecord(number, line["certificate"], problem, False, "open")
            elif number in found:
                told = {name: value for name, value in line.items() if name != "number"}
                found[number] = replace(found[number], **told)
        return list(found.values())


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Audits of distinct problems. `interval`: exact, 95 %, for this n; `anytime`: at every look.

    `n_open` of them were never judged and are counted as losses; `repeats` were left out.
    """

    n: int
    n_stopped: int
    n_lost: int
    n_open: int
    repeats: int
    interval: Interval
    anytime: Interval
    client_tokens: int
    full_tokens: int
    extra_tokens: int
    needed: str

    @property
    def saved_fraction(self) -> float:
        """Share of the full runs' tokens that clients were spared, audits' own cost not deducted."""
        return 1 - self.client_tokens / self.full_tokens if self.full_tokens else 0.0


def summarise(records: Iterable[AuditRecord], delta: Fraction = Fraction(1, 20)) -> AuditSummary:
    """Counts and intervals of `records`, one per problem."""
    kept, repeats = _one_per_problem(records)
    n, lost = len(kept), sum(record.lost for record in kept)
    judged = [record for record in kept if record.verdict != "open"]
    return AuditSummary(
        n,
        sum(record.stopped for record in kept),
        lost,
        n - len(judged),
        repeats,
        clopper_pearson(lost, n),
        RiskBounds(delta, n, lost).interval,
        sum(record.client_tokens for record in judged),
        sum(record.full_tokens for record in judged),
        sum(record.extra_tokens for record in kept),
        needed_audits(delta),
    )


def recertify(
    old: Certificate, records: Iterable[AuditRecord], *, created: str = "", delta: object | None = None
) -> Certificate | CannotCertify:
    """The certificate of the SAME threshold on the traffic that was audited, or why there is none.

    A fixed-sequence test with one threshold: valid because the threshold was chosen before the audits. Only
    audits of `old` count. Raises CalibrationError for a certificate whose loss audits cannot measure:
    they compare answers, and no right answer is known. For the same reason giving up goes on as before,
    and is outside the new certificate.
    """
    if old.loss != "consistency":
        raise CalibrationError(
            f"the certificate bounds {old.loss}; audits measure consistency, having no right answers. "
            "Recalibrate it from labelled traces, or audit a consistency certificate."
        )
    kept, repeats = _one_per_problem(each for each in records if each.certificate == old.digest)
    summary = summarise(kept)
    n, lost = summary.n, summary.n_lost
    certain = old.delta if delta is None else level(delta, "delta")
    declared: dict[str, Any] = {
        name: getattr(old, name) for name in CannotCertify.model_fields if hasattr(old, name)
    }
    split = None if old.delta_split is None else "each"  # made apart from those of the other groups
    declared |= {"delta": certain, "method": "ltt", "give_up_alpha": None, "delta_split": split}
    declared = {name: value for name, value in declared.items() if name not in _RESULTS}
    smallest = smallest_n(old.alpha, certain)
    if n < smallest:
        return CannotCertify(**declared, reason="too_few", n=n, n_bad=lost, needed_n=smallest)
    if not at_most(lost, n, old.alpha, certain):
        needed = needed_n(lost / n, old.alpha, certain, above=n)
        return CannotCertify(**declared, reason="too_risky", n=n, n_bad=lost, needed_n=needed)
    stated = old.model_copy(
        update={
            "delta": certain,
            "method": "ltt",
            "give_up_alpha": None,
            "n_given_up": 0,
            "delta_split": split,
        }
    )
    beside = "" if old.give_up is None else " Giving up goes on as before and is outside this certificate."
    return stated.model_copy(
        update={
            "n": n,
            "n_bad": lost,
            "n_stopped": summary.n_stopped,
            "n_truncated": 0,
            "other_samples": repeats,
            "risk": lost / n,
            "risk_low": summary.interval.low,
            "risk_high": summary.interval.high,
            "saved_fraction": summary.saved_fraction,
            "grid": "given",
            "grid_values": (old.lam,),
            "lowest": old.lam,
            "problems": (),
            "created": created,
            "text": f"{stated.statement(n)} Measured on {n} audited requests.{beside}",
        }
    )


_RESULTS = frozenset({"reason", "n", "n_bad", "needed_n", "certified"})


class Change(NamedTuple):
    """One field that two certificates have different values for, as text."""

    field: str
    old: str
    new: str


def certificate_diff(old: Certificate, new: Certificate) -> list[Change]:
    """What differs, field by field; long lists as their length."""
    first, second = old.model_dump(mode="json"), new.model_dump(mode="json")
    names = [*first, *(name for name in second if name not in first)]
    return [
        Change(name, _shown(first.get(name)), _shown(second.get(name)))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"{len(value)} entries"
    return exact_text(value) if isinstance(value, Fraction) else str(value)


def _one_per_problem(records: Iterable[AuditRecord]) -> tuple[Sequence[AuditRecord], int]:
    first: dict[tuple[str, bytes], AuditRecord] = {}
    count = 0
    for record in records:
        count += 1
        first.setdefault((record.certificate, record.problem), record)
    return list(first.values()), count - len(first)
