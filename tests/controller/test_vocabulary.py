"""Exact bytes of tokens, on real tokenizers built here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desist.controller import BoundaryDetector, TokenizerVocabulary, builtin_profile
from desist.data.errors import ControlError

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TEXTS = ["Wait, let me double-check.\n\nHmm", "naïve café 💡 — 等等", "  two  spaces\tand a tab"]


@pytest.fixture(scope="module")
def byte_level() -> TokenizerVocabulary:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.train_from_iterator(
        TEXTS * 3,
        tokenizers.trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_tokens(["<think>", "</think>"])  # as Qwen3 has them: added, not "special"
    return TokenizerVocabulary(tokenizer)


@pytest.fixture(scope="module")
def sentencepiece() -> TokenizerVocabulary:
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "\u2581wait",
        "i",
        "n",
        "g",
        "\u0120",
        "\u010a",
    ]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    tokenizer.add_tokens(["\u2581\u2581\u2581", "\n\n"])  # white space as added tokens, as Gemma has it
    return TokenizerVocabulary(tokenizer)


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_bytes_of_byte_level_tokens_join_to_the_text(byte_level: TokenizerVocabulary, text: str) -> None:
    ids = byte_level.encode(text)
    assert b"".join(map(byte_level.token_bytes, ids)) == text.encode()


def test_leading_spaces_are_kept(byte_level: TokenizerVocabulary) -> None:
    ids = byte_level.encode("a let me")
    assert b"".join(map(byte_level.token_bytes, ids[1:])).startswith(b" ")


def test_added_tokens_are_flagged_and_are_their_text(byte_level: TokenizerVocabulary) -> None:
    ids = byte_level.encode("<think>x</think>")
    assert byte_level.special_id("<think>") == ids[0]
    assert [byte_level.is_special(i) for i in (ids[0], ids[1], ids[-1])] == [True, False, True]
    assert byte_level.token_bytes(ids[-1]) == b"</think>"
    assert byte_level.special_id("x") is None


def test_ids_beyond_the_tokenizer_have_no_bytes(byte_level: TokenizerVocabulary) -> None:
    assert byte_level.token_bytes(1_000_000) == b""
    assert byte_level.token_bytes(-1) == b""


def test_sentencepiece_spelling(sentencepiece: TokenizerVocabulary) -> None:
    def spelled(piece: str) -> bytes:
        return sentencepiece.token_bytes(sentencepiece._tokenizer.convert_tokens_to_ids(piece))

    assert spelled("\u2581wait") == b" wait"
    assert spelled("<0xE2>") == b"\xe2"
    assert spelled("\u0120") == "Ġ".encode()  # a letter here, not a space
    assert spelled("\u2581\u2581\u2581") == b"   "
    assert sentencepiece.special_id("\n\n") is None  # white space is text, not a tag


def test_an_unknown_spelling_is_refused() -> None:
    class Words(SimpleNamespace):
        def __len__(self) -> int:
            return 2

    words = Words(get_vocab=lambda: {"hello": 0, "##ing": 1}, added_tokens_decoder={})
    with pytest.raises(ControlError, match="neither a byte-level nor a sentencepiece"):
        TokenizerVocabulary(words)


@pytest.mark.parametrize(("enable_thinking", "thinking"), [(True, True), (False, False)])
def test_the_built_in_reasoners_template_is_read(enable_thinking: bool, thinking: bool) -> None:
    from desist.data.reasoner.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(
        ["Wait, 2 + 2 = 4.\n\nHmm, let me double-check. Alternatively <think>"] * 3, 300
    )
    messages = [{"role": "user", "content": "What does </think> mean? <think>"}]
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=enable_thinking
    )
    vocabulary = TokenizerVocabulary(tokenizer)
    ids = vocabulary.encode(str(rendered))
    assert b"".join(map(vocabulary.token_bytes, ids)).decode() == rendered
    detector = BoundaryDetector.from_prompt(builtin_profile(), vocabulary, ids)
    assert (detector.thinking, detector.closed) == (thinking, not thinking)
    cues = [detector.push(i) for i in vocabulary.encode("So 4. Wait, Hmm")]
    assert [found.text for found in cues if found] == (["Wait", "Hmm"] if thinking else [])
