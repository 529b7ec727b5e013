"""`collect` as a user runs it: layers and disk are told before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import as_json, desist


@pytest.mark.parametrize("flags", [("--taps", "2,99"), ("--token-tap", "-9")], ids=["boundaries", "tokens"])
def test_R54_a_layer_that_is_not_there_is_an_error_before_the_run(
    tmp_path: Path, flags: tuple[str, str]
) -> None:
    out = tmp_path / "t.jsonl"
    done = desist("collect", "--n", "1", *flags, "--out", out, "--json")
    assert done.returncode == 1
    message = as_json(done)["error"]["message"]
    assert f"tap {flags[1].removeprefix('2,')} does not exist" in message
    assert "0: embeddings" in message
    assert not out.exists()
    assert "layers x" not in done.stderr


def test_R54_the_disk_is_told_before_the_run(tmp_path: Path) -> None:
    flags = ("collect", "--n", "2", "--max-tokens", "40", "--taps", "0,-1", "--token-tap", "2")
    done = desist(*flags, "--out", tmp_path / "t.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    disk = as_json(done)["hidden_disk"]
    assert (disk["traces"], disk["taps"], disk["max_tokens"]) == (2, 2, 40)
    assert disk["token_row"] == disk["hidden_size"] * 2 + 4
    assert disk["total_bytes"] == 2 * disk["boundary_row"] + 2 * 40 * disk["token_row"]
    told = " ".join(done.stderr.split())
    assert f"2 layers x {disk['hidden_size']} x 2 bytes a boundary" in told
    assert told.index("hidden states:") < told.index("collecting")


def test_R54_the_layers_numbers_are_in_the_help() -> None:
    words = " ".join(desist("collect", "--help").stdout.replace("│", " ").split())
    assert "(0: embeddings, -1: last)" in words
