"""The vLLM engine behind the real proxy, before a stand-in server with the real plugin runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from desist.controller.core import Policy
from desist.probes.artifact import save_probe
from desist.proxy import Settings, create_app
from desist.proxy.control import OperatingPoint
from desist.proxy.engines.builtin import builtin_model
from desist.proxy.engines.vllm.beside.engine import VllmEngine
from desist.proxy.engines.vllm.wire import Closed, Event, Opened, Scored, Stopped
from desist.proxy.settings import ControlSettings, StreamSettings, UpstreamSettings, VllmSettings
from tests.fakes.server import HTTP, live_server, wait_for
from tests.fakes.vllm_server import ANSWER, PROFILE, THOUGHTS, FakeVllm, threshold_probe

MESSAGES = [{"role": "user", "content": "5 + 7?"}]
POINT = OperatingPoint(Fraction(1, 20), "harm", "write", Policy(lam=0.5, certified=True), "test")
SENTENCE = PROFILE.handoff_write.partition(PROFILE.think_close)[0]


class Stack:
    """A stand-in server and a proxy before it, with what the module's tests changed put back."""

    def __init__(self, servers: ExitStack, probe: Path | None = None, **fake: Any) -> None:
        self._servers = servers
        self.fake = FakeVllm(**fake)
        self.url = servers.enter_context(live_server(self.fake.app()))
        self.engine, self.base = self.proxy(probe=probe)

    def proxy(self, *, model: bool = True, **vllm: Any) -> tuple[VllmEngine, str]:
        settings = Settings(
            engine="vllm",
            model=str(builtin_model()) if model else None,
            upstream=UpstreamSettings(url=self.url, thinking_opened_by_template=True),
            probe=vllm.pop("probe", None),
            vllm=VllmSettings(
                profile=PROFILE.name,
                events=self.fake.publisher.endpoint,
                commands=self.fake.inbox.endpoint,
                **{"join_s": 5.0} | vllm,
            ),
            control=ControlSettings(min_answer_tokens=8),
            stream=StreamSettings(reasoning_field="reasoning"),
        )
        engine = VllmEngine(settings)
        app = create_app(settings, engine=engine, certificates=[POINT])
        return engine, self._servers.enter_context(live_server(app))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with ExitStack() as servers:
        yield Stack(servers)


@pytest.fixture(scope="module")
def parsing() -> Iterator[Stack]:
    """A server that says that it parses thinking."""
    with ExitStack() as servers:
        yield Stack(servers, parser=True, names="theirs")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_probe(threshold_probe(), tmp_path_factory.mktemp("probes") / "probe")


@pytest.fixture(autouse=True)
def put_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "stack" in request.fixturenames:
        fresh, fake = FakeVllm.__dataclass_fields__, request.getfixturevalue("stack").fake
        for name in ("script", "parser", "per_chunk", "pause_s", "lose", "mask"):
            setattr(fake, name, fresh[name].default)
        fake.bodies, fake.headers = [], []
        wait_for(lambda: not fake.runtime.tracked)
        assert request.getfixturevalue("stack").engine._connection.events.expected == 0


