"""Loads a transformers model folder into this process: its weights, beside what the folder says.

Knows devices and number types; what can be told without weights is in `desist.proxy.engines.model`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from desist.data.errors import EngineError
from desist.proxy.engines.model import ModelFacts, default_sampling, read_model

__all__ = ["LoadedModel", "default_sampling", "load_model"]


@dataclass(frozen=True)
class LoadedModel(ModelFacts):
    """A model ready to run."""

    network: Any = field(repr=False)


def load_model(
    path: str | Path, *, device: str = "auto", threads: int | None = None, dtype: torch.dtype | None = None
) -> LoadedModel:
    """Load a local model folder. `device` "auto": a GPU if there is one. `threads`: of torch, on the CPU.

    On the CPU the type is float32, on a GPU that of the weights, unless `dtype` is given. Raises
    `EngineError` for a folder that holds no causal language model.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} holds no config.json. Give the folder of a transformers model.")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    kind: Any = dtype or ("auto" if chosen.startswith("cuda") else torch.float32)
    try:
        network = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind, local_files_only=True, attn_implementation="sdpa"
        )
        network = network.to(chosen).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EngineError(f"{folder} cannot be loaded: {error}") from error
    facts = read_model(folder, dtype=str(network.dtype).removeprefix("torch."))
    known = {each.name: getattr(facts, each.name) for each in dataclasses.fields(facts)}
    return LoadedModel(**known, network=network)
