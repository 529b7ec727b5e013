"""One request in the engine: drafts that are taken back and masked hand-offs change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import Control, ModelProfile, Policy, grace_tokens
from desist.proxy.engines.vllm.inside.tracked import Request, Tracked
from desist.proxy.engines.vllm.wire import Blocked, Closed, Identity, Scored, Stopped
from tests.fakes.vocabulary import FakeVocabulary

PROFILE = ModelProfile(
    name="test", handoff_write=" so\n</think>\n\n", kinds=("cue", "paragraph"), tool_call_open=None
)
PIECES = ("one", " two", " wait", "\n\n", " hmm", " three", ".", " so", "\n", "prompt")


def vocabulary() -> FakeVocabulary:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    words.ids(*PIECES)
    return words


def tracked(control: Control, words: FakeVocabulary) -> Tracked:
    prompt = words.encode("prompt<think>")
    return Tracked.of(Request("r", prompt, 400), Identity("k"), PROFILE, words, control, min_answer_tokens=8)


def score_at(position: int) -> float:
    """Any fixed rule."""
    return (position * 37 % 100) / 100


class Model:
    """Writes `stream` token by token, save where it is forced; a masked token cannot be forced."""

    def __init__(self, stream: list[int], masked: frozenset[int]) -> None:
        self.stream, self.masked, self.own = stream, masked, 0

    def next(self, forced: int | None) -> int:
        if forced is not None and forced not in self.masked:
            return forced
        self.own += 1
        return self.stream[(self.own - 1) % len(self.stream)]


def judged(one: Tracked, row: int, token: int) -> None:
    reading = one.take(row, token)
    if reading is not None:
        scores = {"probe": score_at(one.session.detector.position)} if reading.boundary else {}
        decision = one.decide(reading.boundary, scores)
        if reading.boundary is not None:
            one.tell_boundary(reading.boundary, scores, decision, None, None)
        if decision.stops:
            one.tell_stop(decision)


def run(
    control: Control, stream: list[int], n: int, drafts: Any = None, *, masked: frozenset[int] = frozenset()
) -> tuple[list[int], list[Any], Closed]:
    """Generate `n` tokens. `drafts` yields per step the drafts' number and how many are right guesses."""
    words = vocabulary()
    one, model = tracked(control, words), Model(stream, masked)
    events: list[Any] = []
    start = len(one.request.prompt_ids) - 1
    out: list[int] = []
    one.take(start, one.request.prompt_ids[-1])
    out.append(model.next(one.forced().token))
    while len(out) < n:
        first = start + len(out)
        guesses, right = next(drafts) if drafts is not None else (0, 0)
        judged(one, first, out[-1])
        if guesses == 0:
            events += one.commit(one.read)
            out.append(model.next(one.forced().token))
            continue
        # What the model will write is known to this test alone: it makes right guesses, then wrong ones.
        sampled = [model.next(one.forced().token)]
        for place in range(guesses):
            guess = sampled[-1] if place < right else next(i for i in stream if i != sampled[-1])
            judged(one, first + place + 1, guess)
            if place < right:
                sampled.append(model.next(one.forced().token))
        events += one.commit(first - start - 1 + len(sampled))
        out += sampled
    return out[:n], events, one.closed()


controls = st.builds(
    lambda lam, patience, budget: Control("active", Policy(lam=lam, patience=patience), budget),
    st.sampled_from([None, 0.3, 0.6, 0.9]),
    st.integers(1, 2),
    st.sampled_from([None, 7, 30]),
)
STREAM_IDS = [vocabulary().ids(piece)[0] for piece in PIECES[:8]]
streams = st.lists(st.sampled_from(STREAM_IDS), min_size=5, max_size=30).filter(lambda ids: len(set(ids)) > 2)
guesses = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20)
masks = st.sampled_from(
    [frozenset[int](), frozenset(vocabulary().ids(" so")), frozenset(vocabulary().ids("\n"))]
)


@settings(max_examples=400, deadline=None)
@given(controls, streams, guesses, masks)
def test_drafts_change_nothing(
    control: Control, stream: list[int], drafts: list[tuple[int, int]], masked: frozenset[int]
) -> None:
    plain, told, end = run(control, stream, 60, masked=masked)
    drafted, told_too, end_too = run(control, stream, 60, iter(drafts * 60), masked=masked)
    assert drafted == plain
    upto = min(end.tokens, end_too.tokens) - 1
    assert [e for e in told_too if place_of(e) < upto] == [e for e in told if place_of(e) < upto]
    assert [event.n for event in told_too] == list(range(len(told_too)))


def place_of(event: Any) -> int:
    return int(event.position if isinstance(event, Blocked) else event.tokens)


def test_the_hand_off_follows_the_boundary_and_is_counted() -> None:
    words = vocabulary()
    control = Control("active", Policy(lam=-1.0))
    stream = [*words.ids("one", " two", " wait", " three")] * 3
    out, events, end = run(control, stream, 30)
    (stop,) = [event for event in events if isinstance(event, Stopped)]
    handoff = words.encode(PROFILE.handoff_write)
    assert tuple(out[stop.tokens : stop.tokens + len(handoff)]) == handoff == stop.handoff
    assert (end.handoff_tokens, end.stop_reason) == (len(handoff), "probe")


@pytest.mark.parametrize("budget", [8, 40, 150])
def test_R09_a_budget_forces_at_its_step_while_the_batch_stays_the_same(budget: int) -> None:
    """One request alone, 200 steps, no command and no neighbour: rows alone move the count."""
    words = vocabulary()
    out, events, end = run(Control("shadow", Policy(lam=None), budget), words.ids("one") * 5, 200)
    (stop,) = [event for event in events if isinstance(event, Stopped)]
    handoff = words.encode(PROFILE.handoff_write)
    step = budget + grace_tokens(budget)
    assert (stop.tokens, end.stop_reason) == (step, "budget")
    assert tuple(out[step : step + len(handoff)]) == handoff
    assert set(out[:step]) == set(words.ids("one"))


def test_a_masked_hand_off_is_told_once_a_boundary_and_the_text_is_read_on() -> None:
    words = vocabulary()
    handoff = words.encode(PROFILE.handoff_write)
    stream = words.ids("one", " two", " wait", " three", ".", " hmm", " two")
    for masked in (handoff[0], handoff[-1]):
        out, events, end = run(Control("active", Policy(lam=-1.0)), stream, 60, masked=frozenset({masked}))
        blocked = [event for event in events if isinstance(event, Blocked)]
        if masked == handoff[0]:
            assert out == (stream * 20)[:60]
            scored = [event for event in events if isinstance(event, Scored)]
            assert len(blocked) == len(scored) or len(blocked) == len(scored) - 1
            assert end.decision is None or end.tokens == end.decision.position
        else:
            assert blocked


def test_R08_tokens_that_were_never_seen_are_an_error_not_a_guess() -> None:
    words = vocabulary()
    one = tracked(Control("active"), words)
    start = len(one.request.prompt_ids) - 1
    one.take(start, one.request.prompt_ids[-1])
    with pytest.raises(LookupError, match="never seen"):
        one.take(start + 3, 0)


def test_a_position_that_was_seen_is_passed_over() -> None:
    words = vocabulary()
    one = tracked(Control("active", Policy(lam=0.5)), words)
    start = len(one.request.prompt_ids) - 1
    for place, token in enumerate(words.ids("one", " two", " wait")):
        assert one.take(start + 1 + place, token) is not None
        one.commit(one.read)
    assert one.take(start + 2, 1) is None
    assert one.read == 3