def ask(base: str, **body: Any) -> dict[str, Any]:
    reply = HTTP.post(f"{base}/v1/chat/completions", json={"messages": MESSAGES, **body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def texts(reply: dict[str, Any]) -> tuple[str, str]:
    message = reply["choices"][0]["message"]
    return message["reasoning"] or "", message["content"]


def metric(base: str, name: str) -> float:
    lines = HTTP.get(f"{base}/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_a_request_without_control_goes_on_untouched(stack: Stack) -> None:
    body = {
        "model": "any/name", "messages": MESSAGES, "vendor": {"deep": [1, None]}, "max_tokens": 400,
        "stop": ["never"], "logprobs": True, "vllm_xargs": {"mine": 1},
        "desist": {"mode": "off", "object": True}, "tools": [{"type": "function"}],
    }  # fmt: skip
    reply = ask(stack.base, **body)
    expected = {key: value for key, value in body.items() if key != "desist"}
    assert stack.fake.bodies[0] == expected | {
        "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip
    assert texts(reply) == (THOUGHTS + "\n", ANSWER)
    assert reply["system_fingerprint"] == "fp"
    assert "token_ids" not in json.dumps(reply)
    told = reply["desist"]
    assert (told["stop_reason"], told["boundaries_scored"], told["uncontrolled"]) == ("natural", 0, None)
    assert told["generated_tokens"] == reply["usage"]["completion_tokens"]


@pytest.mark.parametrize("parser", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 5])
@pytest.mark.parametrize("model", [False, True])
def test_a_stop_in_the_running_batch(stack: Stack, parser: bool, per_chunk: int, model: bool) -> None:
    if not parser and not model:
        return  # the stand-in leaves tags out of its text, as vLLM does: without ids nobody can tell
    stack.fake.parser, stack.fake.per_chunk = parser, per_chunk
    base = stack.base if model else stack.proxy(model=False)[1]
    reply = ask(base)
    reasoning, content = texts(reply)
    assert reasoning.strip().endswith(SENTENCE.strip())
    assert THOUGHTS.startswith(reasoning[: reasoning.index(SENTENCE)])
    assert content.strip() == ANSWER
    told, usage = reply["desist"], reply["usage"]
    assert (told["stop_reason"], told["certified"], told["mode"]) == ("probe", True, "active")
    assert told["score"] > told["threshold"] == 0.5
    assert told["forced_tokens"] == len(stack.fake.facts.vocabulary.encode(PROFILE.handoff_write))
    assert told["reasoning_tokens"] == told["stop_position"]
    assert told["generated_tokens"] == usage["completion_tokens"]
    assert told["uncontrolled"] is None
    assert told["boundaries_scored"] == told["stop_index"] + 1
    xargs = stack.fake.bodies[0]["vllm_xargs"]
    assert (xargs["desist_mode"], xargs["desist_lam"], xargs["desist_min_answer_tokens"]) == (
        "active",
        0.5,
        8,
    )
    assert stack.fake.headers[0]["x-request-id"] == xargs["desist_key"]


def test_streamed_and_whole_answers_are_equal(stack: Stack) -> None:
    whole = ask(stack.base)
    client = openai.OpenAI(base_url=f"{stack.base}/v1", api_key="none")
    chunks = list(
        client.chat.completions.create(
            model="m",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},  # type: ignore[arg-type]
        )
    )
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == texts(whole)[0]
    assert "".join(delta.content or "" for delta in deltas) == texts(whole)[1]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole["usage"]["completion_tokens"]


def test_shadow_scores_and_runs_on(stack: Stack) -> None:
    active = ask(stack.base)["desist"]
    reply = ask(stack.base, desist={"mode": "shadow"})
    assert texts(reply) == (THOUGHTS + "\n", ANSWER)
    told = reply["desist"]
    assert (told["stop_reason"], told["stop_position"]) == ("natural", None)
    assert told["shadow"]["stop_position"] == active["stop_position"]
    assert told["boundaries_scored"] > active["boundaries_scored"]


@pytest.mark.parametrize(
    "field",
    [
        {"thinking_token_budget": 6}, {"thinking_budget": 6}, {"thinking": {"budget_tokens": 6}},
        {"reasoning": {"max_tokens": 6}},
    ],
    ids=lambda field: next(iter(field)),
)  # fmt: skip
def test_a_client_s_budget_becomes_ours_and_is_enforced_once(stack: Stack, field: dict[str, Any]) -> None:
    reply = ask(stack.base, desist={"mode": "shadow"}, **field)
    told = reply["desist"]
    assert (told["stop_reason"], told["budget"], told["certified"]) == ("budget", 6, False)
    assert told["stop_position"] == 6
    sent = stack.fake.bodies[0]
    assert sent["vllm_xargs"]["desist_budget"] == 6
    assert not {"thinking_token_budget", "thinking_budget", "thinking"} & set(sent)
    assert "max_tokens" not in sent.get("reasoning", {})


def test_extract_leaves_when_the_form_is_complete(stack: Stack) -> None:
    stack.fake.after_stop, stack.fake.pause_s = "12}" + ". And so on" * 40, 0.001
    before = stack.fake.aborted
    try:
        reply = ask(stack.base, desist={"answer": "extract"})
    finally:
        stack.fake.after_stop = FakeVllm.__dataclass_fields__["after_stop"].default
    assert texts(reply)[1] == PROFILE.answer_opening("extract") + "12" + PROFILE.extract_suffix
    assert reply["choices"][0]["finish_reason"] == "stop"
    told = reply["desist"]
    assert (told["stop_reason"], told["uncontrolled"]) == ("probe", None)
    assert told["forced_tokens"] == len(stack.fake.facts.vocabulary.encode(PROFILE.handoff_extract))
    wait_for(lambda: stack.fake.aborted == before + 1)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"vllm_xargs": {"desist_lam": 0.1}}, "vllm_xargs.desist_lam"),
        ({"vllm_xargs": [1]}, "vllm_xargs"),
    ],
)
def test_what_cannot_work_is_refused_by_name(stack: Stack, body: dict[str, Any], param: str) -> None:
    url = f"{stack.base}/v1/chat/completions"
    reply = HTTP.post(url, json={"messages": MESSAGES, "desist": {"answer": "extract"}, **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert f"'{param}'" in reply.json()["error"]["message"]
    assert stack.fake.bodies == []


BOUND: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"choice": ["a"]}},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
]


