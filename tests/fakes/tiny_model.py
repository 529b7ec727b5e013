"""A random Qwen3 of a few thousand weights with a byte-level tokenizer, saved as a model folder."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import torch

from desist.controller import ModelProfile
from desist.data.reasoner import handoff
from desist.data.reasoner.tokenizer import train_tokenizer
from desist.data.schema import Problem
from desist.data.splits import problem_id
from desist.proxy.engines.embedded import LoadedModel, load_model

__all__ = ["N_LAYERS", "PROFILE", "WIDTH", "problems", "tiny_folder", "tiny_model"]

N_LAYERS, WIDTH = 3, 32
#: Boundaries every seven tokens: a random model writes no cues.
PROFILE = ModelProfile(
    name="tiny",
    kinds=("every_n",),
    every_n=7,
    handoff_write=handoff.HANDOFF_WRITE,
    handoff_extract=handoff.HANDOFF_EXTRACT,
    tool_call_open=None,
    extract_suffix="}.",
    assistant_header="<|im_start|>assistant\n",
)


def problems(n: int) -> list[Problem]:
    """`n` short problems with gold answers."""
    texts = [f"What is {a} + {a + 3}?" for a in range(n)]
    return [Problem(problem_id(text), text, str(2 * a + 3)) for a, text in enumerate(texts)]


@functools.cache
def tiny_folder() -> Path:
    """The folder, written once per test run."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    folder = Path(tempfile.mkdtemp(prefix="desist-tiny-"))
    texts = [problem.text for problem in problems(50)] + [handoff.HANDOFF_EXTRACT, "Wait, no. Hmm."]
    tokenizer = train_tokenizer(texts, 300)
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
        # Thinking ends and turns end often enough for short tests.
        for tag, share in ((handoff.THINK_CLOSE, 0.6), (handoff.TURN_END, 0.8)):
            model.lm_head.weight[tokenizer.convert_tokens_to_ids(tag)] *= share
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.8, top_p=0.95, max_new_tokens=96, eos_token_id=config.eos_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    return folder


@functools.cache
def tiny_model() -> LoadedModel:
    """The loaded model, on one CPU thread."""
    return load_model(tiny_folder(), device="cpu", threads=1)
