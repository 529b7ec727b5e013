from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from desist.calibration.calibrate import calibrate, one_per_problem, problem_hash
from desist.calibration.certificate import CannotCertify, Certificate, load_certificate, load_for_running
from desist.calibration.fingerprints import FIELDS
from desist.calibration.scorers import agreement
from desist.controller import builtin_profile, get_profile
from desist.controller.core import Policy
from desist.controller.fingerprints import profile_fingerprints
from desist.data.errors import ArtifactMismatch, CalibrationError
from tests.fakes.traces import make_trace, make_traces


def builtin_folder() -> Path:
    return Path(str(files("desist.calibration").joinpath("builtin")))


FINGERPRINTS = {"model": "m1", "probe": "p1", "judge": "math"}


def certified(method: str = "ltt", n: int = 300, **settings: object) -> Certificate:
    plan: dict[str, object] = {"alpha": 0.1, "delta": "0.1", "loss": "consistency", "forbidden_problems": ()}
    found = calibrate(
        make_traces(n, 7),
        method=method,
        fingerprints=FINGERPRINTS,
        created="2026-01-01",
        **{**plan, **settings},
    )
    assert isinstance(found, Certificate)
    return found


@pytest.mark.parametrize("method", ["ltt", "pac"])
@pytest.mark.parametrize("loss", ["consistency", "harm"])
def test_a_certificate_holds_what_was_declared_and_what_was_found(method: str, loss: str) -> None:
    found = certified(method, loss=loss, patience=2, ema=0.5)
    assert (found.alpha, found.delta, found.method, found.loss) == (
        Fraction(1, 10),
        Fraction(1, 10),
        method,
        loss,
    )
    assert found.n == 300
    assert found.n_bad / found.n == found.risk <= 0.1
    assert found.risk_low <= found.risk <= found.risk_high
    assert 0 < found.saved_fraction < 1
    assert found.kinds == ("cue", "paragraph")
    assert len(found.problems) == 300
    assert "at least 90 % over the 300 calibration problems" in found.text
    assert found.policy() == Policy("probe", found.lam, 2, 0, 0.5, certified=True)


def test_round_trip(tmp_path: Path) -> None:
    found = certified()
    path = found.save(tmp_path / "deep" / "certificate.json")
    assert load_certificate(path, expect=FINGERPRINTS) == found
    assert [entry.name for entry in path.parent.iterdir()] == ["certificate.json"]
    assert json.loads(path.read_text())["alpha"] == "0.1"


@pytest.mark.parametrize(
    ("key", "value"), [("lam", 0.1), ("alpha", "0.05"), ("n_bad", 0), ("text", "always")]
)
def test_a_changed_file_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = certified().save(tmp_path / "c.json")
    document = json.loads(path.read_text())
    assert document[key] != value
    path.write_text(json.dumps({**document, key: value}))
    with pytest.raises(CalibrationError, match="changed after it was made"):
        load_certificate(path)


def rewrite(path: Path, **changes: object) -> None:
    """Change a file and give it the digest that fits: what another version of desist would write."""
    document = {**json.loads(path.read_text()), **changes}
    document.pop("digest")
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**document, "digest": hashlib.sha256(plain.encode()).hexdigest()}))


@pytest.mark.parametrize("version", [2, "2.0", "0.9", "next", True, None])
def test_unknown_major_versions_are_refused(tmp_path: Path, version: object) -> None:
    path = certified().save(tmp_path / "c.json")
    rewrite(path, schema_version=version)
    with pytest.raises(CalibrationError, match=f"version {version!r}"):
        load_certificate(path)


def test_a_higher_minor_version_is_read_and_its_new_fields_are_left_out(tmp_path: Path) -> None:
    found = certified()
    path = found.save(tmp_path / "c.json")
    rewrite(path, schema_version="1.9", later="x")
    assert load_certificate(path).model_copy(update={"schema_version": found.schema_version}) == found
    rewrite(path, schema_version="1.0")  # an own field of a version that had none is no certificate
    with pytest.raises(CalibrationError, match="no valid certificate"):
        load_certificate(path)


