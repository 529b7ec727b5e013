"""The reasoner's network: a small Qwen3, its configuration and how it is loaded.

Knows shapes and files. Knows nothing of how it was trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WEIGHTS = Path(__file__).parent / "weights"


def build_config(vocabulary: int, pad: int, end: int, *, width: int = 160, layers: int = 6) -> Qwen3Config:
    """A Qwen3 configuration of the reasoner's family; heads are 32 wide."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        head_dim=32,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=pad,
        eos_token_id=end,
        bos_token_id=None,
        use_cache=True,
    )


def build_model(config: Qwen3Config, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised network."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).float()


def load_reasoner(path: Path | str = WEIGHTS) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The trained network, ready to generate, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(str(path))
    return model, tokenizer
