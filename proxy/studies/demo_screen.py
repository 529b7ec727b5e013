"""What `desist demo` shows a person: one problem live, and the table of the paired runs.

Knows the screen only; the runs are `demo`'s and the embedded runner's.
"""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from desist.controller import Control, Scored
from desist.proxy.collection.batch_runs import JobMaker
from desist.proxy.engines.embedded.job import Done, Emitted, Event, Failed
from desist.proxy.engines.embedded.runner import Runner
from desist.proxy.live.certificates import load_points
from desist.proxy.settings import Settings
from desist.proxy.studies.builtin import Builtin, builtin_problems
from desist.proxy.studies.demo import Paired

__all__ = ["live", "summary"]


def live(builtin: Builtin, problem: str | None, *, seed: int, console: Console) -> None:
    """Show one problem as it is thought about: reasoning, a score at each boundary, stop, answer."""
    text = problem or builtin_problems("test", seed, 1)[0].text
    points = load_points(Settings(), builtin.model.fingerprints_with(builtin.profile))
    control = Control(mode="active", policy=points[0].policy) if points else Control(mode="off")
    console.print(f"[bold]{escape(text)}[/bold]", highlight=False)
    if points:
        console.print(f"[dim]stops where the score exceeds {control.policy.lam:.3f} ({points[0].name})[/dim]")
    maker = JobMaker(builtin.model, builtin.profile, builtin.sampling)
    job = replace(maker.job("live", maker.prompt(text), control, seed), stream=True)
    runner = Runner(builtin.model, max_rows=1, probe=builtin.probe)
    runner.add(job)
    shown = 0
    while runner.busy:
        for event in runner.step():
            for scored in job.session.scored[shown:]:
                _show_score(scored, console)
            shown = len(job.session.scored)
            _show(event, console)


def _show_score(scored: Scored, console: Console) -> None:
    score = next(iter(scored.scores.values()), None)
    mark = " ■ stop" if scored.decision.stops else ""
    words = "no score" if score is None else f"{score:.2f}"
    console.print(f" [{words}{mark}] ", style="yellow", end="", markup=False, highlight=False)


def _show(event: Event, console: Console) -> None:
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Emitted):
        style = "cyan" if event.channel == "reasoning" else "bold green"
        console.print(event.text, style=style, end="", markup=False, highlight=False, soft_wrap=True)
    elif isinstance(event, Done):
        usage = event.usage
        console.print(
            f"\n[dim]thinking ended: {event.stop_reason}; {usage.reasoning_tokens} reasoning, "
            f"{usage.handoff_tokens} hand-off, {usage.answer_tokens} answer tokens[/dim]\n"
        )


def summary(paired: Paired) -> str:
    """The paired runs in words and one table."""
    row, certificate = paired.row, paired.certificate
    interval = row.accuracy_loss_interval
    lines = [
        certificate.text,
        "",
        f"{row.n} fresh problems, each run in full and stopped (threshold {certificate.lam:.4g}):",
        f"  accuracy          {_share(row.accuracy_full)} full, {_share(row.accuracy_stopped)} stopped",
        f"  accuracy loss     {_share(row.accuracy_loss)}"
        + (f"  (95 % interval {_share(interval.low)} to {_share(interval.high)})" if interval else ""),
        f"  tokens saved      {_share(row.saved_fraction)} net of everything generated",
        f"  oracles           {_share(row.oracle_settled_fraction)} settled, "
        f"{_share(row.oracle_first_fraction)} first (the zero-loss ceiling)",
        f"  inconsistent      {row.inconsistent} of {row.n}; lost {row.lost}, gained {row.gained}",
        f"  wall clock        {paired.wall_clock_ratio:.2f} of the full runs'",
        f"  replay            {paired.replay_differs} stops differ from the live ones",
    ]
    if paired.rivals is not None:
        lines += ["", paired.rivals.text()]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
