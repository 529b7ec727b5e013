"""Where settings come from, what is wrong with them, and `desist config check` and `show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from desist.proxy import Settings, SettingsError, load_settings
from desist.proxy.live.blocks import aliases_of, canonical, control_of, upstream_of
from desist.proxy.settings import UpstreamSettings, load_with_origins
from desist.proxy.settings.conflicts import conflicts
from desist.proxy.settings.explaining import leaf_fields
from desist.proxy.settings.pages import table_in
from desist.proxy.settings.showing import settings_table, shown_values
from tests.cli.test_cli import desist

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path, text: str, name: str = "c.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_each_value_tells_where_it_came_from(tmp_path: Path) -> None:
    file = written(
        tmp_path, "port: 1\nhost: localhost\ncontrol: {mode: shadow, budget: 5}\napi_keys: [hush]\n"
    )
    environ = {"DESIST_PORT": "2", "DESIST_CONTROL__BUDGET": "6", "DESIST_LOG": '{"format": "json"}'}
    loaded = load_with_origins(file, {"control": {"mode": "off", "alpha": None}}, environ)
    told = shown_values(loaded)
    assert told["port"] == {"value": 2, "from": "env"}
    assert told["host"] == {"value": "localhost", "from": "file"}
    assert told["control.mode"] == {"value": "off", "from": "flag"}
    assert told["control.budget"] == {"value": 6, "from": "env"}
    assert told["control.alpha"] == {"value": None, "from": "default"}
    assert told["log.format"] == {"value": "json", "from": "env"}
    assert told["log.level"] == {"value": "warning", "from": "default"}
    assert told["api_keys"]["from"] == "file"
    assert "hush" not in json.dumps(told)


PLACES = ("flag", "env", "file", "default")


@given(st.dictionaries(st.sampled_from(["port", "drain_s", "control.budget", "limits.max_choices"]),
                       st.sets(st.sampled_from(PLACES[:3]))))  # fmt: skip
def test_the_highest_source_wins_for_each_key(
    tmp_path_factory: pytest.TempPathFactory, given_in: dict[str, set[str]]
) -> None:
    values = {"flag": 11, "env": 12, "file": 13}
    sources: dict[str, dict[str, Any]] = {"flag": {}, "env": {}, "file": {}}
    for path, places in given_in.items():
        head, _, tail = path.partition(".")
        for place in places:
            if place == "env":
                sources["env"][f"DESIST_{path.replace('.', '__').upper()}"] = str(values[place])
            else:
                at = sources[place].setdefault(head, {}) if tail else sources[place]
                at[tail or head] = values[place]
    file = tmp_path_factory.mktemp("c") / "c.yaml"
    file.write_text(yaml.safe_dump(sources["file"]))
    told = shown_values(load_with_origins(file, sources["flag"], sources["env"]))
    for path, places in given_in.items():
        first = next((place for place in PLACES if place in places), "default")
        assert told[path]["from"] == first
        if first != "default":
            assert told[path]["value"] == values[first]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {m: {tags: {opn: x}}}\n", r"models\.m\.tags\.opn.*Did you mean open\?"),
        ("models: {m: {control: {budgt: 1}}}\n", r"models\.m\.control\.budgt is 1.*Did you mean budget\?"),
        ("models: {m: {mode: fast}}\n", r"models\.m\.mode is 'fast'"),
        ("models: {m: {aliases: [m]}}\n", "'m' is a model of its own already"),
        ("models: {m: {aliases: [x]}, n: {aliases: [x]}}\n", "'x' is an alias of 'm' already"),
        ("upstream: {url: http://h, think-open: x}\n", r"upstream\.think-open.*Did you mean think_open\?"),
        ("api_keys: [{kye: hush}]\n", r"api_keys\.0\.kye: not a known setting. Did you mean key\?"),
        ("min_answer_tokens: 3\n", r"not a known setting here. Did you mean control\.min_answer_tokens\?"),
        ("control: {heartbeat_s: 3}\n", r"Did you mean stream\.heartbeat_s\?"),
        ("control: {alpha: much}\n", r"control\.alpha is 'much': .*above 0 and below 1"),
        ("control: {alpha: 1.5}\n", r"control\.alpha is 1\.5: give a number above 0"),
        ("port: 1\nport: 2\n", r"the key 'port' stands twice \(line 2, column 1\)"),
        ("control: {mode: off, mode: active}\n", "the key 'mode' stands twice"),
        ("port: [1\n", "is not YAML"),
        ("api_keys: ['hush\n", "is not YAML"),
        ("port: !!python/object/apply:os.getcwd []\n", "is not YAML"),
        ("control: 5\n", "control is 5"),
        ("limits: {max_choices: 0}\n", r"limits\.max_choices is 0: .*greater than or equal to 1.*\[file\]"),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(written(tmp_path, text), {}, {})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget", "budget_tokens"])
def test_r05_a_budget_in_the_wrong_place_names_the_right_one(tmp_path: Path, name: str) -> None:
    for text in (
        f"{name}: 10\n",
        f"upstream: {{url: 'http://h', {name}: 10}}\n",
        f"models: {{m: {{{name}: 1}}}}\n",
    ):
        with pytest.raises(SettingsError, match=r"not a known setting.*control\.budget|Did you mean"):
            load_settings(written(tmp_path, text), {}, {})
    with pytest.raises(SettingsError, match=r"budget.*Did you mean control\.budget\?"):
        load_settings(written(tmp_path, "budget: 10\n"), {}, {})


@pytest.mark.parametrize("word", ["off", "Off", "on", "yes", "no"])
def test_words_of_yaml_stay_words(tmp_path: Path, word: str) -> None:
    """YAML 1.1 would read `mode: off` as false."""
    file = written(tmp_path, f"model: {word}\n")
    assert load_settings(file, {}, {}).model == word
    if word == "off":
        assert load_settings(written(tmp_path, "control: {mode: off}\n"), {}, {}).control.mode == "off"
    assert load_settings(written(tmp_path, "monitor: {drift: no}\nallow_public: true\n"), {}, {}).allow_public


def test_an_environment_that_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"upstream is .*\[env\]|the environment holds a setting"):
        load_settings(None, {}, {"DESIST_UPSTREAM": "{"})
    made = load_settings(None, {}, {"DESIST_MODELS": '{"m": {"mode": "off"}}', "desist_port": "5"})
    assert (made.models["m"].mode, made.port) == ("off", 5)


plain = st.none() | st.booleans() | st.integers() | st.text(max_size=8)


@given(
    st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_file_is_read_or_refused_with_words(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    keys = ("api_keys", "control", "tenants", "upstream", "port", "models", "wat")
    for key in keys:
        file = tmp_path_factory.getbasetemp() / "any.yaml"
        file.write_text(yaml.safe_dump({key: value}, allow_unicode=True), encoding="utf-8")
        told = ""
        try:
            load_settings(file, {}, {})
        except SettingsError as error:
            told = str(error)
        assert not told or any(word in told for word in (key, "is not YAML", "client key"))


MODELS: dict[str, Any] = {
    "org/a": {"mode": "shadow", "aliases": ["a", "fast"], "control": {"budget": None, "answer": "extract"}},
    "b": {"profile": "deepseek-r1", "tags": {"close": "</t>"}},
}


def test_a_models_block_lies_over_the_servers_settings() -> None:
    made = load_settings(
        None, {"control": {"budget": 9, "mode": "active"}}, {"DESIST_MODELS": json.dumps(MODELS)}
    )
    assert [canonical(made, name) for name in ("fast", "a", "org/a", "c")] == ["org/a", "org/a", "org/a", "c"]
    assert aliases_of(made, "org/a") == ("a", "fast")
    one, other = control_of(made, "org/a"), control_of(made, "c")
    assert (one.mode, one.budget, one.answer) == ("shadow", None, "extract")
    assert other is made.control
    upstream = UpstreamSettings(url="http://h", think_open="<x>", retries=1)
    changed = upstream_of(upstream, made.models, "b")
    assert (changed.profile, changed.think_close, changed.retries) == ("deepseek-r1", "</t>", 1)
    assert "think_open" not in changed.model_fields_set  # another profile has tags of its own
    assert upstream_of(upstream, made.models, "org/a") is upstream


def run(*arguments: str) -> tuple[int, str, str]:
    done = desist(*arguments)
    return done.returncode, done.stdout, done.stderr


def found(flags: dict[str, Any]) -> dict[str, str]:
    return {each.path: f"{each.level}: {each.says}" for each in conflicts(load_settings(None, flags, {}))}


@pytest.mark.parametrize(
    ("flags", "path", "words"),
    [
        (  # R04: a parser with rules of its own, and tags declared beside it
            {"engine": "vllm", "vllm": {"args": ["--reasoning-parser", "qwen3", "--reasoning-config", "{}"]}},
            "vllm.args",
            "error: --reasoning-parser qwen3 has rules of its own",
        ),
        (
            {"engine": "vllm", "vllm": {"args": ["--reasoning-parser=mistral"], "profile": "qwen3"}},
            "vllm.profile",
            "error: is 'qwen3', whose thinking ends with '</think>'",
        ),
        (
            {
                "engine": "upstream",
                "upstream": {"url": "http://h", "profile": "qwen3", "think_close": "</t>"},
            },
            "upstream.think_close",
            "warning: is '</t>', but profile 'qwen3' has '</think>'",
        ),
        (
            {
                "engine": "upstream",
                "upstream": {"url": "http://h", "think_open": "<t>", "think_close": "<t>"},
            },
            "upstream.think_close",
            "error: is '<t>', as what opens thinking",
        ),
        ({"models": {"m": {"profile": "nosuch"}}}, "models.m.profile", "error: no model profile is called"),
        ({"certificates": ["/none.json"]}, "certificates", "error: /none.json is not there"),
        ({"host": "0.0.0.0"}, "host", "error: others can reach this address"),
        ({"host": "0.0.0.0", "allow_public": True}, "allow_public", "warning: others can reach"),
        ({"metrics": {"port": 8100}}, "metrics.port", "error: is the proxy's own port"),
        (
            {"control": {"budget": 5, "mode": "shadow"}},
            "control.budget",
            "warning: has no effect in mode shadow",
        ),
        ({"tenants": {"t": {}}}, "tenants.t", "warning: no client key belongs to it"),
        ({"upstream": {"url": "http://h"}}, "upstream", "warning: has no effect with engine embedded"),
        (
            {"relay": {"paths": ["/tokenize", "/v1/messages", "/api/*"]}},
            "relay.paths",
            "warning: /v1/messages, /api/generate, /api/chat may be passed on",
        ),
        (
            {"engine": "upstream", "upstream": {"url": "http://h"}, "monitor": {"audit_rate": 0.1}},
            "monitor.audit_rate",
            "error: engine upstream cannot",
        ),
    ],
)
def test_r04_what_contradicts_is_reported(flags: dict[str, Any], path: str, words: str) -> None:
    assert found(flags)[path].startswith(words)


def test_nothing_is_wrong_with_the_defaults() -> None:
    assert conflicts(Settings()) == ()
    assert found({"relay": {"paths": ["/tokenize", "/detokenize", "/v1/files/*"]}}) == {}
    usual = {
        "engine": "vllm",
        "vllm": {"args": ["--reasoning-parser", "deepseek_r1"], "profile": "qwen3-thinking"},
    }
    assert found(usual) == {}
    assert found({"engine": "upstream", "upstream": {"url": "http://h", "profile": "qwen3"}}) == {}


def test_config_check(tmp_path: Path) -> None:
    keys = written(tmp_path, "k\n", "keys")
    keys.chmod(0o644)
    good = written(tmp_path, f"api_key_file: {keys}\n")
    code, out, _ = run("config", "check", str(good), "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["errors"]) == (0, True, [])
    assert "chmod 600" in told["warnings"][0]
    bad = written(tmp_path, "prot: 1\nlimits: {max_choices: 0}\n", "bad.yaml")
    code, out, _ = run("config", "check", str(bad), "--json")
    told = json.loads(out)
    assert (code, told["ok"], len(told["errors"])) == (1, False, 2)
    assert "Did you mean port?" in told["errors"][1] + told["errors"][0]
    wrong = written(tmp_path, "host: 0.0.0.0\n", "wrong.yaml")
    code, out, _ = run("config", "check", "--config", str(wrong))
    assert (code, out.startswith("error: host: others can reach")) == (1, True)


def test_config_show_masks_secrets(tmp_path: Path) -> None:
    text = "api_keys: [hush-1]\noperator_keys: [hush-2]\nupstream: {url: 'http://h', api_key: hush-3}\n"
    file = written(tmp_path, text)
    for more in ([], ["--json"]):
        code, out, err = run("config", "show", str(file), *more)
        assert (code, "hush" in out + err) == (0, False)
    told = json.loads(out)
    assert told["upstream.url"] == {"value": "http://h/v1", "from": "file"}
    assert told["port"]["from"] == "default"


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert table_in(page) == settings_table(), "run: desist config table settings --out docs/settings.md"


def test_every_setting_says_what_it_does() -> None:
    silent = [path for path, field in leaf_fields(Settings) if not field.description]
    assert silent == []
