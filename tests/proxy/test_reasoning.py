"""The splitter: any chunking of a text gives the same reasoning and content, for every profile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.parser_fuzz import STARTS, Case, cases, check
from benchmarks.parser_reference import Reference
from desist.controller import PROFILES, ModelProfile, get_profile
from desist.proxy.reasoning import Piece, ThinkSplitter, split_reasoning

QWEN = get_profile("qwen3")
GPT_OSS = get_profile("gpt-oss")
NAMES = st.sampled_from(sorted(PROFILES))


def cut(text: str, borders: Sequence[int]) -> list[str]:
    places = sorted({min(border, len(text)) for border in borders} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def joined(pieces: Sequence[Piece]) -> tuple[str, str]:
    channels = ("reasoning", "content")
    return tuple("".join(p.text for p in pieces if p.channel == each) for each in channels)  # type: ignore[return-value]


@st.composite
def texts(draw: st.DrawFn, profile: ModelProfile) -> str:
    """Tags, halves of tags, calls, white space and prose, in any order."""
    tags = [profile.think_open, profile.think_close, profile.tool_call_open, profile.tool_call_close]
    known = [tag for tag in tags if tag]
    halves = [half for tag in known for half in (tag[: len(tag) // 2], tag[len(tag) // 2 :])]
    harmony = ["<|start|>assistant", "<|channel|>", "final", "<|message|>", " to=f", "<|call|>", "<|return|>"]
    some = st.sampled_from(
        [*known, *known, *halves, *(harmony if profile.style == "harmony" else []),
         "<", "</", ">", " ", "\n", "\n\n", "abc", "2 < 3", "{", "<f", "f(", "[", "`", "🤖", "é"]
    )  # fmt: skip
    return "".join(draw(st.lists(some | st.text(max_size=3), max_size=14)))


@given(st.data(), NAMES, st.sampled_from(STARTS), st.lists(st.integers(0, 90), max_size=12))
def test_any_chunking_gives_what_the_whole_text_means(
    data: st.DataObject, name: str, start: str, borders: list[int]
) -> None:
    profile = PROFILES[name]
    text = data.draw(texts(profile))
    split = Reference(profile).split
    for chunks in ([text], cut(text, borders), list(text)):
        assert check(Case(profile, start, tuple(chunks)), split) is None


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("thought", ["", "plan < it\n", "é🤖 "])
def test_R22_every_split_point_of_every_profile(name: str, thought: str) -> None:
    profile = PROFILES[name]
    text = f"{profile.think_open}{thought}{profile.handoff_write}yes </thin"
    told = profile.handoff_write.partition(profile.think_close)[0]
    expected = (f"{thought}{told}".lstrip() if not thought else thought + told, "yes </thin")
    whole = range(len(text) + 1)
    pairs = zip(whole, whole, strict=True) if thought else itertools.combinations(whole, 2)
    for first, second in pairs:
        chunks = [text[:first], text[first:second], text[second:]]
        assert split_reasoning(chunks, ThinkSplitter.of(profile)) == expected


def test_random_inputs_of_the_fuzz_command_are_read_right() -> None:
    references = {name: Reference(profile).split for name, profile in PROFILES.items()}
    for case in itertools.islice(cases(seed=7), 4_000):
        assert check(case, references[case.profile.name]) is None, case


def test_the_check_finds_what_is_wrong() -> None:
    case = Case(QWEN, "before", ("<think>a</thi", "nk>b"))
    assert check(case, lambda text, start: ("a", "b")) is None
    assert "not as ('a', '')" in (check(case, lambda text, start: ("a", "")) or "")


def test_a_long_text_of_halves_of_tags_takes_no_longer_than_its_length() -> None:
    """A hang would show: each of these would be looked through again and again."""
    for part in ("<", "</thin", "<tool_call>", "<tool_call> ", " ", "<tool_call>\n<"):
        splitter, length = ThinkSplitter(opened=True), 0
        for _ in range(5_000):
            length += sum(len(piece.text) for piece in splitter.feed(part))
            assert len(splitter.held) <= len("<tool_call>") + 10
        assert length + len(splitter.held) == (0 if part == " " else 5_000 * len(part))


@given(st.text(max_size=40).filter(lambda text: "think>" not in text))
def test_text_without_tags_is_content_unchanged(text: str) -> None:
    assert split_reasoning(list(text)) == ("", text)


@pytest.mark.parametrize("profile", [QWEN, get_profile("kimi-vl")])
@pytest.mark.parametrize("switch", ["opened", "before"])
def test_R04_a_block_that_the_template_opened(profile: ModelProfile, switch: str) -> None:
    chunks = ["plan it", profile.think_close, "42"]
    if switch == "before":
        chunks.insert(0, profile.think_open)
    for each in (chunks, list("".join(chunks))):
        assert split_reasoning(each, ThinkSplitter.of(profile, opened=True)) == ("plan it", "42")


def test_R04_the_profile_says_whether_the_template_opens() -> None:
    assert get_profile("deepseek-r1").start({}) == "opened"
    assert QWEN.start({}) == "before"
    assert get_profile("deepseek-v3.1").start({}) == "closed"
    assert get_profile("deepseek-v3.1").start({"thinking": True}) == "opened"


@pytest.mark.parametrize(
    ("chunks", "start", "content"),
    [
        (["</think>", "\n\n</think>\n\n", "Paris"], {}, "Paris"),
        (["</think>", "\n\n</think>\n\n", "Paris"], {"opened": True}, "Paris"),
        (["</think>", "\n\n</think>\n\n", "Paris"], {"closed": True}, "Paris"),
        (["<think>x</think>", "\n</think>\n\n", "Paris"], {}, "Paris"),
        (["<think>\n\n</think>\n\n", "</think></think>Paris </think>"], {}, "Paris </think>"),
    ],
)
def test_R13_doubled_close_tags_are_swallowed(
    chunks: list[str], start: dict[str, bool], content: str
) -> None:
    for each in (chunks, list("".join(chunks))):
        assert split_reasoning(each, ThinkSplitter.of(QWEN, **start))[1] == content


def test_R13_a_block_that_opens_again_at_once_is_reasoning() -> None:
    chunks = ["<think>a</think>\n\n<think>b</think>", "c <think>d</think>"]
    assert split_reasoning(chunks) == ("ab", "c <think>d</think>")
    assert split_reasoning(["\n<thi", "nk>b</think>c"], ThinkSplitter(closed=True)) == ("b", "c")


def test_R19_tags_of_several_tokens_that_the_model_writes_itself() -> None:
    thought = " ".join(["word"] * 50)
    for opened in (False, True):
        text = ("" if opened else "◁think▷") + f"{thought}◁/think▷ok"
        splitter = ThinkSplitter.of(get_profile("kimi-vl"), opened=opened)
        assert split_reasoning(list(text), splitter) == (thought, "ok")
    other = ThinkSplitter.of(QWEN.with_tags("⟪hm⟫", "⟪/hm⟫"))
    assert split_reasoning(list("⟪hm⟫so⟪/hm⟫ok"), other) == ("so", "ok")


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (
            ["<think>plan done.</think>The answer", " is 8."],
            [("reasoning", "plan done."), ("content", "The answer"), ("content", " is 8.")],
        ),
        (["<think>short", "…"], [("reasoning", "short"), ("reasoning", "…")]),
        (
            ['<think>x</think><tool_call>{"name":"f","arguments":{}}</tool_call>'],
            [("reasoning", "x"), ("content", '<tool_call>{"name":"f","arguments":{}}</tool_call>')],
        ),
    ],
)
def test_R21_a_chunk_with_a_tag_becomes_a_piece_for_each_side(
    chunks: list[str], expected: list[tuple[str, str]]
) -> None:
    splitter = ThinkSplitter()
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.finish()
    assert [tuple(piece) for piece in pieces] == expected


@pytest.mark.parametrize(
    ("chunks", "reasoning", "content"),
    [
        *((["abc" + "</think>"[:n], "</think>"[n:] + "ok"], "abc", "ok") for n in range(1, 8)),
        (["a </thin", " air is cold</think>ok"], "a </thin air is cold", "ok"),
        (["2 <", " 3</think>yes"], "2 < 3", "yes"),
        (["abc</thi"], "abc</thi", ""),
        (["abc</think"], "abc</think", ""),
        (["a<tool_call>"], "a<tool_call>", ""),
        (["a<tool_call>\n<"], "a<tool_call>\n<", ""),
        (["x</think>y</think"], "x", "y</think"),
    ],
)
def test_R22_tags_over_chunks_and_false_beginnings(chunks: list[str], reasoning: str, content: str) -> None:
    for each in (chunks, ["".join(chunks)], list("".join(chunks))):
        assert split_reasoning(each, ThinkSplitter(opened=True)) == (reasoning, content)


def test_R22_only_what_may_be_a_tag_is_held_back() -> None:
    splitter = ThinkSplitter(opened=True)
    for chunk, shown, held in (
        ("a <", "a ", "<"),
        ("b", "<b", ""),
        ("c</thi", "c", "</thi"),
        ("s", "</this", ""),
    ):
        assert [piece.text for piece in splitter.feed(chunk)] == [shown]
        assert splitter.held == held


@pytest.mark.parametrize("start", STARTS)
def test_R24_chunk_borders_are_kept_where_no_tag_forces_a_cut(start: str) -> None:
    for name in sorted(PROFILES):
        splitter = Case(PROFILES[name], start, ()).splitter()
        chunks = ["Let me", " check ", "it", "\n\n", "🤖", " é", "?"]
        pieces = [splitter.feed(chunk) for chunk in chunks]
        assert [[piece.text for piece in some] for some in pieces] == [[chunk] for chunk in chunks]
        assert splitter.finish() == []


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_R25_with_thinking_off_all_is_content(name: str) -> None:
    for start in ({}, {"closed": True}):
        splitter = ThinkSplitter.of(PROFILES[name], **start)
        pieces = [piece for chunk in ("0.2", " is bigger.") for piece in splitter.feed(chunk)]
        assert joined([*pieces, *splitter.finish()]) == ("", "0.2 is bigger.")
        assert not splitter.thinking


def test_R25_the_switch_of_each_profile_turns_thinking_off() -> None:
    for profile in PROFILES.values():
        for name in profile.thinking_switch:
            assert profile.start({name: False}) == "closed"
            assert profile.start({name: True}) == ("opened" if profile.template_opens else "before")


@pytest.mark.parametrize(
    "answer",
    [
        "Use the `<think>` tag like this: `<think>x</think>`.",
        "In HTML </think> means nothing, <tool_call> neither.",
        "x <think>\nnot a thought\n</think> y",
    ],
)
def test_R31_tags_in_the_answer_are_plain_text(answer: str) -> None:
    for before, start in (
        ("<think>t</think>", {}),
        ("t</think>\n", {"opened": True}),
        ("", {}),
        ("", {"closed": True}),
    ):
        thought = "t" if before else ""
        for chunks in ([before, answer], list(before + answer)):
            assert split_reasoning(chunks, ThinkSplitter.of(QWEN, **start)) == (thought, answer)


def test_R31_old_thinking_in_the_history_opens_nothing() -> None:
    prompt = (
        "<|im_start|>user\nWhat is <think>?<|im_end|>\n"
        "<|im_start|>assistant\n<think>old</think>done<|im_end|>\n"
        "<|im_start|>user\n<think>\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not ThinkSplitter.after(QWEN, prompt).thinking
    assert split_reasoning(["Hi <think>"], ThinkSplitter.after(QWEN, prompt)) == ("", "Hi <think>")
    assert split_reasoning(["a</think>b"], ThinkSplitter.after(QWEN, prompt + "<think>\n")) == ("a", "b")
    closed = ThinkSplitter.after(QWEN, prompt + "<think>\n\n</think>\n\n")
    assert closed.closed
    assert split_reasoning(["\nb"], closed) == ("", "b")
    begun = ThinkSplitter.after(QWEN, prompt + "Sure: ")
    assert split_reasoning(["<think>x"], begun) == ("", "<think>x")
    bare = ModelProfile("bare")
    assert ThinkSplitter.after(bare, "Q: 2+2? <think>\n").thinking
    assert not ThinkSplitter.after(bare, "Q: <think> is a tag. A:").thinking


CALL = '<tool_call>{"name":"w","arguments":{"c":"Oslo"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"<think>need weather {CALL}</think>", "need weather ", CALL),
        (f"<think>need weather {CALL}\n</think>\n\nok", "need weather ", f"{CALL}\n\n\nok"),
        ("<think>some formats use <tool_call> tags</think>ok", "some formats use <tool_call> tags", "ok"),
        ("<think>`<tool_call>` and <tool_call></tool_call>.</think>ok",
         "`<tool_call>` and <tool_call></tool_call>.", "ok"),
        (f"<think>first <tool_call> then {CALL}", "first <tool_call> then ", CALL),
        ("<think>a\n<tool_call>\n<function=f>\n</function>\n</tool_call></think>", "a\n",
         "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
        ('<think>a<tool_call>{"q": "</think> <think>"}</tool_call></think>b</think>', "a",
         '<tool_call>{"q": "</think> <think>"}</tool_call>b</think>'),
        (f"<think>a{CALL}{CALL}</think>", "a", CALL + CALL),
    ],
)  # fmt: skip
def test_R35_a_call_in_thinking_is_kept_and_a_mention_is_none(
    text: str, reasoning: str, content: str
) -> None:
    for chunks in ([text], list(text)):
        assert split_reasoning(chunks, ThinkSplitter.of(QWEN)) == (reasoning, content)


@pytest.mark.parametrize(
    ("name", "call", "mention"),
    [
        ("glm-4.5", "<tool_call>get_weather\n<arg_key>c</arg_key></tool_call>", "<tool_call> tags"),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_calls_section_end|>",
            "a tool call",
        ),
        (
            "minimax-m2",
            '<minimax:tool_call>\n<invoke name="f"></invoke>\n</minimax:tool_call>',
            "<minimax:tool_call> is",
        ),
        ("nemotron-nano-v2", '<TOOLCALL>[{"name": "f"}]</TOOLCALL>', "<TOOLCALL> and"),
        ("gemma-4", "<|tool_call>call:f{}<tool_call|>", "tool_call>"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', "TOOL_CALLS]"),
    ],
)
def test_R35_calls_of_other_families(name: str, call: str, mention: str) -> None:
    profile = PROFILES[name]
    text = f"{profile.think_open}so {mention} x {call}"
    for chunks in ([text], list(text)):
        assert split_reasoning(chunks, ThinkSplitter.of(profile)) == (f"so {mention} x ", call)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_R39_tags_are_each_profiles_own(name: str) -> None:
    """No tag is built in: another family's tags are text, and the profile's own are found in its prompts."""
    profile = PROFILES[name]
    opening, closing = ("<think>", "</think>") if profile.think_open != "<think>" else ("[THINK]", "[/THINK]")
    if profile.style == "tags":
        inside = f"{profile.think_open}a{opening}b{closing}c{profile.think_close}d"
        assert split_reasoning([inside], ThinkSplitter.of(profile)) == (f"a{opening}b{closing}c", "d")
    closed_earlier = f"x{profile.think_close}y{profile.assistant_header}{profile.think_open}\n"
    assert ThinkSplitter.after(profile, closed_earlier).thinking
    assert not ThinkSplitter.after(profile, f"{profile.think_open}{profile.assistant_header}").thinking


def test_R41_a_call_without_a_close_tag_ends_thinking() -> None:
    chunks = [
        "<think>use search ", '<tool_call>{"name":"search","arg', 'uments":{"q":"tide tab',
        'les"}}</tool_call>',
    ]  # fmt: skip
    splitter, told = ThinkSplitter(), []
    for chunk in chunks:
        told.append(joined(splitter.feed(chunk)))
    assert told == [("use search ", ""), *(("", chunk) for chunk in chunks[1:])]
    assert splitter.finish() == []
    assert (splitter.thinking, splitter.closed, splitter.called) == (False, True, True)


@given(st.data())
def test_R45_choices_do_not_share_state(data: st.DataObject) -> None:
    """Deltas of up to four choices in any interleaving: each is read as if it were alone."""
    streams = data.draw(st.lists(texts(QWEN), min_size=2, max_size=4))
    chunked = [cut(text, data.draw(st.lists(st.integers(0, 60), max_size=6))) for text in streams]
    order = data.draw(st.permutations([n for n, chunks in enumerate(chunked) for _ in chunks]))
    splitters = [ThinkSplitter.of(QWEN) for _ in streams]
    pieces: list[list[Piece]] = [[] for _ in streams]
    feeds = [iter(chunks) for chunks in chunked]
    for choice in order:
        pieces[choice] += splitters[choice].feed(next(feeds[choice]))
    for choice, text in enumerate(streams):
        assert joined([*pieces[choice], *splitters[choice].finish()]) == split_reasoning([text])


def test_R45_the_case_of_the_report() -> None:
    deltas = [(0, "<think>a"), (1, "<think>b"), (0, "</think>A"), (1, "b2"), (1, "</think>B")]
    for order in (deltas, sorted(deltas, key=lambda delta: -delta[0])):
        splitters = {0: ThinkSplitter(), 1: ThinkSplitter()}
        pieces: dict[int, list[Piece]] = {0: [], 1: []}
        for choice, text in order:
            pieces[choice] += splitters[choice].feed(text)
        assert [joined(pieces[choice]) for choice in (0, 1)] == [("a", "A"), ("bb2", "B")]


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
TOOL = '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>'


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (f"{ANALYSIS}hm<|end|>{FINAL}42", "hm", "42"),
        (f"{ANALYSIS}hm<|end|>{FINAL}42<|return|>", "hm", "42"),
        (f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{FINAL}c", "ab", "c"),
        (f"{ANALYSIS}hm<|end|>{TOOL}", "hm", TOOL),
        (f"{ANALYSIS}hm<|end|><|start|>assistant<|channel|>commentary<|message|>First I look.<|end|>{TOOL}",
         "hm", f"First I look.{TOOL}"),
        (f"{ANALYSIS}a{FINAL}b", "a", "b"),  # the end was forgotten
        (f"{ANALYSIS}a<|channel|>final<|message|>b", "a", "b"),
        (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "",
         " to=functions.f<|channel|>commentary json<|message|>{}<|call|>"),
        ("<|channel|>final<|message|>Write <|channel|> and <|message|>.", "",
         "Write <|channel|> and <|message|>."),
        (f"{ANALYSIS}never ends <|en", "never ends <|en", ""),
        (f"{ANALYSIS}a<|end|><|start|>assi", "a", ""),
        ("plain text", "", "plain text"),
        ("<think>", "", "<think>"),
    ],
)  # fmt: skip
def test_harmony_channels(text: str, reasoning: str, content: str) -> None:
    for chunks in ([text], list(text)):
        assert split_reasoning(chunks, ThinkSplitter.of(GPT_OSS)) == (reasoning, content)


def test_harmony_after_a_hand_off_and_after_a_prompt() -> None:
    assert split_reasoning(["42<|return|>"], ThinkSplitter.of(GPT_OSS, closed=True)) == ("", "42")
    prompt = f"<|start|>user<|message|>2+2?<|end|><|start|>assistant{ANALYSIS}so"
    assert split_reasoning([f" 4<|end|>{FINAL}4"], ThinkSplitter.after(GPT_OSS, prompt)) == (" 4", "4")


def test_empty_tags_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        ThinkSplitter("", "</think>")
