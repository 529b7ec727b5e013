"""Tables of real profiles and vocabularies: the kernel finds what the plugin's own reading finds."""

from __future__ import annotations

import random
import time
from functools import cache

import pytest
from transformers import PreTrainedTokenizerFast

from desist.controller import ModelProfile, TokenizerVocabulary, builtin_profile, get_profile
from desist.controller.automaton import TokenAutomaton, TokenFlag, compile_automaton
from desist.controller.core import Control
from desist.data.reasoner.model import WEIGHTS
from desist.proxy.engines.vllm.inside.tracked import Request, Tracked
from desist.proxy.engines.vllm.wire import Identity
from tests.controller.automata import assert_same, walk
from tests.fakes.vocabulary import FakeVocabulary

TEXTS = (
    "So 3 + 4 = 7.\n\nWait, let me double-check: 7.\n", " Hmm", "mm. Alternatively, 12\n\n",
    "</think>\n\nThe answer", "<think>\n", " let me double-check", " waiting \u00e9\u2019\U0001f4a1 wai",
    "t", "```python\n{", "\\[x\\]", "\n \n", "<|im_start|>assistant\n",
)  # fmt: skip


@cache
def builtin() -> tuple[TokenizerVocabulary, PreTrainedTokenizerFast, TokenAutomaton]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS)
    words = TokenizerVocabulary(tokenizer)
    return words, tokenizer, compile_automaton(builtin_profile(), words, len(tokenizer))


@pytest.mark.parametrize("seed", range(10))
def test_the_builtin_reasoners_own_texts_and_any_tokens(seed: int) -> None:
    words, tokenizer, automaton = builtin()
    rng = random.Random(seed)
    token_ids: list[int] = []
    for _ in range(12):
        if rng.random() < 0.7:
            token_ids += tokenizer.encode(rng.choice(TEXTS), add_special_tokens=False)
        else:
            token_ids += [rng.randrange(len(tokenizer)) for _ in range(rng.randint(1, 12))]
    ended = words.special_id("</think>")
    if seed % 2:
        token_ids = [token_id for token_id in token_ids if token_id != ended]
    assert_same(automaton, words, token_ids, rng.randint(0, len(token_ids)))


PROMPTS: dict[str, list[str]] = {
    "open": ["<think>", "\n"],
    "begun": ["<think>", "So.", " wa"],
    "empty": ["<think>", "\n\n", "</think>", "\n\n"],
    "none": [],
    "again": ["<think>", "x", "</think>", "<think>"],
}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_reads_as_the_plugin_does(prompt: str, seed: int) -> None:
    profile, rng = get_profile("qwen3"), random.Random(seed)
    pieces: list[str | bytes] = [
        "it", " wait", "a", ".\n\n", " Hmm", "m", "{", "```\n", "\n", b"\xe2\x80", b"\x99", b"\xf0\x9f",
        b"\x92\xa1",
        *(["</think>", "<tool_call>", "<think>"] if seed % 2 else ["<think>"]),
    ]  # fmt: skip
    words = FakeVocabulary()
    head = words.ids(
        "<|im_start|>", "user", "\n", "<think>", "Q", "<|im_end|>", "\n", "<|im_start|>", "assistant", "\n"
    )
    prompt_ids = tuple(head + words.ids(*PROMPTS[prompt]))
    token_ids = words.ids(*rng.choices(pieces, k=60))
    automaton = compile_automaton(profile, words, max(words.ids(*pieces)) + 1)
    request = Request("r", prompt_ids, 400)
    one = Tracked.of(request, Identity("k"), profile, words, Control(mode="off"), min_answer_tokens=8)
    start = automaton.state_of(one.session.detector)
    told = walk(automaton, start, token_ids, len(prompt_ids) - 1)
    for place, (token_id, (flags, count, _)) in enumerate(zip(token_ids, told, strict=True), len(prompt_ids)):
        reading = one.take(place, token_id)
        assert (reading is not None) == bool(flags & TokenFlag.THINKING)
        assert count == one.session.detector.position
        if reading is not None:
            assert (reading.boundary is not None) == bool(flags & TokenFlag.BOUNDARY)
            assert reading.counted == bool(flags & TokenFlag.COUNTED)


MANY_CUES = (
    "wait",
    "hmm",
    "but",
    "so",
    "ok",
    "i",
    "actually",
    "let me check",
    "\u7b49\u7b49",
    "hold on",
    "that's not right",
)


def large_vocabulary(rng: random.Random, size: int) -> FakeVocabulary:
    """Bytes, parts of cues, words, symbols, other scripts, and parts of their characters."""
    words = FakeVocabulary()
    words.ids(*(bytes([byte]) for byte in range(256)))
    cues = (*MANY_CUES, "alternatively", "let me double-check")
    parts = {cue[i:j] for cue in cues for i in range(len(cue)) for j in range(i + 1, len(cue) + 1)}
    for part in sorted(parts):
        words.ids(part, " " + part, part.capitalize(), " " + part.capitalize())
    symbols = "()[]{}<>.,;:!?-_=+*/\\|`~$%&#@\"'\n\t "
    scripts = ((0x4E00, 0x9FFF), (0x400, 0x4FF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (0xC0, 0x24F))
    token = 0
    while token < size - 1:
        word = "".join(rng.choices("etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1), k=rng.randint(1, 9)))
        other = "".join(chr(rng.randint(*rng.choice(scripts))) for _ in range(rng.randint(1, 3)))
        match rng.randrange(20):
            case 0:
                data = "".join(rng.choices(symbols, k=rng.randint(1, 6))).encode()
            case 1:
                data = (word + rng.choice((".", ",", "\n", ".\n\n", "()", "'s", "\u2019s", "_"))).encode()
            case 2:
                start = rng.randrange(len(other.encode()))
                data = other.encode()[start : start + rng.randint(1, 4)]
            case 3 | 4 | 5:
                data = other.encode()
            case form:
                data = ((" " if form % 3 else "") + (word.capitalize() if form % 2 else word)).encode()
        token = words.token(data)
    return words


@pytest.mark.extended
@pytest.mark.parametrize("profile", [get_profile("qwen3"), ModelProfile("many", cues=MANY_CUES)])
def test_a_vocabulary_of_150_000_tokens(profile: ModelProfile) -> None:
    rng, size = random.Random(5), 150_000
    words = large_vocabulary(rng, size)
    started = time.perf_counter()
    automaton = compile_automaton(profile, words, size)
    print(
        f"{profile.name}: {automaton.n_states} states, {automaton.n_classes} classes, "
        f"{automaton.next.nbytes + automaton.flags.nbytes + automaton.token_class.nbytes:,} bytes, "
        f"{time.perf_counter() - started:.1f} s"
    )
    few = [*range(5, 1500), *rng.sample(range(size), 1000)]
    for _ in range(200):
        token_ids = rng.choices(few, k=80)
        assert_same(automaton, words, token_ids, rng.randrange(80))
