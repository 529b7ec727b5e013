"""Hidden states inside vLLM, kept row by row, and how near they must be to transformers'."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.fakes.vllm_engine import MODEL

ALL_TAPS = (0, 1, 2, 3, 4, 5, 6)


class Recorder:
    """Stands before the runtime and keeps the hidden states of all live rows at `taps`."""

    def __init__(self, runtime: Any, taps: Sequence[int] = ALL_TAPS) -> None:
        seen: dict[tuple[str, int], tuple[int, np.ndarray]] = {}
        times: Counter[tuple[str, int]] = Counter()
        vars(self).update(inner=runtime, wanted=tuple(taps), seen=seen, times=times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    @property
    def attention(self) -> Any:
        """No row is passed over, so that each is seen here."""
        return SimpleNamespace(wanted=set(self.inner.tracked), sampled=lambda *_: None)

    def step(self, rows: Any, taps: Any) -> None:
        states = taps.read(self.wanted, [row.row for row in rows]).numpy().copy()
        for row, state in zip(rows, states, strict=True):
            key = self.inner.tracked[row.request_id].identity.key
            self.seen[key, row.position] = (row.token, state)
            self.times[key, row.position] += 1
        self.inner.step(rows, taps)


def random_model(folder: Path) -> Path:
    """The built-in reasoner's files with weights drawn at random: no outlier channels, no sense."""
    from transformers import AutoConfig, AutoModelForCausalLM

    for file in MODEL.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL)).save_pretrained(folder)
    return folder


def tolerance(states: np.ndarray) -> np.ndarray:
    """[taps, 1] 1e-4, or two millionths of a tap's largest value where that is more.

    The built-in reasoner has channels near 1,000, where neighbouring float32 numbers are 6e-5 apart and
    transformers in float32 differs by 8e-4 from itself in float64.
    """
    return np.maximum(1e-4, 2e-6 * np.abs(states).max(axis=(1, 2)))[:, None]


def transformers_states(
    model: Path,
    sequences: list[tuple[int, ...]],
    taps: Sequence[int] = ALL_TAPS,
    dtype: torch.dtype = torch.float32,
) -> list[np.ndarray]:
    """transformers' hidden states of whole sequences, computed in `dtype`, each [taps, length, D]."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    with torch.inference_mode():
        found = [network(torch.tensor([ids]), output_hidden_states=True).hidden_states for ids in sequences]
    return [torch.stack([states[tap][0] for tap in taps]).numpy() for states in found]


def noisy_model(folder: Path, noise: float) -> Path:
    """The built-in reasoner with noise on its weights (a share of each deviation): a fair drafter."""
    from transformers import AutoModelForCausalLM

    for file in MODEL.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / file.name)
    network = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * weight.std() * noise)
    network.save_pretrained(folder)
    return folder