@pytest.mark.parametrize("body", BOUND)
def test_a_grammar_without_a_reasoning_parser_leaves_nothing_to_control(
    stack: Stack, body: dict[str, Any]
) -> None:
    """vLLM binds from the first token: all that is written is the answer, and why is said."""
    stack.fake.script = "12<|im_end|>"
    reply = ask(stack.base, **body)
    sent = stack.fake.bodies[0]
    assert {name: sent[name] for name in body} == body
    assert "vllm_xargs" not in sent
    assert texts(reply) == ("", "12")
    assert "--reasoning-parser desist-desist-reasoner" in reply["desist"]["uncontrolled"]
    stack.fake.script = "12<|im_end|>"
    assert ask(stack.base, desist={"mode": "off", "object": True}, **body)["desist"]["uncontrolled"] is None


@pytest.mark.parametrize("body", BOUND)
def test_a_grammar_behind_a_reasoning_parser_is_controlled(parsing: Stack, body: dict[str, Any]) -> None:
    """Thinking is free and stopped as ever. vLLM would bind it where the client asks for none of it."""
    reply = ask(parsing.base, include_reasoning=False, **body)
    sent = parsing.fake.bodies.pop()
    assert {name: sent[name] for name in body} == body
    assert "include_reasoning" not in sent
    assert sent["vllm_xargs"]["desist_mode"] == "active"
    assert (reply["desist"]["stop_reason"], reply["desist"]["uncontrolled"]) == ("probe", None)
    message = reply["choices"][0]["message"]
    assert message["content"].startswith(ANSWER[:3])
    assert not message.get("reasoning")


def test_choices_and_prompts_are_requests_of_their_own(stack: Stack) -> None:
    reply = ask(stack.base, n=3, seed=10)
    assert [choice["desist"]["stop_reason"] for choice in reply["choices"]] == ["probe"] * 3
    keys = [body["vllm_xargs"]["desist_key"] for body in stack.fake.bodies]
    assert len(set(keys)) == 3
    assert sorted(headers["x-request-id"] for headers in stack.fake.headers) == sorted(keys)
    url = f"{stack.base}/v1/completions"
    prompt = "<|im_start|>user\n5 + 7?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    found = HTTP.post(url, json={"prompt": [prompt, prompt]}).json()["choices"]
    assert [choice["text"] for choice in found] == [ANSWER] * 2
    assert all(choice["reasoning"].strip().endswith(SENTENCE.strip()) for choice in found)
    off = {"prompt": prompt, "desist": {"mode": "off", "object": True}}
    raw = HTTP.post(url, json=off).json()["choices"][0]
    assert raw["text"] == f"{THOUGHTS}\n\n\n{ANSWER}"


def test_token_ids_are_shown_to_who_asks(stack: Stack) -> None:
    chat = ask(stack.base, return_token_ids=True)
    assert len(chat["choices"][0]["token_ids"]) == chat["usage"]["completion_tokens"]
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    body = {"prompt": [1, 2, 3], "return_token_ids": True}
    text = HTTP.post(f"{stack.base}/v1/completions", json=body).json()
    assert text["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert len(text["choices"][0]["token_ids"]) == text["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Scored, "events were lost"),
        (Opened, "events were lost"),
        (Stopped, "events were lost"),
        (Closed, "did not come"),
    ],
)
def test_lost_events_are_told_and_counts_stay_right(stack: Stack, kind: type[Event], words: str) -> None:
    right = ask(stack.base)["desist"]
    stack.fake.lose = lambda event: isinstance(event, kind)
    _, base = stack.proxy(join_s=0.5)
    told = ask(base)["desist"]
    assert words in told["uncontrolled"]
    same = ("stop_reason", "stop_position", "generated_tokens", "reasoning_tokens", "forced_tokens")
    assert [told[name] for name in same] == [right[name] for name in same]
    assert metric(base, "desist_vllm_incomplete_requests_total") == 1


