"""The tokenizer and its chat template."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("transformers")

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from desist.data.reasoner.handoff import HANDOFF_EXTRACT, SPECIAL_TOKENS
from desist.data.reasoner.problems import draw_problems
from desist.data.reasoner.rows import FastEncoder, prompt, text_of_rows
from desist.data.reasoner.tokenizer import train_tokenizer


def _tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(text_of_rows(draw_problems(1, 300), random.Random(1)), 600)


TOKENIZER = _tokenizer()


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_digits_stand_alone_and_tags_are_single() -> None:
    assert TOKENIZER.tokenize("42") == ["4", "2"]
    assert all(len(TOKENIZER.encode(token, add_special_tokens=False)) == 1 for token in SPECIAL_TOKENS)
    assert len(TOKENIZER.encode("\n\n", add_special_tokens=False)) == 1


def test_offsets_join_to_the_text() -> None:
    text = "27 + 15 = 42. So the answer is 42, wait. 27" + HANDOFF_EXTRACT
    ids, starts = FastEncoder(TOKENIZER).encode(text)
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert len(ids) == len(starts)


@pytest.mark.parametrize("thinking", [True, False])
def test_template_renders_what_training_read(thinking: bool) -> None:
    rendered = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": "How many?"}],
        tokenize=False, add_generation_prompt=True, enable_thinking=thinking,
    )  # fmt: skip
    assert rendered == prompt("How many?", thinking=thinking)
    assert rendered.endswith("<think>\n" if thinking else "<think>\n\n</think>\n\n")


def test_template_takes_turns_systems_and_parts() -> None:
    rendered = TOKENIZER.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "<think>\nlong\n</think>\n\nIt is 1."},
            {"role": "user", "content": "Sure?"},
        ],
        tokenize=False,
    )
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
        "<|im_start|>assistant\nIt is 1.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n"
    )
