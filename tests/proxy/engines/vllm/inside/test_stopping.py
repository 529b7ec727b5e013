"""A stop inside the running batch: hand-off, answer, masks, choices, and what goes wrong without harm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from desist.controller import builtin_profile
from desist.proxy.engines.model import read_model
from desist.proxy.engines.vllm.wire import (
    Blocked,
    Closed,
    Identity,
    Opened,
    Scored,
    SetMode,
    StopNow,
    Stopped,
)
from desist.proxy.studies.builtin import builtin_problems
from tests.fakes.vllm_engine import (
    MODEL,
    OfflineEngine,
    complete,
    plugin_config,
    prompts_of,
    require_vllm,
    xargs,
)

LAM = 0.8


@pytest.fixture(scope="module")
def shared() -> Iterator[OfflineEngine]:
    require_vllm()
    engine = OfflineEngine.start(plugin_config(), max_num_seqs=16)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: OfflineEngine) -> Iterator[OfflineEngine]:
    """The shared engine, with nothing told yet; afterwards nothing may be left in it."""
    shared.events.clear()
    shared.runtime.limit("active")
    yield shared
    assert not shared.runtime.tracked
    assert complete(shared.events)


@pytest.fixture(scope="module")
def facts() -> Any:
    return read_model(MODEL, dtype="float32")


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    return prompts_of(builtin_problems("test", 5, 16))


def sampling(key: str = "k", **values: Any) -> Any:
    from vllm import SamplingParams

    other = {name: values.pop(name) for name in list(values) if name.startswith("x_")}
    control = {name[2:]: value for name, value in other.items()}
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": 256, "extra_args": xargs(key, **control), **values}
    )


def active(key: str = "k", **values: Any) -> Any:
    return sampling(key, x_mode="active", x_lam=LAM, x_certified=1, **values)


def test_a_stopped_request_stays_in_its_batch_and_answers(engine: Any, facts: Any, prompts: Any) -> None:
    read = engine.metric("vllm:prompt_tokens")
    generated = engine.run(prompts, [active(f"k{n}") for n in range(16)])
    handoff = facts.vocabulary.encode(builtin_profile().handoff_write)
    stops = {event.identity.key: event for event in engine.told(Stopped)}
    assert len(stops) >= 12
    for number, tokens in enumerate(generated):
        stop = stops.get(f"k{number}")
        if stop is None:
            continue
        assert stop.handoff == handoff
        assert tokens[stop.tokens : stop.tokens + len(handoff)] == handoff
        assert "\\boxed{" in facts.tokenizer.decode(tokens[stop.tokens + len(handoff) :])
        assert tokens[-1] in facts.end_ids
        assert stop.decision.certified
        assert stop.decision.score > LAM
        (closed,) = engine.told(Closed, f"k{number}")
        assert (closed.stop_reason, closed.handoff_tokens) == ("probe", len(handoff))
        assert closed.reasoning_tokens == stop.decision.position
        assert closed.tokens == len(tokens) - 1
    # Nothing was aborted, preempted or read a second time: each prompt was prefilled once.
    assert engine.metric("vllm:prompt_tokens") - read == sum(map(len, prompts))
    assert {output.outputs[0].finish_reason for output in engine.outputs} == {"stop"}
    assert engine.metric("vllm:num_preemptions") == 0


def test_extract_opens_the_answer_form(engine: Any, facts: Any, prompts: Any) -> None:
    (tokens,) = engine.run(prompts[:1], [active(x_answer="extract")])
    (stop,) = engine.told(Stopped)
    assert stop.handoff == facts.vocabulary.encode(builtin_profile().handoff_extract)
    assert facts.tokenizer.decode(tokens[stop.tokens + len(stop.handoff) :]).split("}")[0].strip().isdigit()


def test_shadow_scores_and_stops_nothing(engine: Any, prompts: Any) -> None:
    plain = engine.run(prompts, [sampling(extra_args=None) for _ in prompts])
    assert engine.events == []
    shadow = engine.run(prompts, [sampling(f"k{n}", x_mode="shadow", x_lam=LAM) for n in range(16)])
    assert shadow == plain
    assert not engine.told(Stopped)
    assert sum(event.shadow is not None for event in engine.told(Closed)) >= 12


def test_R09_a_budget_cuts_at_its_place_in_any_mode(engine: Any, prompts: Any) -> None:
    engine.run(prompts[:1], [sampling(x_mode="off", x_budget=10)])
    (stop,) = engine.told(Stopped)
    assert stop.decision.reason == "budget"
    assert stop.decision.position == 11  # 10 and a tenth of it for a clean place
    assert all(event.scores == {} for event in engine.told(Scored))


def test_a_budget_of_nothing_thinks_nothing(engine: Any, facts: Any, prompts: Any) -> None:
    handoff = facts.vocabulary.encode(builtin_profile().handoff_write)
    none = sampling("none", x_mode="off", x_budget=0)
    first, other, *_ = engine.run(prompts[:3], [none, active("other"), sampling(extra_args=None)])
    assert first[: len(handoff)] == handoff
    assert "\\boxed{" in facts.tokenizer.decode(first[len(handoff) :])
    assert other[: len(handoff)] != handoff
    (stop,) = engine.told(Stopped, "none")
    assert (stop.tokens, stop.decision.reason, stop.decision.position) == (0, "budget", 0)
    (closed,) = engine.told(Closed, "none")
    assert (closed.reasoning_tokens, closed.handoff_tokens) == (0, len(handoff))


@pytest.mark.parametrize("max_tokens", [2, 3, 8, 16])
def test_R26_the_smallest_limits_end_with_an_answer(
    engine: Any, facts: Any, prompts: Any, max_tokens: int
) -> None:
    """No room for the closing sentence: the bare tag closes thinking."""
    (tokens,) = engine.run(prompts[:1], [sampling(x_mode="active", max_tokens=max_tokens)])
    tag = facts.vocabulary.special_id("</think>")
    assert tokens.count(tag) == 1
    assert tokens.index(tag) < len(tokens) - 1


def test_choices_and_prompts_of_one_call_stop_on_their_own(engine: Any, prompts: Any) -> None:
    outputs = engine.run(prompts[:2], [active("same", n=2, temperature=0.8, top_p=0.95) for _ in range(2)])
    assert len(outputs) == 2
    identities = {event.identity for event in engine.told(Opened)}
    assert identities == {Identity("same", prompt, choice) for prompt in (0, 1) for choice in (0, 1)}
    stops = engine.told(Stopped)
    assert len({event.identity for event in stops}) == len(stops) >= 3
    assert len({(event.identity.prompt, event.tokens) for event in stops}) > 1


def test_thinking_cannot_be_opened_again_after_a_stop(engine: Any, facts: Any, prompts: Any) -> None:
    opened = facts.vocabulary.special_id("<think>")
    (tokens,) = engine.run(prompts[:1], [sampling(x_budget=10, logit_bias={opened: 60.0}, max_tokens=60)])
    (stop,) = engine.told(Stopped)
    after = tokens[stop.tokens + len(stop.handoff) :]
    assert opened in tokens[: stop.tokens]
    assert after
    assert opened not in after


def test_a_masked_hand_off_is_told_and_tried_again(engine: Any, facts: Any, prompts: Any) -> None:
    forbidden = facts.vocabulary.encode(builtin_profile().handoff_write)[0]
    allowed = [token for token in range(len(facts.tokenizer)) if token != forbidden]
    plain = engine.run(prompts[:4], [sampling(extra_args=None, allowed_token_ids=allowed) for _ in range(4)])
    masked = engine.run(prompts[:4], [active(f"k{n}", allowed_token_ids=allowed) for n in range(4)])
    assert masked == plain
    blocked = engine.told(Blocked)
    assert len(blocked) > 4
    assert "masked" in blocked[0].why
    # Each attempt is at a boundary of its own, and what was decided there is still told.
    places = [(event.identity, event.position) for event in blocked]
    assert len(set(places)) == len(places)
    assert all(event.decision is None for event in engine.told(Closed))


@pytest.mark.parametrize("mask", ["bad_words", "logit_bias"])
def test_other_masks_forbid_the_hand_off_too(engine: Any, facts: Any, prompts: Any, mask: str) -> None:
    first = facts.vocabulary.encode(builtin_profile().handoff_write)[0]
    if mask == "bad_words":
        values: dict[str, Any] = {"bad_words": [facts.tokenizer.decode([first])]}
    else:
        values = {"logit_bias": {first: -float("inf")}}
    try:
        params = active(**values)
        (tokens,) = engine.run(prompts[:1], [params])
    except ValueError as refused:
        pytest.skip(f"this vLLM refuses {mask} of this kind: {refused}")
    if engine.told(Stopped) and not engine.told(Blocked):
        pytest.skip(f"{mask} did not mask the token in this vocabulary")
    assert first not in tokens or engine.told(Blocked)


def test_stop_strings_and_logprobs_keep_working(engine: Any, facts: Any, prompts: Any) -> None:
    (tokens,) = engine.run(prompts[:1], [active(stop=["\\boxed"], logprobs=2)])
    (stop,) = engine.told(Stopped)
    output = engine.outputs[0].outputs[0]
    assert output.stop_reason == "\\boxed"
    assert len(output.logprobs) == len(tokens)
    forced = range(stop.tokens, stop.tokens + len(stop.handoff))
    # The probabilities are the model's own, from before anything was forced.
    assert all(tokens[place] in output.logprobs[place] for place in forced)
    assert any(output.logprobs[place][tokens[place]].rank > 1 for place in forced)


def test_max_tokens_leaves_room_for_an_answer(engine: Any, facts: Any, prompts: Any) -> None:
    (tokens,) = engine.run(prompts[:1], [sampling(x_mode="active", max_tokens=40)])
    (stop,) = engine.told(Stopped)
    assert stop.decision.reason == "budget"
    assert len(tokens) - stop.tokens - len(stop.handoff) >= 10  # a quarter of max_tokens


def test_stop_by_hand_and_the_kill_switch(engine: Any, prompts: Any) -> None:
    seen = engine.runtime.sinks

    def interfere(events: Any) -> None:
        for event in events:
            if isinstance(event, Opened) and event.identity.key == "by-hand":
                assert engine.runtime.stop_now(StopNow("c", "by-hand")) == 1
                assert engine.runtime.stop_now(StopNow("c", "nobody")) == 0

    seen.append(interfere)
    engine.run(prompts[:1], [sampling("by-hand", x_mode="off")])
    seen.remove(interfere)
    (stop,) = engine.told(Stopped)
    assert stop.decision.reason == "manual"
    assert not stop.decision.certified
    engine.events.clear()
    engine.runtime.limit(SetMode("c", "shadow").cap)
    engine.run(prompts[:4], [active(f"k{n}") for n in range(4)])
    assert not engine.told(Stopped)
    assert all(event.mode == "shadow" for event in engine.told(Opened))
    assert any(event.shadow for event in engine.told(Closed))


def test_an_error_in_the_probe_leaves_every_request_answered(engine: Any, facts: Any, prompts: Any) -> None:
    class Broken:
        card = engine.runtime.scoring.scorers.probe.card

        def score(self, rows: Any) -> Any:
            raise RuntimeError("the probe is broken")

    plain = engine.run(prompts, [sampling(extra_args=None) for _ in prompts])
    whole = engine.runtime.scoring._probe
    engine.runtime.scoring._probe = Broken()
    errors = engine.runtime.errors
    try:
        broken = engine.run(prompts, [active(f"k{n}") for n in range(16)])
    finally:
        engine.runtime.scoring._probe = whole
    assert broken == plain
    assert engine.runtime.errors > errors
    assert all("the probe failed: RuntimeError" in event.uncontrolled for event in engine.told(Closed))


def test_a_request_of_another_scorer_runs_on_and_says_why(engine: Any, prompts: Any) -> None:
    engine.run(prompts[:1], [active(x_scorer="agreement")])
    (opened,) = engine.told(Opened)
    assert "scorer 'agreement'" in opened.uncontrolled
    assert not engine.told(Stopped)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"x_mode": "loud"}, "desist_mode"),
        ({"x_budget": -1}, "desist_budget"),
        ({"x_threshold": 0.5}, "desist_threshold"),
        ({"x_lam": 0.5, "x_alpha": 0.05}, "desist_alpha"),
        ({"x_budget": 5, "thinking_token_budget": 7}, "two budgets"),
    ],
)
def test_bad_fields_are_refused_before_the_engine(
    engine: Any, prompts: Any, values: dict[str, Any], words: str
) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=words):  # which vLLM's server answers with 400
        engine.run(prompts[:1], [sampling(**values)])
