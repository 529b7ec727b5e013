"""Verdicts of audits: kept through a kill, counted once a problem, and turned into a certificate or not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from desist.calibration import CannotCertify, Certificate, calibrate
from desist.calibration.audits import AuditRecord, AuditTable, certificate_diff, recertify, summarise
from desist.calibration.monitor_folder import MonitorFolder
from desist.data.errors import CalibrationError
from tests.fakes.traces import make_traces


def certificate(loss: str = "consistency", alpha: str = "0.1") -> Certificate:
    found = calibrate(
        make_traces(400, seed=1),
        alpha=alpha,
        delta="0.05",
        loss=loss,
        forbidden_problems=(),  # type: ignore[arg-type]
    )
    assert isinstance(found, Certificate)
    return found


def records(old: Certificate, verdicts: str) -> list[AuditRecord]:
    words = {"s": "same", "d": "different", "o": "open", "u": "unjudged"}
    return [
        AuditRecord(n, old.digest, n.to_bytes(8), letter != "s" or n % 2 == 0, words[letter], 60, 100, 45)  # type: ignore[arg-type]
        for n, letter in enumerate(verdicts)
    ]


def test_an_audit_that_was_begun_and_never_judged_stays_open(tmp_path: Path) -> None:
    with MonitorFolder(tmp_path / "s") as folder:
        table = AuditTable(folder)
        first, second = table.open("c", b"p1"), table.open("c", b"p2")
        table.close(first, "same", stopped=True, client_tokens=60, full_tokens=100, extra_tokens=45)
    with MonitorFolder(tmp_path / "s") as folder:
        again = AuditTable(folder)
        third = again.open("other", b"p1")
        assert [r.verdict for r in again.records("c")] == ["same", "open"]
        assert [r.number for r in again.records()] == [first, second, third]
        assert again.records("c")[0] == AuditRecord(first, "c", b"p1", True, "same", 60, 100, 45)


def test_each_problem_counts_once_and_open_audits_count_against() -> None:
    old = certificate()
    seen = records(old, "ssdou")
    seen.append(AuditRecord(9, old.digest, seen[0].problem, True, "different", 60, 100, 45))
    found = summarise(seen)
    assert (found.n, found.n_lost, found.n_open, found.repeats) == (5, 3, 1, 1)
    assert found.saved_fraction == pytest.approx(0.4)
    assert found.extra_tokens == 5 * 45
    assert found.needed == "0 losses in 59 certify 5 %, in 299 certify 1 % (delta 0.05)"
    assert found.anytime.low <= found.interval.low < 0.6 < found.interval.high <= found.anytime.high


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ("s" * 28, "too_few"),
        ("s" * 29, "certified"),
        ("s" * 28 + "d", "too_risky"),
        ("s" * 28 + "o", "too_risky"),
        ("s" * 28 + "u", "too_risky"),
        ("s" * 45 + "d", "certified"),
    ],
)
def test_the_needed_numbers_are_exact(verdicts: str, outcome: str) -> None:
    old = certificate()
    found = recertify(old, records(old, verdicts), created="2026-12-03")
    if isinstance(found, CannotCertify):
        assert found.reason == outcome
        assert found.needed_n is not None
        assert found.needed_n > found.n - (outcome == "too_few")
        return
    assert outcome == "certified"
    assert (found.lam, found.n, found.lowest) == (old.lam, len(verdicts), old.lam)
    assert found.covers(old.lam)
    assert not found.covers(min(1.0, old.lam + 0.01))
    assert "audited" in found.text
    changed = {change.field for change in certificate_diff(old, found)}
    assert {"n", "n_bad", "risk_high", "problems", "created", "text"} <= changed
    assert not {"lam", "alpha", "fingerprints", "scorer", "loss", "judge"} & changed
    assert certificate_diff(old, old) == []


def test_the_new_certificate_is_a_sound_file(tmp_path: Path) -> None:
    from desist.calibration import load_certificate

    old = certificate()
    found = recertify(old, records(old, "s" * 100))
    assert isinstance(found, Certificate)
    again = load_certificate(found.save(tmp_path / "c.json"), expect=old.fingerprints)
    assert again.digest == found.digest != old.digest
    assert again.certified


def test_a_renewed_group_holds_by_itself() -> None:
    """The others keep the certificates that were made together with the old one."""
    old = certificate().model_copy(
        update={"group": "a", "group_by": "dataset", "n_groups": 3, "delta_split": "joint"}
    )
    found = recertify(old, records(old, "s" * 200))
    assert isinstance(found, Certificate)
    assert (found.group, found.delta_split) == ("a", "each")
    assert "hold one at a time" in found.text


def test_only_audits_of_this_certificate_count() -> None:
    old = certificate()
    others = [AuditRecord(n, "another", n.to_bytes(8), True, "same") for n in range(500)]
    found = recertify(old, others)
    assert isinstance(found, CannotCertify)
    assert (found.reason, found.n) == ("too_few", 0)


def test_audits_cannot_measure_harm() -> None:
    with pytest.raises(CalibrationError, match="no right answers"):
        recertify(certificate("harm"), [])


def test_false_certificates_are_as_rare_as_delta_says() -> None:
    """Where the true risk is a little above alpha, audits certify it at most delta often."""
    old = certificate()
    rng = np.random.default_rng(0)
    n, runs = 200, 2000
    issued = 0
    outcomes: dict[int, bool] = {}
    for lost in rng.binomial(n, float(old.alpha) + 0.001, size=runs).tolist():
        if lost not in outcomes:
            found = recertify(old, records(old, "d" * lost + "s" * (n - lost)))
            outcomes[lost] = isinstance(found, Certificate)
        issued += outcomes[lost]
    assert issued <= binom.ppf(0.999, runs, float(old.delta))
    assert old.delta == Fraction(1, 20)
