"""Replay: the same decisions as live, and an account that makes nothing up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import (
    BoundaryDetector,
    Control,
    ForcedConfidence,
    Policy,
    Replayed,
    Session,
    StopReason,
    get_profile,
    held_at,
    replay_many,
    replay_trace,
)
from desist.data.schema import BoundaryRecord, Sampling, Trace
from tests.fakes.vocabulary import FakeVocabulary

QWEN = get_profile("qwen3")


def trace(*, reasoning: str = "", answers: bool = True, places: tuple[int, ...] = (10, 25, 60)) -> Trace:
    boundaries = tuple(
        BoundaryRecord(
            i, place, i, "cue", scores={"probe": (0.2, 0.6, 0.9)[i]},
            forced_answer=f"a{i}" if answers else None, forced_tokens=8 if answers else None,
            forced_confidence=(0.1, 0.2, 0.9)[i],
        )
        for i, place in enumerate(places)
    )  # fmt: skip
    return Trace("t", "p", "m", "?", reasoning, "full", 100, 20, boundaries=boundaries)


def test_stop_at_a_boundary_is_charged_for_position_and_forced_answer() -> None:
    result = replay_trace(trace(), Control(policy=Policy(lam=0.5)))
    assert (result.stop_index, result.answer, result.n_tokens) == (1, "a1", 25 + 8)
    assert (result.answer_known, result.estimated) == (True, False)
    assert result.decision is not None
    assert result.decision.reason is StopReason.PROBE


def test_no_stop_is_the_full_run() -> None:
    assert replay_trace(trace(), Control()) == Replayed(None, None, "full", 120)


def test_R60_the_scorers_own_tokens_are_charged() -> None:
    never, stops = Control(), Control(policy=Policy(lam=0.5))
    assert replay_trace(trace(), never, ForcedConfidence()).n_tokens == 120 + 24
    assert replay_trace(trace(), stops, ForcedConfidence()).n_tokens == 60 + 8 + 16
    cut = replay_trace(trace(), Control(budget=40), ForcedConfidence())
    assert cut.n_tokens == 44 + 20 + 16


def test_a_cut_between_boundaries_has_no_known_answer() -> None:
    result = replay_trace(trace(), Control(budget=40))
    assert result.decision is not None
    assert (result.decision.position, result.stop_index) == (44, None)
    assert (result.answer, result.answer_known, result.estimated) == (None, False, True)
    assert result.n_tokens == 44 + 20


def test_a_budget_at_boundaries_acts_at_the_first_one_after_it() -> None:
    result = replay_trace(trace(), Control(budget=40), budget_at="boundary")
    assert (result.stop_index, result.answer, result.n_tokens) == (2, "a2", 68)
    late = replay_trace(trace(), Control(budget=61), budget_at="boundary")
    assert late == Replayed(None, None, "full", 120)


@pytest.mark.parametrize(("budget", "position"), [(0, 1), (90, 99), (91, 100), (92, None)])
def test_budget_before_the_first_and_after_the_last_boundary(budget: int, position: int | None) -> None:
    decision = replay_trace(trace(), Control(budget=budget)).decision
    assert (decision.position if decision else None) == position


def test_uncollected_answers_are_not_made_up() -> None:
    result = replay_trace(trace(answers=False), Control(policy=Policy(lam=0.5)))
    assert (result.answer, result.answer_known, result.estimated, result.n_tokens) == (None, False, True, 45)


def test_shadow_runs_to_the_end_and_tells() -> None:
    result = replay_trace(trace(), Control(mode="shadow", policy=Policy(lam=0.5)))
    assert (result.stop_index, result.n_tokens) == (None, 120)
    assert result.shadow is not None
    assert result.shadow.index == 1


def test_zones_are_told_from_the_text() -> None:
    text = "ab $$ x wait $$ wait"
    of = trace(reasoning=text)
    places = (text.index("wait") + 4, text.index("$$ wait") + 2, len(text))
    of = replace(of, boundaries=tuple(replace(r, char=c) for r, c in zip(of.boundaries, places, strict=True)))
    assert held_at(of) == (True, False, False)
    assert replay_trace(of, Control(policy=Policy(lam=0.1))).stop_index == 1


def test_the_reserve_of_the_sampled_run_applies() -> None:
    of = replace(trace(), sampling=Sampling(max_tokens=80))
    result = replay_trace(of, Control())
    assert result.decision is not None
    assert (result.decision.reason, result.decision.position) == (StopReason.BUDGET, 60)
    assert replay_trace(of, Control(), max_tokens=1000).decision is None


def test_many_policies_over_many_traces() -> None:
    plans = {"half": (Control(policy=Policy(lam=0.5)), None), "never": (Control(), ForcedConfidence())}
    rows = list(replay_many([trace(), trace(answers=False)], plans))
    assert [row["half"].n_tokens for _, row in rows] == [33, 45]
    assert rows[0][1]["never"] == replay_trace(trace(), *plans["never"])


PIECES = st.lists(
    st.sampled_from(["a", " Wait", "\n\n", "x.\n\n", "```\n", "$$", " hmm", "m", "word", "é", "{", '"', "}"]),
    min_size=1,
    max_size=120,
)
CONTROLS = st.builds(
    Control,
    mode=st.sampled_from(["shadow", "active"]),
    policy=st.builds(
        Policy,
        lam=st.sampled_from([None, 0.5, 0.8, 0.95]),
        patience=st.integers(1, 3),
        warmup_tokens=st.integers(0, 30),
        ema=st.sampled_from([0.3, 1.0]),
    ),
    budget=st.one_of(st.none(), st.integers(0, 140)),
)


@given(PIECES, CONTROLS, st.one_of(st.none(), st.integers(20, 200)), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_R56_R74_replay_equals_live(
    pieces: list[str], control: Control, max_tokens: int | None, seed: int
) -> None:
    """A full run is collected, then the same tokens are run live: same stop, same place."""
    vocabulary = FakeVocabulary()
    prompt = vocabulary.ids("<|im_start|>", "assistant", "\n", "<think>")
    ids = vocabulary.ids(*pieces)
    collector = BoundaryDetector.from_prompt(QWEN, vocabulary, prompt)
    records, text = [], ""
    for token_id in ids:
        text += vocabulary.text([token_id])
        found = collector.push(token_id)
        if found is not None:
            score = hash((seed, found.index)) % 1000 / 1000
            records.append(
                BoundaryRecord(
                    found.index, found.position, len(text), found.kind, found.text, {"probe": score}
                )
            )
    of = Trace("t", "p", "m", "?", text, "full", len(ids), 5, boundaries=tuple(records))

    live = Session(QWEN, vocabulary, control, prompt, max_tokens)
    for token_id in ids:
        boundary = live.push(token_id)
        if live.decide(boundary, dict(records[boundary.index].scores) if boundary else None).stops:
            break
    replayed = replay_trace(of, control, max_tokens=max_tokens, handoff_tokens=len(live.handoff_ids()))
    assert replayed.decision == live.machine.stopped
    assert replayed.shadow == live.machine.shadow
