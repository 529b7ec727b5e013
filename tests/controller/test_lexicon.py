"""Inert tokens: the fast way through a trace gives the same boundaries and zones as the slow one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import BoundaryDetector, ModelProfile
from desist.controller.cues import CueMatcher, CueState
from desist.controller.holdoff import HoldOff
from desist.controller.lexicon import Lexicon, lexicon
from tests.fakes.vocabulary import FakeVocabulary

CUES = ("wait", "hmm", "alternatively", "let me double-check", "that's", "等等")
PROFILE = ModelProfile("test", cues=CUES, tool_call_open=None)
PIECES = (
    "Wa", "it", " wait", "t", "ing", "H", "mm", "m", "m,", " let", " me", " double", "-check", "k", " that",
    "'s", "\u2019s", "that", "等", "等等", " plain", " words", "12", " ", "\n", "\n\n", ".", "{", '"', "}",
    "$", "$$", "\\[", "\\]", "```", "\u0130", "\u00df", "  ", "_", "A", " \u00e9",
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=60)


class Eager(Lexicon):
    """Takes no token for inert."""

    def inert(self, token_id: int) -> str | None:
        return None


def detector(words: FakeVocabulary, kind: type[Lexicon]) -> BoundaryDetector:
    made = BoundaryDetector(PROFILE, words)
    made._words = kind(PROFILE, words)
    return made


@settings(max_examples=400, deadline=None)
@given(texts, st.integers(1, 9), st.data())
def test_the_fast_way_finds_what_the_slow_way_finds(
    pieces: list[str], every: int, data: st.DataObject
) -> None:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    ids = words.ids(*pieces)
    fast, slow = detector(words, Lexicon), detector(words, Eager)
    for number, token in enumerate(ids):
        assert fast.push(token) == slow.push(token)
        assert (fast.position, fast.tokens) == (slow.position, slow.tokens)
        if number % every == 0:
            assert fast.held == slow.held
    keep = data.draw(st.integers(0, len(ids)))
    for each in (fast, slow):
        each.rewind(keep)
    for token in ids[keep:]:
        assert fast.push(token) == slow.push(token)
    assert (fast.held, fast.position, fast.thinking) == (slow.held, slow.position, slow.thinking)


@settings(max_examples=400, deadline=None)
@given(st.text("waithmlet dobuc-k'\u2019s等 .\n", max_size=30), st.sampled_from(PIECES))
def test_no_cue_ends_in_an_inert_token_whatever_stands_before_it(before: str, piece: str) -> None:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    if lexicon(PROFILE, words).inert(words.token(piece)) is None:
        return
    matcher = CueMatcher(CUES)
    state = CueState()
    for character in before:
        state, _ = matcher.feed(state, character)
    assert matcher.feed(state, piece)[1] is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=30),
    st.lists(st.sampled_from((" plain", "12", ".", " ")), max_size=6),
)
def test_inert_text_moves_no_zone(before: list[str], inert: list[str]) -> None:
    joined, pieces = HoldOff(), HoldOff()
    joined.feed("".join(before) + "".join(inert))
    for piece in (*before, *inert):
        pieces.feed(piece)
    assert joined.held == pieces.held


def test_tags_line_ends_and_parts_of_characters_are_never_inert() -> None:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    known = lexicon(PROFILE, words)
    assert known is lexicon(PROFILE, words)
    for piece in ("</think>", "\n", " a\n", "{", "\\", "$", "`", '"', b"\xe2\x80", "t", "it", " wait", "k"):
        assert known.inert(words.ids(piece)[0]) is None, piece
    for piece in (" plain", "12", " the", ".", "é"):
        assert known.inert(words.ids(piece)[0]) == piece


def test_kinds_that_look_at_every_token_leave_none_inert() -> None:
    words = FakeVocabulary(tags=("<think>", "</think>"))
    token = words.token(" plain")
    assert lexicon(ModelProfile("t", kinds=("token",)), words).inert(token) is None
    assert lexicon(ModelProfile("n", kinds=("cue", "every_n"), every_n=5), words).inert(token) is None
    spelled = FakeVocabulary(tags=())
    assert lexicon(PROFILE, spelled).inert(spelled.token(" plain")) is None
