"""What a folder says of its model, read without weights: ids, sizes, sampler, fingerprints, refusals."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from desist.controller import builtin_profile
from desist.data.errors import EngineError
from desist.data.schema import Sampling
from desist.proxy.engines.embedded.artefacts import builtin_model
from desist.proxy.engines.model import ModelFacts, default_sampling, read_model
from desist.proxy.engines.refusal import RequestRefused
from tests.fakes.tiny_model import N_LAYERS, WIDTH, tiny_folder, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may change."""
    return shutil.copytree(tiny_folder(), tmp_path / "copy")


def change(path: Path, **values: Any) -> None:
    """Write keys of a JSON file; None takes one away."""
    stated = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in stated.items() if value is not None}))


def test_the_loaded_model_says_the_same_as_its_folder() -> None:
    loaded, facts = tiny_model(), read_model(tiny_folder(), dtype="float32")
    for each in dataclasses.fields(ModelFacts):
        if each.name not in {"tokenizer", "vocabulary"}:
            assert getattr(facts, each.name) == getattr(loaded, each.name), each.name
    assert (facts.hidden_size, facts.n_layers, facts.max_length) == (WIDTH, N_LAYERS, 512)
    assert loaded.network.generation_config.eos_token_id in facts.end_ids <= facts.hidden_ids
    assert "network" not in repr(loaded)


def test_prompts_are_rendered_alike() -> None:
    loaded, facts = tiny_model(), read_model(tiny_folder(), dtype="float32")
    asked = [{"role": "user", "content": "What is 1 + 4?"}]
    assert facts.chat_ids(asked) == loaded.chat_ids(asked)
    assert facts.chat_ids(asked) != facts.chat_ids(asked, {"enable_thinking": False})
    assert facts.text_ids("Wait") == loaded.text_ids("Wait")
    with pytest.raises(RequestRefused, match="chat template"):
        facts.chat_ids([{"content": "no role"}])


def test_fingerprints_tell_weights_template_and_type_apart(folder: Path) -> None:
    first = read_model(folder, dtype="float32").fingerprints
    assert first == read_model(tiny_folder(), dtype="float32").fingerprints
    assert read_model(folder, dtype="bfloat16+awq+kv:fp8").fingerprints == {
        **first,
        "dtype": "bfloat16+awq+kv:fp8",
    }
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x07")
    found = read_model(folder, dtype="float32").fingerprints
    assert {name for name in first if first[name] != found[name]} == {"model"}
    run = read_model(folder, dtype="float32").fingerprints_with(
        builtin_profile(), sampling=Sampling(0.5, 0.9), judge="math", answer="write"
    )
    parts = {"tags", "cues", "kinds", "hold_off", "hand_off", "cue"}
    assert set(run) == {*first, "profile", *parts, "sampler", "judge", "answer_mode"}


def test_end_ids_come_from_both_configs_and_the_tokenizer(folder: Path) -> None:
    own = read_model(folder, dtype="float32")
    change(folder / "generation_config.json", eos_token_id=[5, 6])
    own_eos = own.tokenizer.eos_token_id
    assert read_model(folder, dtype="float32").end_ids == {5, 6, own_eos}
    (folder / "generation_config.json").unlink()
    change(folder / "config.json", eos_token_id=7)
    assert read_model(folder, dtype="float32").end_ids == {7, own_eos}


def test_sizes_of_a_model_of_many_parts_and_sizes_that_are_not_written(folder: Path) -> None:
    change(folder / "config.json", text_config={"hidden_size": 48, "num_hidden_layers": 5})
    facts = read_model(folder, dtype="float32")
    assert (facts.hidden_size, facts.n_layers, facts.max_length) == (48, 5, 512)
    change(folder / "config.json", text_config=None, max_position_embeddings=None)
    from transformers import Qwen3Config

    assert read_model(folder, dtype="float32").max_length == Qwen3Config().max_position_embeddings


def test_the_sampler_is_the_models_own(folder: Path) -> None:
    assert default_sampling(folder) == Sampling(0.8, 0.95, None, 96)
    change(folder / "generation_config.json", do_sample=False)
    assert default_sampling(folder) == Sampling(0.0, max_tokens=96)
    (folder / "generation_config.json").unlink()
    assert default_sampling(folder) == Sampling(1.0)


def test_refusals_name_the_folder_and_the_field(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no config\.json"):
        read_model(tmp_path, dtype="float32")
    change(folder / "config.json", hidden_size=0)
    with pytest.raises(EngineError, match="'hidden_size' is 0"):
        read_model(folder, dtype="float32")
    (folder / "config.json").write_text("{")
    with pytest.raises(EngineError, match=r"is no JSON|cannot be loaded"):
        read_model(folder, dtype="float32")
    with pytest.raises(EngineError, match="has no token for"):
        tiny_model().require_tags(dataclasses.replace(builtin_profile(), think_open="<hmm>"))


def test_reading_asks_for_no_torch() -> None:
    """The vLLM side of the proxy runs on machines without torch of its own."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from desist.proxy.engines.model import read_model\n"
        f"facts = read_model({str(builtin_model())!r}, dtype='float32')\n"
        "assert (facts.name, facts.hidden_size, facts.n_layers) == ('desist-reasoner', 160, 6)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