def test_a_hand_off_that_is_masked_is_told(stack: Stack) -> None:
    stack.fake.mask = stack.fake.facts.vocabulary.encode(PROFILE.handoff_write)[0]
    reply = ask(stack.base)
    assert texts(reply) == (THOUGHTS + "\n", ANSWER)
    assert "masked" in reply["desist"]["uncontrolled"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_vllm_and_leaves_nothing_behind(stack: Stack, stream: bool) -> None:
    stack.fake.script, stack.fake.pause_s = "12 + " * 200, 0.005
    before = stack.fake.aborted
    url = f"{stack.base}/v1/chat/completions"
    body = {"messages": MESSAGES, "stream": stream, "max_tokens": 900}
    if stream:
        with httpx.stream("POST", url, json=body) as reply:
            next(iter(reply.iter_lines()))
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=0.5)
    wait_for(lambda: stack.fake.aborted == before + 1 and not stack.fake.runtime.tracked)
    wait_for(lambda: stack.engine._connection.events.expected == 0 and not stack.engine._live)


def test_what_the_server_is_and_offers(stack: Stack) -> None:
    assert stack.engine.offers == {"text", "logprobs", "hidden"}
    assert stack.engine.fingerprints["model"] == "fake"
    assert (stack.engine.sampling.temperature, stack.engine.sampling.top_p) == (0.8, 0.95)
    assert HTTP.get(f"{stack.base}/v1/models").json()["data"][0]["id"] == "reasoner"
    assert HTTP.get(f"{stack.base}/readyz").json()["status"] == "ready"
    assert metric(stack.base, 'desist_vllm_events_total{kind="taken"}') > 0


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_proxy_decides(probe: Path, kind: str) -> None:
    with ExitStack() as servers:
        own = Stack(servers, probe, decide="proxy", stream=kind, pause_s=0.004)
        engine, base = own.engine, own.base
        told = ask(base)["desist"]
        assert (told["stop_reason"], told["certified"], told["uncontrolled"]) == ("probe", False, None)
        assert told["score"] > 0.5
        assert told["stop_index"] is not None
        assert metric(base, 'desist_vllm_proxy_decisions_total{outcome="in_time"}') == 1
        size = 32 if kind == "float32" else 16
        streamed = metric(base, f'desist_vllm_streamed_boundaries_total{{dtype="{kind}"}}')
        assert metric(base, f'desist_vllm_streamed_bytes_total{{dtype="{kind}"}}') == size * streamed
        shadow = ask(base, desist={"mode": "shadow"})["desist"]
        assert shadow["stop_reason"] == "natural"
        assert shadow["shadow"]["stop_index"] == told["stop_index"]
        budget = ask(base, desist={"budget": 6})["desist"]
        assert (budget["stop_reason"], budget["stop_position"]) == ("budget", 6)
        assert engine.fingerprints["probe"]


def test_a_decision_too_late_lets_the_trace_run_on(probe: Path) -> None:
    with ExitStack() as servers:
        script = "5. Wait, 12.</think>\n\nIt is 12.<|im_end|>"
        own = Stack(
            servers, probe, decide="proxy", stream="float32", script=script, pause_s=0.02,
            state_of=lambda position: 50.0,
        )  # fmt: skip
        engine, base = own.engine, own.base
        assert engine._probes is not None
        engine._probes.remote._send = lambda command: True  # sent, and never seen again
        reply = ask(base)
        assert texts(reply) == ("5. Wait, 12.", "It is 12.")
        assert reply["desist"]["stop_reason"] == "natural"
        assert metric(base, 'desist_vllm_proxy_decisions_total{outcome="late"}') == 1


def test_a_candidate_scores_beside_the_one_that_decides(stack: Stack, probe: Path) -> None:
    with ExitStack() as servers:
        own = Stack(servers, stream="float32", pause_s=0.002)
        seen: list[Scored] = []
        settings = own.engine._settings.model_copy(
            update={"vllm": own.engine._settings.vllm.model_copy(update={"candidate": probe})}
        )
        engine = VllmEngine(settings, observer=lambda request, event: seen.append(event))
        base = servers.enter_context(live_server(create_app(settings, engine=engine, certificates=[POINT])))
        told = ask(base)["desist"]
        assert (told["stop_reason"], told["certified"]) == ("probe", True)
        assert (
            metric(base, 'desist_vllm_streamed_boundaries_total{dtype="float32"}')
            == told["boundaries_scored"]
        )
        assert metric(base, 'desist_vllm_proxy_decisions_total{outcome="in_time"}') == 0
        assert all(event.hidden is not None and event.scores for event in seen)
        seen.clear()
        ask(base, desist={"mode": "off", "object": True})  # observed all the same, and scored by nobody
        assert seen
        assert all(event.scores == {} for event in seen)
