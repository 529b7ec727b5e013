"""A session as an engine drives it: push, decide, force, deliver."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import (
    PROFILES,
    Action,
    Control,
    ModelProfile,
    Policy,
    Session,
    StopReason,
    get_profile,
    grace_tokens,
)
from tests.fakes.vocabulary import FakeVocabulary

QWEN = get_profile("qwen3")
PROMPT = ["<|im_start|>", "assistant", "\n", "<think>", "\n"]


def session(vocabulary: FakeVocabulary, control: Control, **more: int) -> Session:
    return Session(QWEN, vocabulary, control, vocabulary.ids(*PROMPT), **more)


def drive(
    live: Session, vocabulary: FakeVocabulary, pieces: list[str], scores: dict[str, list[float]]
) -> int:
    """Push until the stop; how many tokens were pushed. `scores` are consumed boundary by boundary."""
    seen = 0
    for count, token_id in enumerate(vocabulary.ids(*pieces), start=1):
        boundary = live.push(token_id)
        here = {name: values[seen] for name, values in scores.items()} if boundary else {}
        seen += boundary is not None
        if live.decide(boundary, here).stops:
            return count
    return len(pieces)


def test_stop_at_the_cue_then_hand_off() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(policy=Policy(lam=0.5), answer="extract"))
    pushed = drive(
        live, vocabulary, ["x", " Wait", "y", " wait", "z"], {"probe": [0.2, 0.8], "other": [1, 1]}
    )
    assert pushed == 4
    assert (live.thinking, live.stop_reason) == (False, StopReason.PROBE)
    assert [(row.boundary.position, row.scores["probe"], row.decision.stops) for row in live.scored] == [
        (2, 0.2, False),
        (4, 0.8, True),
    ]
    assert vocabulary.text(live.handoff_ids()) == QWEN.handoff_extract
    assert vocabulary.text(live.handoff_ids("write")) == QWEN.handoff_write
    assert vocabulary.special_id("</think>") in live.handoff_ids()


def test_a_missing_score_is_no_evidence() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(policy=Policy(scorer="absent", lam=0.0)))
    assert drive(live, vocabulary, ["x", " Wait", "y"], {"probe": [1.0]}) == 3
    assert live.stop_reason is StopReason.NONE


def test_natural_end_and_nothing_decided_after_it() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(policy=Policy(lam=0.5), budget=3))
    assert drive(live, vocabulary, ["x", "</think>", "wait", "wait", "wait", "wait"], {}) == 6
    assert (live.stop_reason, live.thinking) == (StopReason.NATURAL, False)


def test_empty_thinking_block_in_the_prompt_is_never_stopped() -> None:
    vocabulary = FakeVocabulary()
    prompt = vocabulary.ids("<|im_start|>", "assistant", "\n", "<think>", "\n\n", "</think>", "\n\n")
    live = Session(QWEN, vocabulary, Control(policy=Policy(lam=0.0), budget=0), prompt, 100)
    assert drive(live, vocabulary, [" Wait", "\n\n", "x"], {}) == 3
    assert live.stop_reason is StopReason.NATURAL


@pytest.mark.parametrize(("budget", "step"), [(8, 8), (20, 22), (64, 70), (150, 165)])
def test_R09_a_budget_fires_at_its_step_in_200_steps_of_steady_decoding(budget: int, step: int) -> None:
    """Only tokens are pushed: nothing joins or leaves. No place is clean, so the grace (a tenth) passes."""
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(budget=budget))
    assert drive(live, vocabulary, ["x"] * 200, {}) == step == budget + grace_tokens(budget)
    assert live.stop_reason is StopReason.BUDGET


def test_hold_off_and_budget_reach_the_machine() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(budget=20))
    pieces = ["a", "\n```\n", *["x"] * 18, "\n\n", "y", "z"]
    assert drive(live, vocabulary, pieces, {}) == 22
    assert live.machine.stopped is not None
    assert live.machine.stopped.index is None


def test_a_score_does_not_stop_inside_a_zone() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(policy=Policy(lam=0.5)))
    pieces = ["$$", " x", " wait", "$$", " wait", " y"]
    assert drive(live, vocabulary, pieces, {"probe": [0.9, 0.9]}) == 5
    assert [row.decision.action for row in live.scored] == [Action.HOLD, Action.STOP]


def test_a_budget_waits_for_the_whole_character() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(budget=2))
    decisions = [
        live.decide(live.push(token_id)).stops
        for token_id in vocabulary.ids("a", b"\xf0\x9f", b"\x92", b"\xa1")
    ]
    assert decisions == [False, False, False, True]


@pytest.mark.parametrize("opened", [True, False])
def test_the_reserve_counts_hand_off_and_opening(opened: bool) -> None:
    vocabulary = FakeVocabulary()
    prompt = vocabulary.ids(*PROMPT[: 5 if opened else 3])
    live = Session(QWEN, vocabulary, Control(), prompt, max_tokens=400)
    handoff = len(live.handoff_ids())
    assert live.machine.hard_limit == 400 - 100 - handoff - (not opened)


def test_stop_by_hand() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(mode="off"))
    live.stop_now()
    assert drive(live, vocabulary, ["x", "y"], {}) == 1
    assert live.stop_reason is StopReason.MANUAL


def test_stop_by_hand_waits_for_the_end_of_a_zone() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control())
    live.stop_now()
    assert drive(live, vocabulary, ["```\n", "x", "\n", "```", "\n", "y"], {}) == 5


def test_second_close_tag_is_swallowed_and_reopened_thinking_closed_at_once() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control())
    word, close, opened = vocabulary.ids("word", "</think>", "<think>")
    assert [live.swallow(i) for i in (word, close, word)] == [False, True, False]
    assert live.closing_ids == ()
    assert live.swallow(opened)
    assert live.closing_ids == (close,)
    assert live.closing_ids == ()
    assert live.locked_ids == {opened}


@pytest.mark.parametrize(
    ("pieces", "delivered", "closes"),
    [
        (["</", "think", ">", "The", " end"], ["The", " end"], False),
        (["\n", "</", "think", ">\n", "The"], ["\n", "The"], False),
        (["The", "</", "think", ">", " end"], ["The", "</", "think", ">", " end"], False),
        (["a", " <", " b"], ["a", " <", " b"], False),
        (["a", "<", "/", "x"], ["a", "<", "/", "x"], False),
        (["<", "think", ">", "b"], ["b"], True),
        (["Use", "`", "<", "think", ">", "`"], ["Use", "`", "<", "think", ">", "`"], False),
        (["a", "<"], ["a", "<"], False),
    ],
)
def test_tags_spelled_by_tokens_are_held_back_until_it_is_clear(
    pieces: list[str], delivered: list[str], closes: bool
) -> None:
    vocabulary = FakeVocabulary(tags=())
    live = Session(ModelProfile("text"), vocabulary, Control(), vocabulary.ids("<think>"))
    out = [i for token_id in vocabulary.ids(*pieces) for i in live.deliver(token_id)]
    out += live.flush()
    assert [vocabulary.token_bytes(i).decode() for i in out] == delivered
    assert bool(live.closing_ids) is closes
    assert live.locked_ids == frozenset()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "<", "</", "think", ">", " x", "/"]), max_size=20))
def test_delivered_text_is_the_answer_without_its_tags(pieces: list[str]) -> None:
    vocabulary = FakeVocabulary(tags=())
    live = Session(ModelProfile("text"), vocabulary, Control(), vocabulary.ids("<think>"))
    out = [i for token_id in vocabulary.ids(*pieces) for i in live.deliver(token_id)]
    text = vocabulary.text([*out, *live.flush()])
    if "<think>" not in "".join(pieces) and "</think>" not in "".join(pieces):
        assert text == "".join(pieces)


def test_rewind_takes_back_tokens_boundaries_and_the_stop() -> None:
    vocabulary = FakeVocabulary()
    live = session(vocabulary, Control(policy=Policy(lam=0.5)))
    assert drive(live, vocabulary, ["x", " wait", "y", " wait"], {"probe": [0.1, 0.9]}) == 4
    live.rewind(3)
    assert live.thinking
    assert [row.boundary.position for row in live.scored] == [2]
    assert drive(live, vocabulary, ["z", " wait"], {"probe": [0.6]}) == 2
    assert live.scored[-1].boundary.position == 5


@pytest.mark.parametrize("opened", [True, False])
def test_R19_a_budget_binds_whoever_opened_a_tag_of_several_tokens(opened: bool) -> None:
    profile = replace(get_profile("kimi-vl"), kinds=("token",))
    vocabulary = FakeVocabulary(tags=())
    prompt = vocabulary.encode(profile.assistant_header or "")
    tag = ["◁", "think", "▷"]
    live = Session(
        profile, vocabulary, Control(budget=10), [*prompt, *(vocabulary.ids(*tag) if opened else ())]
    )
    pieces = [*([] if opened else tag), *[" w"] * 50]
    pushed = drive(live, vocabulary, pieces, {})
    assert live.stop_reason is StopReason.BUDGET
    assert pushed == 10 + (0 if opened else len(tag))


def test_R25_without_thinking_nothing_is_asked_and_nothing_stopped() -> None:
    for profile in PROFILES.values():
        if profile.style == "harmony":
            continue
        vocabulary = FakeVocabulary(tags=())
        live = Session(
            profile, vocabulary, Control(policy=Policy(lam=0.0), budget=1),
            vocabulary.encode(profile.assistant_header or ""),
        )  # fmt: skip
        assert drive(live, vocabulary, ["0.2", " is bigger", ".\n\n", " Wait", "."], {"probe": [1.0]}) == 5
        assert (live.scored, live.stop_reason, live.thinking) == ([], StopReason.NONE, False)


def test_R39_tags_are_the_vocabularys_own_ids_and_only_the_newest_turn_counts() -> None:
    for tags in (
        ("</think>", "<think>", "<|im_start|>"),
        ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    ):
        vocabulary = FakeVocabulary(tags)
        history = ["<|im_start|>", "assistant", "\n", "<think>", "old", "</think>", "done", "\n"]
        turn = ["<|im_start|>", "assistant", "\n", "<think>", "\n"]
        live = Session(QWEN, vocabulary, Control(budget=2), vocabulary.ids(*history, *turn))
        assert live.thinking
        assert drive(live, vocabulary, ["a", "b.\n\n", "c", "d"], {}) == 2
        assert live.locked_ids == {vocabulary.special_id("<think>")}
