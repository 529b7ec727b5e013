"""Certificates in service: `monitor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from desist.commands.common import Json, Quiet, Seed, app, show, status


@app.command()
def monitor(
    traces: Annotated[
        Path | None, typer.Argument(help="Scored calibration traces of the certificate.", exists=True)
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="The certificate whose policy stops them.", exists=True),
    ] = None,
    then: Annotated[
        Path | None,
        typer.Option("--then", help="Later scored traces: how late is a change seen?", exists=True),
    ] = None,
    alarm_every: Annotated[
        float, typer.Option("--alarm-every", help="Mean traces between false alarms, at least.")
    ] = 100_000,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Replays in random order.")] = 20,
    write_reference: Annotated[
        bool, typer.Option("--write-reference", help="Write the .drift file beside the certificate.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option("--state", help="Folder of monitor.state: show its audits instead.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replay traces past the drift detector: false alarms and delay. Or show what audits have found."""
    if state is not None:
        _audits(state, as_json)
        return
    if traces is None or certificate is None:
        raise typer.BadParameter("give a file of traces and --certificate, or --state FOLDER.")
    import numpy as np

    from desist.calibration import load_certificate
    from desist.calibration.drift_reference import build_reference, reference_path
    from desist.calibration.drift_replay import replay_drift
    from desist.calibration.drift_statistics import STATISTICS, replayed_statistics
    from desist.calibration.problems import one_per_problem
    from desist.data import read_traces

    found = load_certificate(certificate)
    policy = found.policy()

    def table(path: Path) -> Any:
        kept, _ = one_per_problem(read_traces(path), seed)
        return np.asarray(list(replayed_statistics(kept, policy, kinds=found.kinds)), dtype=np.float64)

    with status("replaying", quiet):
        before = table(traces)
        later = None if then is None else table(then)
        seen = replay_drift(before, policy, alarm_every=alarm_every, later=later, runs=runs, seed=seed)
    payload = seen.as_json() | {"traces": len(before), "certificate": found.digest}
    if seen.leading is not None:
        payload["leading"] = STATISTICS[int(seen.leading.rpartition(" ")[2])]
    lines = [
        f"{seen.null_alarms} false alarms on {seen.null_traces} exchangeable traces; promised: at most one "
        f"in {alarm_every:.0f}",
    ]
    if later is not None:
        delay = payload["delay"]["median"]
        what = f"after {delay:.0f} traces (median)" if delay is not None else "never"
        lines.append(
            f"the change was seen {what}, in {len(seen.delays)} of {runs} replays of {len(later)} traces"
        )
    if write_reference:
        made = build_reference(before, policy, certificate=found.digest, seed=seed)
        payload["reference"] = str(made.save(reference_path(certificate)))
        lines.append(f"drift reference in {payload['reference']}")
    show(payload, as_json=as_json, words="\n".join(lines))


def _audits(folder: Path, as_json: bool) -> None:
    from desist.calibration.audits import AuditTable, summarise
    from desist.calibration.monitor_folder import MonitorFolder

    with MonitorFolder(folder, write=False) as opened:
        records = AuditTable(opened).records()
    payload: dict[str, Any] = {}
    lines = []
    for digest in dict.fromkeys(record.certificate for record in records):
        seen = summarise(record for record in records if record.certificate == digest)
        payload[digest] = {
            "audits": seen.n,
            "stopped": seen.n_stopped,
            "lost": seen.n_lost,
            "open": seen.n_open,
            "repeats": seen.repeats,
            "interval": list(seen.interval),
            "interval_at_all_times": list(seen.anytime),
            "saved_fraction": seen.saved_fraction,
            "extra_tokens": seen.extra_tokens,
            "needed": seen.needed,
        }
        lines.append(
            f"certificate {digest[:8]}: {seen.n_lost} of {seen.n} audits lost ({seen.n_open} never judged), "
            f"95 % {seen.interval.low:.4f} to {seen.interval.high:.4f}, at all times {seen.anytime.low:.4f} "
            f"to {seen.anytime.high:.4f}; {seen.needed}"
        )
    show({"certificates": payload}, as_json=as_json, words="\n".join(lines) or "no audits yet")
