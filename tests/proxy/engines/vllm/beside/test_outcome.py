"""vLLM's counts and the plugin's, put together: which is trusted, and what is said where they disagree."""

from __future__ import annotations

from typing import Any

import pytest

from desist.controller import Control, Policy, StopReason
from desist.data.schema import Sampling
from desist.proxy.engines.base import GenerationRequest
from desist.proxy.engines.upstream.wire import Chunk
from desist.proxy.engines.vllm.beside.outcome import Heard, outcome
from desist.proxy.engines.vllm.beside.run import VllmRun
from desist.proxy.engines.vllm.wire import Blocked, Closed, Identity, Opened, Scored, Stopped, Told
from tests.fakes.vllm_server import PROFILE, reasoner

ME = Identity("k")
CONTROL = Control("active", Policy(lam=0.5))
STOP = Told("stop", "probe", 3, 0, 0.9, True)
OPENED, STOPPED = Opened(ME, 7, "active"), Stopped(ME, 1, STOP, 3, (9, 9))
FACTS = reasoner()


def run_of(finish: str, text: str, *, usage: int | None = None, total: int | None = None) -> VllmRun:
    """A generation whose text has `total` ids (default: as many as it has)."""
    messages = ({"role": "user", "content": "5 + 7?"},)
    request = GenerationRequest("r/0", "m", Sampling(), CONTROL, messages=messages)
    run = VllmRun(request, PROFILE, FACTS, lambda: False)
    ids = FACTS.vocabulary.encode(text)[:total]
    told = {"prompt_tokens": 7, "completion_tokens": usage} if usage is not None else None
    list(run.feed(Chunk(prompt_ids=FACTS.chat_ids(messages))))
    list(run.feed(Chunk(content="x", token_ids=ids, finish_reason=finish, usage=told)))
    list(run.finish())
    return run


def heard(closed: Closed | None, **changes: Any) -> Heard:
    values = {"opened": OPENED, "scored": (), "stopped": None, "blocked": (), "lost": 0, "waited_s": 2.0}
    return Heard(**{**values, "closed": closed, **changes})


def closed(**changes: Any) -> Closed:
    values = {"n": 0, "tokens": 20, "reasoning_tokens": 12, "handoff_tokens": 0, "stop_reason": "natural"}
    return Closed(ME, **{**values, **changes})


def test_the_plugin_s_counts_come_first() -> None:
    done = outcome(run_of("stop", "1 2 3", usage=21), CONTROL, heard(closed()))
    usage = done.usage
    assert (usage.prompt_tokens, usage.reasoning_tokens, usage.answer_tokens) == (7, 12, 9)
    assert (done.stop_reason, done.uncontrolled) == (StopReason.NATURAL, None)
    stopped = closed(handoff_tokens=2, reasoning_tokens=3, stop_reason="probe", decision=STOP)
    done = outcome(run_of("stop", "1", usage=21), CONTROL, heard(stopped, stopped=STOPPED))
    assert (done.usage.reasoning_tokens, done.usage.handoff_tokens, done.usage.answer_tokens) == (3, 2, 16)
    assert done.usage.completion_tokens == 21
    assert done.decision is not None
    assert (done.decision.index, done.decision.certified, done.stop_reason) == (0, True, StopReason.PROBE)


def test_without_the_last_event_the_stop_and_the_ids_tell() -> None:
    done = outcome(run_of("stop", "1 2 3 4"), CONTROL, heard(None, stopped=STOPPED))
    assert (done.usage.reasoning_tokens, done.usage.handoff_tokens) == (3, 2)
    assert "did not come within 2 s" in (done.uncontrolled or "")
    bare = outcome(run_of("stop", "1 2</think> 3"), CONTROL, heard(None))
    assert bare.usage.reasoning_tokens == len(FACTS.vocabulary.encode("1 2"))
    assert (bare.decision, bare.stop_reason) == (None, StopReason.NATURAL)


def test_a_generation_cut_while_thinking_ended_by_length() -> None:
    ids = len(FACTS.vocabulary.encode("1 2 3"))
    cut = closed(tokens=ids - 1, reasoning_tokens=ids - 1, stop_reason="none")
    done = outcome(run_of("length", "1 2 3"), CONTROL, heard(cut))
    assert (done.stop_reason, done.usage.reasoning_tokens, done.usage.answer_tokens) == (
        StopReason.LENGTH,
        ids,
        0,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lost": 2}, "2 of the plugin's events were lost"),
        ({"opened": None}, "1 of the plugin's events were lost"),
        ({"opened": Opened(ME, 7, "shadow")}, "the kill switch allows mode 'shadow'"),
        ({"opened": Opened(ME, 7, "active", "no such scorer")}, "no such scorer"),
        ({"failure": "the probe is broken"}, "the probe is broken"),
        ({"blocked": (Blocked(ME, 0, 5, "masked"),)}, "at position 5 was not carried out: masked"),
    ],
)
def test_why_a_request_was_not_controlled(changes: dict[str, Any], words: str) -> None:
    assert words in (outcome(run_of("stop", "1"), CONTROL, heard(closed(), **changes)).uncontrolled or "")


def test_boundaries_take_the_proxy_s_scores_and_decisions() -> None:
    go_on = Told("continue", "none", 3, 0)
    events = tuple(
        Scored(ME, n, n, 3 * n, 3 * n, "cue", "wait", {"rom": 0.1}, told)
        for n, told in enumerate((go_on, go_on))
    )
    mine = {0: STOP.decision()}
    done = outcome(
        run_of("stop", "1"),
        CONTROL,
        heard(closed(), scored=events, scores={0: {"probe": 0.9}}, decisions=mine),
    )
    assert [dict(each.scores) for each in done.boundaries] == [{"rom": 0.1, "probe": 0.9}, {"rom": 0.1}]
    assert [each.decision.stops for each in done.boundaries] == [True, False]


def test_words_of_a_later_release_do_no_harm() -> None:
    strange = Told("leap", "boredom", 3, 0)
    event = Scored(ME, 0, 0, 3, 3, "cue", "wait", {}, strange)
    done = outcome(
        run_of("stop", "1</think> 2"),
        CONTROL,
        heard(closed(stop_reason="boredom", decision=strange), scored=(event,)),
    )
    assert (done.stop_reason, done.decision) == (StopReason.NATURAL, None)
    assert not done.boundaries[0].decision.stops
