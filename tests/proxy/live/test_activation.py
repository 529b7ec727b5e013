"""A pair that is activated, staged or rolled back takes effect in a server that goes on running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from desist.calibration.activation import ActivationFolder
from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import Certificate, load_certificate
from desist.data.errors import ArtifactMismatch, EngineError
from desist.data.fingerprint import fingerprint
from desist.data.schema import Sampling
from desist.proxy import Settings, create_app
from desist.proxy.live.certificates import load_points, running_prints
from tests.fakes.engine import FakeEngine
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.traces import make_traces


@dataclass
class Reloading(FakeEngine):
    """A fake with a model, a sampler and a probe that can be exchanged; the probe is its folder's text."""

    probe: str = "p0"
    reloads: list[Path] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"model": "m", "probe": self.probe}

    async def reload(
        self, *, probe: Path | None = None, certificates: Any = None, force: bool = False
    ) -> None:
        if probe is not None:
            if (probe / "broken").exists():
                raise EngineError("no such probe")
            self.reloads.append(probe)
            self.probe = (probe / "card").read_text()


def certificate(home: Path, alpha: str, probe: str, **prints: str) -> Path:
    found = calibrate(
        make_traces(200, 7),
        alpha=alpha,
        delta="0.1",
        loss="consistency",
        forbidden_problems=(),
        fingerprints={"model": "m", "probe": probe, "sampler": fingerprint([1.0, 1.0, 0]), **prints},
    )
    assert isinstance(found, Certificate)
    return found.save(home / f"{alpha}-{probe}.json")


def probe(home: Path, name: str) -> Path:
    (home / name).mkdir(exist_ok=True)
    (home / name / "card").write_text(name)
    return home / name


@pytest.fixture
def engine() -> Reloading:
    return Reloading()


@pytest.fixture
def folder(tmp_path: Path) -> ActivationFolder:
    return ActivationFolder(tmp_path / "active")


@pytest.fixture
def base(tmp_path: Path, folder: ActivationFolder, engine: Reloading) -> Iterator[str]:
    """A server that starts with the pair (0.1, p0)."""
    folder.activate([certificate(tmp_path, "0.1", "p0")], probe(tmp_path, "p0"))
    settings = Settings(activation=folder.folder, model="m")
    with live_server(create_app(settings, engine=engine)) as address:
        yield address


def told(base: str) -> dict[str, Any]:
    body = {"model": "fake", "messages": [{"role": "user", "content": "2+2?"}]}
    found: dict[str, Any] = HTTP.post(f"{base}/v1/chat/completions", json=body).json()["desist"]
    return found


def details(base: str) -> str:
    return str(HTTP.get(f"{base}/readyz").json().get("details", {}).get("activation", ""))


def test_activation_and_rollback_take_effect_without_a_restart(
    base: str, folder: ActivationFolder, engine: Reloading, tmp_path: Path
) -> None:
    assert told(base)["alpha"] == 0.1
    folder.activate([certificate(tmp_path, "0.2", "p1")], probe(tmp_path, "p1"))
    wait_for(lambda: told(base)["alpha"] == 0.2)
    assert engine.probe == "p1"
    folder.rollback()
    wait_for(lambda: told(base)["alpha"] == 0.1)
    assert engine.probe == "p0"
    assert (engine.life, details(base)) == (["start"], "")


def test_a_certificate_that_does_not_fit_leaves_what_runs(
    base: str, folder: ActivationFolder, tmp_path: Path
) -> None:
    folder.activate([certificate(tmp_path, "0.2", "p0", model="another")], probe(tmp_path, "p0"))
    wait_for(lambda: "model: certified 'another', running 'm'" in details(base))
    assert told(base)["alpha"] == 0.1
    folder.rollback()
    wait_for(lambda: details(base) == "")
    assert told(base)["alpha"] == 0.1


