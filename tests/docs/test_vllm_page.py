"""docs/vllm.md names every setting and every metric that there is, and shows a command line that works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from desist.proxy.engines.vllm.beside.counters import VllmCounters
from desist.proxy.engines.vllm.config import PROCESSOR, PluginConfig, config_of
from desist.proxy.settings import VllmSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "vllm.md").read_text()


@pytest.mark.parametrize("name", [*VllmSettings.model_fields, *PluginConfig.model_fields])
def test_every_setting_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_metric_is_named() -> None:
    counters = VllmCounters(dict)
    for each in (
        counters.boundaries,
        counters.bytes,
        counters.decisions,
        counters.delay,
        counters.incomplete,
    ):
        assert next(iter(each.collect())).name in PAGE
    assert next(iter(counters.collect())).name in PAGE


def test_the_lines_for_one_s_own_server() -> None:
    assert f"--logits-processors {PROCESSOR}" in PAGE
    shown = re.search(r"--additional-config '(\{.*\})'", PAGE)
    assert shown is not None
    assert config_of(json.loads(shown.group(1))) is not None
