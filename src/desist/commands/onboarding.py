"""What a certificate on one's own model and traffic will cost: `onboard`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from desist.commands.common import REFUSED, Alpha, Delta, Json, Quiet, app, show, status

if TYPE_CHECKING:
    from desist.calibration.onboarding import Estimate, Lengths, Onboarding

_DTYPE_BYTES = 4  # hidden states are kept as float32


@app.command()
def onboard(
    alpha: Alpha = "0.05",
    delta: Delta = "0.05",
    traces: Annotated[
        Path | None, typer.Option("--traces", help="Some traces of yours: their lengths.", exists=True)
    ] = None,
    reasoning_tokens: Annotated[
        float | None, typer.Option("--reasoning-tokens", help="Mean of a trace, where no traces are given.")
    ] = None,
    answer_tokens: Annotated[float | None, typer.Option("--answer-tokens", help="Mean of an answer.")] = None,
    boundaries: Annotated[float | None, typer.Option("--boundaries", help="Mean of a trace.")] = None,
    forced_tokens: Annotated[
        float | None, typer.Option("--forced-tokens", help="Mean of one forced exit, hand-off included.")
    ] = None,
    training: Annotated[
        int, typer.Option("--training", help="Problems for a probe (0: there is one).")
    ] = 1000,
    expected_loss: Annotated[
        float, typer.Option("--expected-loss", help="Share that a careful threshold is hoped to lose.")
    ] = 0.0,
    saved: Annotated[
        float, typer.Option("--saved", help="Share of reasoning that stops are hoped to save.")
    ] = 0.25,
    audits: Annotated[float, typer.Option("--audits", help="Share of requests that are audited.")] = 0.01,
    hidden_size: Annotated[int, typer.Option("--hidden-size", min=0, help="Width of the model.")] = 4096,
    taps: Annotated[int, typer.Option("--taps", min=0, help="Layers that are read.")] = 4,
    tokens_per_second: Annotated[
        float | None, typer.Option("--tokens-per-second", help="Of your engine in all; for hours.")
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="The estimate alone, without the commands that follow it.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Problems, tokens, hours and disk that a certificate will cost, and when it pays. Spends nothing."""
    from desist.calibration.exact import level
    from desist.calibration.onboarding import Lengths, Onboarding, lengths_of
    from desist.calibration.onboarding import estimate as estimated

    given = (reasoning_tokens, answer_tokens, boundaries)
    if traces is not None:
        if any(each is not None for each in given):
            raise typer.BadParameter(
                "--traces tells the lengths. Leave --reasoning-tokens, --answer-tokens and --boundaries out."
            )
        from desist.data import read_traces

        with status("reading", quiet):
            lengths = lengths_of(list(read_traces(traces)), forced_tokens)
    else:
        names = ("--reasoning-tokens", "--answer-tokens", "--boundaries", "--forced-tokens")
        missing = [n for n, value in zip(names, (*given, forced_tokens), strict=True) if value is None]
        if missing:
            raise typer.BadParameter(f"give --traces, or the means yourself: {', '.join(missing)} missing.")
        lengths = Lengths(*(float(value or 0) for value in (*given, forced_tokens)))
    plan = Onboarding(
        level(alpha, "alpha"), level(delta, "delta"), lengths, expected_loss, training,
        row_bytes=taps * hidden_size * _DTYPE_BYTES, tokens_per_s=tokens_per_second, saved=saved,
        audits=audits,
    )  # fmt: skip
    found = estimated(plan)
    payload = _payload(plan, found)
    commands = [] if estimate or found.calibration is None else _commands(plan, found)
    if commands:
        payload["commands"] = commands
    show(payload, as_json=as_json, words="\n".join([*_words(plan, found), *commands]))
    return 0 if found.calibration is not None else REFUSED


def _payload(plan: Onboarding, found: Estimate) -> dict[str, Any]:
    measured: Lengths = plan.lengths
    return {
        "feasible": found.calibration is not None,
        "alpha": float(plan.alpha),
        "delta": float(plan.delta),
        "needed_n": found.calibration,
        "fewest_n": found.fewest,
        "problems": {
            "training": found.training,
            "calibration": found.calibration,
            "held_out": found.held_out,
        },
        "tokens": {"full_runs": found.full_tokens, "forced_exits": found.forced_tokens, "all": found.tokens},
        "recalibration_tokens": found.recalibration_tokens,
        "hours": found.hours,
        "disk_bytes": found.disk_bytes,
        "net_saved_tokens_per_request": found.net_saved,
        "pays_after_requests": found.pays_after,
        "assumed": {
            "expected_loss": plan.expected_loss,
            "saved": plan.saved,
            "audits": plan.audits,
            "reasoning_tokens": measured.reasoning,
            "answer_tokens": measured.answer,
            "boundaries": measured.boundaries,
            "forced_tokens": measured.forced,
            "row_bytes": plan.row_bytes,
        },
    }


def _words(plan: Onboarding, found: Estimate) -> list[str]:
    if found.calibration is None:
        return [
            f"no number of problems certifies alpha {float(plan.alpha):.6g} where {plan.expected_loss:.2%} "
            "are lost: the expected loss must be below alpha. Take a larger alpha, or a better probe."
        ]
    hours = "" if found.hours is None else f", {found.hours:.3g} hours"
    pays = "never" if found.pays_after is None else f"after {found.pays_after:,} requests"
    return [
        f"problems   {found.problems:,}: {found.training:,} to train, {found.calibration:,} to calibrate "
        f"(at least {found.fewest:,} if none is lost), {found.held_out:,} held out",
        f"tokens     {found.tokens:,}: {found.full_tokens:,} of full runs, "
        f"{found.forced_tokens:,} of forced exits{hours}",
        f"disk       {found.disk_bytes / 2**30:.2f} GiB",
        f"pays       {pays}, if {plan.saved:.0%} of reasoning is saved and {plan.audits:.1%} of requests "
        "are audited",
        f"again      {found.recalibration_tokens:,} tokens for a new certificate of the same probe",
    ]


def _commands(plan: Onboarding, found: Estimate) -> list[str]:
    """What is to be run then, in order. Names in capitals are yours."""
    source = "--problems FILE --model FOLDER --taps LAYERS"
    levels = f"--alpha {float(plan.alpha):.6g} --delta {float(plan.delta):.6g}"
    train = [
        f"desist collect {source} --split train --n {found.training} --out train.jsonl",
        "desist train train.jsonl --out probe",
    ]
    return [
        *(train if found.training else ()),
        f"desist collect {source} --split calibration --n {found.calibration} --out calibration.jsonl",
        "desist score calibration.jsonl --probe probe --out scored.jsonl",
        f"desist calibrate scored.jsonl --probe probe {levels} --out certificate",
    ]