def test_a_probe_without_its_certificate_stops_nothing_and_a_broken_one_is_not_taken(
    base: str, folder: ActivationFolder, engine: Reloading, tmp_path: Path
) -> None:
    broken = probe(tmp_path, "p2")
    (broken / "broken").touch()
    folder.activate([certificate(tmp_path, "0.2", "p2")], broken)
    wait_for(lambda: "no such probe" in details(base))
    assert (told(base)["alpha"], engine.probe) == (0.1, "p0")
    folder.activate([certificate(tmp_path, "0.2", "p1")], probe(tmp_path, "p3"))
    wait_for(lambda: "probe: certified 'p1', running 'p3'" in details(base))
    assert told(base)["threshold"] is None
    folder.rollback()  # to the broken one
    folder.rollback()
    wait_for(lambda: told(base)["alpha"] == 0.1)


def test_a_stage_takes_its_share_of_requests(base: str, folder: ActivationFolder, tmp_path: Path) -> None:
    folder.activate([certificate(tmp_path, "0.2", "p0")], probe(tmp_path, "p0"), percent=50)
    wait_for(lambda: told(base)["alpha"] == 0.2)
    seen = [told(base)["alpha"] for _ in range(60)]
    assert set(seen) == {0.1, 0.2}  # all alike: once in 2**59
    folder.activate([certificate(tmp_path, "0.2", "p0")], probe(tmp_path, "p0"))
    wait_for(lambda: {told(base)["alpha"] for _ in range(5)} == {0.2})


def test_a_pair_is_forced_in_until_another_one_comes(
    base: str, folder: ActivationFolder, tmp_path: Path
) -> None:
    folder.activate([certificate(tmp_path, "0.2", "p0", model="another")], probe(tmp_path, "p0"), force=True)
    wait_for(lambda: told(base)["alpha"] == 0.2)
    assert told(base)["uncertified"] == "loaded by force although model differ from what was calibrated"
    folder.rollback()
    wait_for(lambda: told(base)["alpha"] == 0.1)
    assert told(base)["uncertified"] is None


def test_a_pair_that_does_not_fit_at_the_start_is_refused(folder: ActivationFolder, tmp_path: Path) -> None:
    folder.activate([certificate(tmp_path, "0.1", "p9")])
    app = create_app(Settings(activation=folder.folder, model="m"), engine=Reloading())

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(ArtifactMismatch, match="probe: certified 'p9', running 'p0'"):
        asyncio.run(start())


@pytest.mark.parametrize(("temperature", "fits"), [(1.0, True), (0.5, False)])
def test_the_server_s_own_sampler_is_one_of_the_fields(
    tmp_path: Path, temperature: float, fits: bool
) -> None:
    engine = Reloading()
    settings = Settings(certificates=(certificate(tmp_path, "0.1", "p0"),), model="m")
    prints = running_prints(engine, Sampling(temperature=temperature))
    if fits:
        assert load_points(settings, prints)[0].policy.certified
        return
    with pytest.raises(ArtifactMismatch, match="sampler"):
        load_points(settings, prints)
    (forced,) = load_points(settings.model_copy(update={"force_certificates": True}), prints)
    assert (forced.voided, forced.policy.certified) == (("sampler",), False)


def test_what_was_forced_is_uncertified_in_every_response_and_metric(tmp_path: Path) -> None:
    """The built-in reasoner under its own certificate, of another model by the file."""
    builtin = Path(str(files("desist.calibration").joinpath("builtin/consistency-0.1.json")))
    own = load_certificate(builtin)
    foreign = own.model_copy(update={"fingerprints": {**own.fingerprints, "model": "another"}})
    path = foreign.save(tmp_path / "foreign.json")
    app = create_app(Settings(certificates=(path,), force_certificates=True))
    with live_server(app) as base:
        for number in range(6):
            ask = f"Tom has {number + 3} pens and buys {number} more. How many pens does he have?"
            body = {"messages": [{"role": "user", "content": ask}], "seed": number, "max_tokens": 300}
            reply = HTTP.post(f"{base}/v1/chat/completions", json=body)
            told = reply.json()["desist"]
            assert told["uncertified"] == "loaded by force although model differ from what was calibrated"
            assert (told["certified"], reply.headers["x-desist-certified"]) == (False, "false")
        metrics = HTTP.get(f"{base}/metrics").text
    assert 'certified="false",mode="active",reason="probe"' in metrics  # thinking was stopped at least once
    assert 'certified="true"' not in metrics