def test_the_first_certificates_keep_their_digest() -> None:
    paths = [p for p in Path(builtin_folder()).glob("*.json") if not p.name.endswith(".estimates.json")]
    assert len(paths) == 4
    for path in paths:
        assert load_certificate(path).digest == json.loads(path.read_text())["digest"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = certified().save(tmp_path / "c.json")
    rewrite(path, extra=2)
    with pytest.raises(CalibrationError, match="no valid certificate"):
        load_certificate(path)
    path.write_text("[]")
    with pytest.raises(CalibrationError, match="no certificate"):
        load_certificate(path)
    with pytest.raises(CalibrationError, match="desist calibrate"):
        load_certificate(tmp_path / "absent.json")


def test_a_mismatch_is_refused_or_forced_and_then_uncertified(tmp_path: Path) -> None:
    path = certified().save(tmp_path / "c.json")
    other = {**FINGERPRINTS, "model": "m2", "template": "t1"}
    with pytest.raises(ArtifactMismatch, match=r"model: certified 'm1', running 'm2'; template"):
        load_certificate(path, expect=other)
    forced = load_certificate(path, expect=other, force=True)
    assert forced.voided == ("model", "template")
    assert not forced.certified
    assert not forced.policy().certified
    assert load_certificate(path, expect={"model": "m1"}).policy().certified


RUNNING = {
    **{name: f"{name}-1" for name in FIELDS},
    "kinds": "cue,paragraph", "judge": "math", "answer_mode": "write",
    "patience": "2", "warmup": "10", "smoothing": "0.5",
}  # fmt: skip


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that states every field."""
    found = certified().model_copy(
        update={"fingerprints": RUNNING, "patience": 2, "warmup_tokens": 10, "ema": 0.5}
    )
    return found.save(tmp_path_factory.mktemp("certificate") / "c.json")


def test_what_runs_as_calibrated_is_accepted(complete: Path) -> None:
    found = load_certificate(complete, expect=RUNNING)
    assert found.certified
    assert found.policy().certified
    assert set(found.prints) == set(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_a_mismatch_of_any_single_field_is_refused_with_its_name(complete: Path, field: str) -> None:
    other = {**RUNNING, field: "another"}
    with pytest.raises(
        ArtifactMismatch, match=rf"\({field}: certified '{RUNNING[field]}', running 'another'\)"
    ):
        load_for_running(complete, other)
    forced = load_for_running(complete, other, force=True)
    assert forced.voided == (field,)
    assert not forced.policy().certified


@pytest.mark.parametrize("kinds", ["cue,every_n,paragraph", "every_n", "cue"])
def test_other_boundary_kinds_than_the_calibrated_ones_are_refused(complete: Path, kinds: str) -> None:
    with pytest.raises(ArtifactMismatch, match="kinds: certified 'cue,paragraph'"):
        load_certificate(complete, expect={"kinds": kinds})


def test_a_certificate_without_single_fields_is_asked_for_the_whole_profile(tmp_path: Path) -> None:
    prints = profile_fingerprints(builtin_profile())
    path = (
        certified().model_copy(update={"fingerprints": {"profile": prints["profile"]}}).save(tmp_path / "c")
    )
    assert load_certificate(path, expect=prints).certified
    other = profile_fingerprints(get_profile("qwen3"))
    with pytest.raises(ArtifactMismatch, match=r"hand_off: .*; profile: .*; tags: "):
        load_certificate(path, expect=other)
    with pytest.raises(ArtifactMismatch, match=r"\(cue: certified 'kept', running 'rewound'\)"):
        load_certificate(path, expect={**prints, "cue": "rewound"})


def test_each_part_of_a_profile_has_a_field_of_its_own() -> None:
    base = builtin_profile()
    before = profile_fingerprints(base)
    changes: dict[str, dict[str, object]] = {
        "tags": {"assistant_header": "x"},
        "cues": {"cues": ("so",)},
        "kinds": {"kinds": ("cue", "paragraph", "token")},
        "hand_off": {"handoff_write": f"Done. {base.think_close}"},
    }
    for field, change in changes.items():
        after = profile_fingerprints(replace(base, **change))  # type: ignore[arg-type]
        assert {name for name in after if after[name] != before.get(name)} == {"profile", field}


def test_pac_covers_higher_thresholds_never_lower_ones() -> None:
    found = certified("pac")
    assert found.policy(found.lam + 0.01).certified
    with pytest.raises(CalibrationError, match="not covered"):
        found.policy(found.lam - 1e-9)


def test_ltt_covers_what_it_tested() -> None:
    found = certified("ltt")
    assert found.lowest <= found.lam
    assert found.policy(found.lowest).lam == found.lowest
    assert found.policy(0.999).certified
    for lam in (0.9991234, np.nextafter(found.lowest, 0)):
        with pytest.raises(CalibrationError, match="not covered"):
            found.policy(float(lam))


def test_R61_too_few_problems_cannot_certify_and_say_how_many_are_needed() -> None:
    for method in ("pac", "ltt"):
        refused = calibrate(
            make_traces(58, 1), alpha=0.05, delta=0.05, loss="harm", method=method, forbidden_problems=()
        )
        assert isinstance(refused, CannotCertify)
        assert (refused.reason, refused.needed_n, refused.n) == ("too_few", 59, 58)
        assert "need n >= 59" in refused.message
        assert refused.policy().lam is None
        assert not refused.policy().certified


def test_R65_a_risky_scorer_cannot_certify() -> None:
    wrong = [make_trace([0.9, 0.1], [True, False], name=f"{k}") for k in range(100)]
    for method in ("pac", "ltt"):
        refused = calibrate(
            wrong, alpha=0.1, delta=0.1, loss="consistency", method=method, forbidden_problems=()
        )
        assert isinstance(refused, CannotCertify)
        assert (refused.reason, refused.n_bad, refused.needed_n) == ("too_risky", 100, None)


def test_R58_a_silent_scorer_and_a_costly_one_are_told_apart() -> None:
    silent = [make_trace([0.0, 0.0], [False, False], name=f"{k}") for k in range(100)]
    refused = calibrate(silent, alpha=0.1, delta=0.1, loss="consistency", forbidden_problems=())
    assert isinstance(refused, CannotCertify)
    assert refused.reason == "no_stops"
    costly = [
        make_trace([0.5, 0.5], [False, False], name=f"{k}", gap=1, answer_tokens=500) for k in range(100)
    ]
    # Answers forced at each boundary cost more than the reasoning that they save.
    refused = calibrate(
        costly, alpha=0.1, delta=0.1, loss="consistency", scorer=agreement(), forbidden_problems=()
    )
    assert isinstance(refused, CannotCertify)
    assert refused.reason == "no_gain"


def test_adding_traces_that_never_cross_never_raises_the_threshold() -> None:
    traces = make_traces(150, 3)
    silent = [make_trace([0.0], [False], name=f"silent{k}") for k in range(60)]
    for method in ("pac", "ltt"):
        lams = []
        for extra in (0, 10, 30, 60):
            found = calibrate(
                traces + silent[:extra],
                alpha=0.1,
                delta=0.1,
                loss="consistency",
                method=method,
                forbidden_problems=(),
            )
            lams.append(found.lowest if isinstance(found, Certificate) else 1.0)
        assert lams == sorted(lams, reverse=True)
        assert lams[-1] < lams[0]


def test_the_order_of_traces_does_not_matter() -> None:
    traces = make_traces(120, 4)
    settings = {"alpha": 0.1, "delta": 0.1, "loss": "consistency", "forbidden_problems": ()}
    assert calibrate(traces, **settings) == calibrate(traces[::-1], **settings)  # type: ignore[arg-type]


def test_R63_problems_seen_in_training_are_refused_with_count_and_examples() -> None:
    traces = make_traces(80, 2)
    forbidden = {problem_hash(traces[3]), traces[5].problem_id, "other"}
    with pytest.raises(CalibrationError, match=r"2 problems were used in training.*problem-2-3"):
        calibrate(traces, alpha=0.1, delta=0.1, loss="harm", forbidden_problems=forbidden)


def test_R63_one_trace_of_each_problem_is_taken_by_hash() -> None:
    traces = make_traces(60, 9)
    again = [replace(trace, trace_id=f"{trace.trace_id}-again") for trace in traces[:20]]
    kept, others = one_per_problem(traces + again, seed=1)
    assert (len(kept), others) == (60, 20)
    assert {t.trace_id for t in kept} == {
        t.trace_id for t in one_per_problem(again[::-1] + traces, seed=1)[0]
    }
    assert 0 < sum(t.trace_id.endswith("again") for t in kept) < 20
    found = calibrate(traces + again, alpha=0.1, delta=0.1, loss="harm", forbidden_problems=())
    assert isinstance(found, Certificate)
    assert (found.n, found.other_samples) == (60, 20)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [("alpha", 0, "strictly between"), ("delta", 1, "strictly between"), ("loss", "regret", "loss"),
     ("ema", 0, "ema"), ("patience", 0, "patience"), ("method", "best", "method")],
)  # fmt: skip
def test_senseless_settings_are_refused(setting: str, value: object, message: str) -> None:
    settings = {"alpha": 0.1, "delta": 0.1, "loss": "harm", "forbidden_problems": (), setting: value}
    with pytest.raises(CalibrationError, match=message):
        calibrate(make_traces(40, 1), **settings)  # type: ignore[arg-type]


def test_a_grid_must_fall_and_is_written_into_the_certificate() -> None:
    settings = {"alpha": 0.1, "delta": 0.1, "loss": "harm", "forbidden_problems": ()}
    with pytest.raises(CalibrationError, match="safest first"):
        calibrate(make_traces(60, 1), grid=np.asarray([0.1, 0.9]), **settings)  # type: ignore[arg-type]
    found = calibrate(make_traces(60, 1), grid=np.asarray([1.0, 0.95, 0.9]), **settings)  # type: ignore[arg-type]
    assert isinstance(found, Certificate)
    assert found.grid_values == (1.0, 0.95, 0.9)
    assert not found.covers(0.93)
