"""A tiny training run that is broken off and resumed, and what it exports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from desist.data.reasoner.model import load_reasoner
from desist.data.reasoner.muon import orthogonalise
from desist.data.reasoner.train import Settings, Trainer

TINY = Settings(
    seed=1,
    steps=6,
    width=32,
    layers=2,
    vocabulary=400,
    batch_tokens=1500,
    pool_rows=8,
    threads=1,
    compile=False,
)


def test_resuming_is_exact_and_the_export_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from desist.data.reasoner import train

    tokenizer = train.make_tokenizer(TINY)
    monkeypatch.setattr(train, "make_tokenizer", lambda settings: tokenizer)
    whole = Trainer(TINY, tmp_path / "a", tmp_path / "cache_a")
    whole.run()

    broken = Trainer(TINY, tmp_path / "b", tmp_path / "cache_b")
    broken.run(stop_after_pools=1)
    assert broken.step < whole.step
    again = Trainer(TINY, tmp_path / "b", tmp_path / "cache_b")
    assert again.resume()
    again.run()
    assert again.losses == whole.losses
    assert again.tokens == whole.tokens

    other = Trainer(replace(TINY, seed=2), tmp_path / "b", tmp_path / "cache_b")
    assert not other.resume()

    model, loaded = load_reasoner(tmp_path / "b")
    assert loaded.chat_template
    assert loaded.encode("42") == tokenizer.encode("42")
    assert model.config.model_type == "qwen3"
    assert model.config.tie_word_embeddings
    assert model.generation_config.do_sample
    card = json.loads((tmp_path / "b" / "reasoner.json").read_text())
    assert "test bed" in card["about"]
    assert card["training"]["seed"] == 1
    assert card["finished"]
    assert card["weights_bytes"] < 12 * 2**20
    assert not list(tmp_path.glob(".reasoner-*"))


def test_orthogonalise_brings_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 16, 40)))
    assert values.min() > 0.4
    assert values.max() < 1.4
