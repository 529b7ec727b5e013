"""Where thinking stands: the controller, reading tokens, and the parser, reading text, always agree."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import PROFILES, BoundaryDetector, Control, ModelProfile, Session
from desist.data.errors import ControlError
from desist.proxy.reasoning import ThinkSplitter
from tests.fakes.vocabulary import FakeVocabulary

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
PROSE = (
    "a",
    " ",
    "\n",
    "\n\n",
    "<",
    "</",
    ">",
    "{",
    "[",
    "<f",
    "f(",
    " wait",
    "é",
    "\U0001f916",
    "`",
    "\u3000",
    "x.",
)


def tags_of(profile: ModelProfile) -> tuple[str, ...]:
    tags = (profile.think_open, profile.think_close, profile.tool_call_open, profile.tool_call_close)
    return HARMONY if profile.style == "harmony" else tuple(tag for tag in tags if tag)


@st.composite
def generations(draw: st.DrawFn, profile: ModelProfile) -> str:
    tags = tags_of(profile)
    halves = [half for tag in tags for half in (tag[: len(tag) // 2], tag[len(tag) // 2 :])]
    words = (
        ["assistant", "analysis", "final", " to=f", profile.think_open] if profile.style == "harmony" else []
    )
    return "".join(draw(st.lists(st.sampled_from([*tags * 3, *halves, *PROSE, *words]), max_size=16)))


def tokens(text: str, added: Sequence[str], borders: Sequence[int]) -> list[str | bytes]:
    """A text as tokens: added tokens where their text stands, the rest cut anywhere, in characters too."""
    pattern = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
    found: list[str | bytes] = []
    for part in re.split(f"({pattern})", text) if added else [text]:
        if part in added:
            found.append(part)
            continue
        data = part.encode()
        places = sorted({border % (len(data) + 1) for border in borders} | {0, len(data)})
        found += [data[a:b] for a, b in itertools.pairwise(places)]
    return found


@settings(max_examples=400, deadline=None)
@given(
    st.data(),
    st.sampled_from(sorted(PROFILES)),
    st.sampled_from(["tags", "none", "think"]),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_controller_and_parser_agree_after_every_token(
    data: st.DataObject, name: str, added: str, opened: bool, borders: list[int]
) -> None:
    profile = PROFILES[name]
    tags = tags_of(profile)
    special = {"tags": tags, "none": (), "think": tags[:2]}[added]
    text = data.draw(generations(profile))
    vocabulary = FakeVocabulary(special)
    detector = BoundaryDetector(profile, vocabulary, thinking=opened)
    splitter = ThinkSplitter.of(profile, opened=opened)
    decode = codecs.getincrementaldecoder("utf-8")("strict")
    for piece in tokens(text, special, borders):
        detector.push(vocabulary.ids(piece)[0])
        splitter.feed(decode.decode(piece.encode() if isinstance(piece, str) else piece))
        if not decode.getstate()[0]:
            seen = (detector.thinking, detector.closed, detector.tool_call)
            assert seen == (splitter.thinking, splitter.closed, splitter.called), (text, piece)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(sorted(PROFILES)))
def test_they_agree_after_a_prompt(data: st.DataObject, name: str) -> None:
    profile = PROFILES[name]
    header = data.draw(
        st.sampled_from([profile.assistant_header, profile.think_open, profile.think_close, ""])
    )
    prompt = f"ask {profile.think_open} {header}" + data.draw(generations(profile) | st.just(" \n"))
    vocabulary = FakeVocabulary(())
    detector = BoundaryDetector.from_prompt(profile, vocabulary, vocabulary.encode(prompt))
    splitter = ThinkSplitter.after(profile, prompt)
    assert (detector.thinking, detector.closed) == (splitter.thinking, splitter.closed)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(sorted(set(PROFILES) - {"gpt-oss"})))
def test_what_is_counted_is_what_is_shown_as_reasoning(data: st.DataObject, name: str) -> None:
    """With a token for every character, and added tokens for tags: characters of reasoning, blanks aside."""
    profile = PROFILES[name]
    special = tags_of(profile)[:2]
    words = data.draw(st.lists(st.sampled_from(["a", " b", "x.", "<", "{"]), max_size=12))
    text = "".join(words) + profile.think_close + "done"
    vocabulary = FakeVocabulary(special)
    detector = BoundaryDetector(profile, vocabulary)
    splitter, shown = ThinkSplitter.of(profile, opened=True), 0
    for part in re.split(f"({'|'.join(map(re.escape, special))})", text):
        for piece in [part] if part in special else part:
            detector.push(vocabulary.ids(piece)[0])
            shown += sum(len(p.text) for p in splitter.feed(piece) if p.channel == "reasoning")
    assert detector.position == shown + (len(text) - len(text.lstrip(" ")))


def test_harmony_is_refused_where_a_hand_off_would_be_forced_token_by_token() -> None:
    vocabulary = FakeVocabulary(HARMONY)
    with pytest.raises(ControlError, match="'gpt-oss' writes channels"):
        Session(PROFILES["gpt-oss"], vocabulary, Control(), vocabulary.encode("<|start|>assistant"))
