"""The plugin's section in `--additional-config`: bad keys are named, taps are found, addresses spread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from desist.controller import get_profile
from desist.data.errors import ControlError
from desist.proxy.engines.vllm.config import SECTION, PluginConfig, config_of, offset_endpoint


@pytest.mark.parametrize("additional", [None, {}, {"other": {}}, {SECTION: None}, "text", 7])
def test_without_our_section_there_is_no_plugin(additional: object) -> None:
    assert config_of(additional) is None


def test_a_short_section_gets_the_defaults() -> None:
    config = config_of({SECTION: {"profile": "qwen3"}, "other": 1})
    assert config is not None
    assert config == PluginConfig(profile="qwen3")
    assert (config.decide, config.stream, config.taps, config.min_answer_tokens) == ("engine", None, (), 256)
    assert config.model_profile == get_profile("qwen3")


def test_what_the_plugin_has_written_is_no_setting() -> None:
    assert config_of({SECTION: {"profile": "qwen3", "tap_layers": [1, 4]}}) == PluginConfig(profile="qwen3")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({}, "desist.profile"),
        ({"profile": "no-such"}, "'desist.profile' is 'no-such'"),
        ({"profile": "qwen3", "decide": "both"}, "'desist.decide' is 'both'"),
        ({"profile": "qwen3", "stream": "float16"}, "'desist.stream' is 'float16'"),
        ({"profile": "qwen3", "queue": 0}, "'desist.queue' is 0"),
        ({"profile": "qwen3", "min_answer_tokens": 0}, "'desist.min_answer_tokens' is 0"),
        ({"profile": "qwen3", "taps": [1, "x"]}, "'desist.taps.1' is 'x'"),
        ({"profile": "qwen3", "prob": "p"}, "'desist.prob' is 'p'"),
    ],
)
def test_a_bad_key_is_named_with_its_value(section: dict[str, Any], told: str) -> None:
    with pytest.raises(ControlError) as caught:
        config_of({SECTION: section})
    assert told in str(caught.value)
    assert "Known keys: profile, probe" in str(caught.value)


def test_all_bad_keys_are_told_at_once() -> None:
    with pytest.raises(ControlError, match=r"desist\.queue.*desist\.sing"):
        config_of({SECTION: {"profile": "qwen3", "queue": -1, "sing": True}})


@pytest.mark.parametrize("section", ["qwen3", ["profile"], 3])
def test_a_section_that_is_no_object_is_refused(section: Any) -> None:
    with pytest.raises(ControlError, match="give an object"):
        config_of({SECTION: section})


@given(
    st.builds(
        PluginConfig,
        profile=st.just("qwen3"),
        probe=st.none() | st.just(Path("/p")),
        certificates=st.lists(st.just(Path("/c")), max_size=2).map(tuple),
        decide=st.sampled_from(["engine", "proxy"]),
        stream=st.sampled_from([None, "float32", "bfloat16"]),
        taps=st.lists(st.integers(-4, 80), max_size=3).map(tuple),
        token_tap=st.none() | st.integers(-4, 80),
        events=st.none() | st.just("tcp://127.0.0.1:0"),
        queue=st.integers(1, 10**6),
        force=st.booleans(),
    )
)
def test_a_configuration_comes_back_from_the_command_line(config: PluginConfig) -> None:
    assert config_of(json.loads(json.dumps(config.as_additional()))) == config


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError):
        PluginConfig(profile="qwen3").queue = 5  # type: ignore[misc]


def card(folder: Path, taps: list[int]) -> Path:
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps({"taps": taps}))
    return folder


def test_taps_are_those_of_all_readers_each_once(tmp_path: Path) -> None:
    config = PluginConfig(
        profile="qwen3",
        taps=(7, -1),
        probe=card(tmp_path / "probe", [3, -1]),
        rom=card(tmp_path / "rom", [3, 9]),
        token_tap=7,
    )
    assert config.wanted_taps() == (7, -1, 3, 9)
    assert PluginConfig(profile="qwen3").wanted_taps() == ()


@pytest.mark.parametrize("content", [None, "no json", "[]", "{}", '{"taps": 4}'])
def test_a_folder_without_a_card_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "card.json").write_text(content)
    with pytest.raises(ControlError, match="holds no probe card") as caught:
        PluginConfig(profile="qwen3", probe=tmp_path).wanted_taps()
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://127.0.0.1:8111", 0, "tcp://127.0.0.1:8111"),
        ("tcp://127.0.0.1:8111", 3, "tcp://127.0.0.1:8114"),
        ("tcp://[::1]:8111", 1, "tcp://[::1]:8112"),
        ("tcp://*:8111", 2, "tcp://*:8113"),
        ("tcp://127.0.0.1:0", 5, "tcp://127.0.0.1:0"),
        ("ipc:///tmp/events", 0, "ipc:///tmp/events"),
        ("ipc:///tmp/events", 2, "ipc:///tmp/events_dp2"),
    ],
)
def test_each_rank_has_its_own_address(endpoint: str, rank: int, expected: str) -> None:
    assert offset_endpoint(endpoint, rank) == expected
