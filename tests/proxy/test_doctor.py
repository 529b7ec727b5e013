"""The doctor on fake engines (each fault told), and on the embedded engine as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from desist.cli import app
from desist.controller import Action, Decision, StopReason
from desist.data.errors import EngineError
from desist.proxy.doctor import Diagnosis, diagnose
from desist.proxy.engines.base import (
    Delta,
    Event,
    Finished,
    GenerationRequest,
    ModelCard,
    ScoredBoundary,
    Usage,
)
from desist.proxy.settings import Settings


@dataclass
class FakePatient:
    """An engine with faults."""

    offers: frozenset[Any] = frozenset({"text", "hidden"})
    fails: str | None = None
    binds: bool = True
    answers: bool = True
    scores: bool = True
    uncontrolled: str | None = None
    closed: bool = False
    caps: list[str] = field(default_factory=list)

    async def start(self) -> None:
        if self.fails:
            raise EngineError(self.fails)

    async def close(self) -> None:
        self.closed = True

    async def ready(self) -> str | None:
        return None

    async def models(self) -> tuple[ModelCard, ...]:
        return (ModelCard("patient"),)

    async def set_cap(self, mode: str) -> None:
        self.caps.append(mode)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        yield Delta("reasoning", "hm")
        budget = request.control.budget
        reason = StopReason.BUDGET if budget is not None and self.binds else StopReason.NATURAL
        decision = Decision(Action.STOP, reason, 8) if reason is StopReason.BUDGET else None
        place = ScoredBoundary(
            0,
            4,
            "cue",
            "wait",
            {"probe": 0.4} if self.scores else {},
            Decision(Action.CONTINUE, StopReason.NONE, 4),
        )
        yield Finished(
            "stop",
            reason,
            Usage(5, 8, 3 if self.answers else 0, 4),
            decision,
            None,
            (place,),
            self.uncontrolled,
        )


def examine(patient: FakePatient, **settings: Any) -> Diagnosis:
    found = asyncio.run(diagnose(Settings(model="/nowhere", **settings), patient))  # type: ignore[arg-type]
    assert patient.closed
    return found


def state(found: Diagnosis, what: str) -> str:
    return next(each.state for each in found.findings if each.what == what)


def test_a_healthy_engine() -> None:
    patient = FakePatient()
    found = examine(patient)
    assert found.healthy
    assert {each.what: each.state for each in found.findings} == {
        "start": "on",
        "certificates": "off",
        "budget": "on",
        "scores": "on",
        "cancel": "on",
        "kill switch": "on",
    }
    assert patient.caps == ["shadow", "active"]


@pytest.mark.parametrize(
    ("patient", "what", "word"),
    [
        (FakePatient(fails="no such model"), "start", "no such model"),
        (FakePatient(binds=False), "budget", "did not bind"),
        (FakePatient(answers=False), "budget", "no answer"),
        (FakePatient(scores=False), "scores", "without a score"),
        (FakePatient(uncontrolled="events were lost"), "scores", "events were lost"),
    ],
)
def test_each_fault_is_told(patient: FakePatient, what: str, word: str) -> None:
    found = examine(patient)
    assert not found.healthy
    assert state(found, what) == "fails"
    assert word in found.words()


def test_an_engine_without_probes_is_no_fault() -> None:
    assert state(examine(FakePatient(offers=frozenset({"text"}))), "scores") == "off"


def test_a_certificate_that_does_not_fit_is_a_fault(tmp_path: Path) -> None:
    broken = tmp_path / "certificate.json"
    broken.write_text("{}")
    found = examine(FakePatient(), certificates=(broken,))
    assert state(found, "certificates") == "fails"


def test_the_command_on_the_built_in_reasoner() -> None:
    ran = CliRunner().invoke(app, ["doctor", "--json", "--quiet"])
    found = json.loads(ran.stdout)
    assert found["healthy"], found
    assert {each["what"] for each in found["findings"]} >= {"start", "certificates", "budget", "scores"}


def test_the_command_exits_with_two_where_nothing_can_work(tmp_path: Path) -> None:
    ran = CliRunner().invoke(
        app, ["doctor", "--json", "--quiet", "--model", str(tmp_path)], standalone_mode=False
    )
    assert ran.return_value == 2
