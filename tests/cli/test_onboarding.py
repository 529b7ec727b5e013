"""`desist onboard`: what a certificate will cost, told before anything is spent."""

from __future__ import annotations

from pathlib import Path

from desist.data import write_traces
from tests.cli.test_certifying import as_json, desist
from tests.fakes.traces import make_traces

MEANS = (
    "--reasoning-tokens",
    "6000",
    "--answer-tokens",
    "300",
    "--boundaries",
    "40",
    "--forced-tokens",
    "20",
)


def test_estimate_alone_and_with_the_commands_that_follow() -> None:
    done = desist("onboard", "--estimate", *MEANS, "--tokens-per-second", "1000", "--json")
    assert done.returncode == 0, done.stderr
    found = as_json(done)
    assert (found["needed_n"], found["problems"]["training"]) == (59, 1000)
    assert found["hours"] == found["tokens"]["all"] / 3.6e6
    assert "commands" not in found
    followed = as_json(desist("onboard", *MEANS, "--training", "0", "--json"))["commands"]
    assert [line.split()[1] for line in followed] == ["collect", "score", "calibrate"]


def test_no_number_of_problems_is_exit_code_2_and_a_missing_mean_is_named(tmp_path: Path) -> None:
    refused = desist("onboard", "--estimate", *MEANS, "--expected-loss", "0.06")
    assert refused.returncode == 2
    assert "must be below alpha" in refused.stdout
    incomplete = desist("onboard", "--estimate", *MEANS[:4])
    assert incomplete.returncode == 1
    told = " ".join(incomplete.stderr.split())
    assert "--boundaries, --forced-tokens missing" in told


def test_lengths_come_from_traces(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_traces(path, make_traces(30, seed=2))
    done = desist("onboard", "--estimate", "--traces", path, "--forced-tokens", "9", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert as_json(done)["assumed"]["boundaries"] > 0
    both = desist("onboard", "--traces", path, *MEANS)
    assert both.returncode == 1
