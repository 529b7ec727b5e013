"""Full traces of the built-in reasoner, every boundary scored by every built-in probe.

The one place where traces are collected and scored for a study; knows nothing of policies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from desist.controller import AnswerMode
from desist.data.records import read_traces
from desist.data.schema import Problem, Sampling, Trace
from desist.probes.features import hidden_dir, read_hidden, token_dir
from desist.probes.scoring import score_traces
from desist.proxy.collection.batch_runs import Progress
from desist.proxy.collection.collect import collect
from desist.proxy.studies.builtin import Builtin

__all__ = ["full_traces", "score_file"]


def score_file(builtin: Builtin, path: Path) -> Iterator[Trace]:
    """The traces of a collected file with the scores "probe" and, where there is a head, "rom"."""
    scored = score_traces(read_traces(path), read_hidden(hidden_dir(path)), builtin.required_probe(), "probe")
    if builtin.rom is None:
        return scored
    return score_traces(scored, read_hidden(token_dir(path)), builtin.rom, "rom")


def full_traces(
    builtin: Builtin,
    problems: Sequence[Problem],
    *,
    sampling: Sampling,
    seed: int,
    batch: int = 64,
    answer: AnswerMode = "write",
    judge: str = "math",
    progress: Progress | None = None,
) -> list[Trace]:
    """Collect one full trace per problem and score it; in the order of the problems."""
    probe, rom = builtin.required_probe(), builtin.rom
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.jsonl"
        collect(
            problems,
            model=builtin.model,
            profile=builtin.profile,
            sampling=sampling,
            out=path,
            seed=seed,
            taps=probe.card.taps,
            keep_tokens_tap=rom.card.taps[0] if rom else None,
            batch=batch,
            answer=answer,
            judge=judge,
            hidden_dtype=probe.card.hidden_dtype,
            progress=progress,
        )
        found = {trace.problem_id: trace for trace in score_file(builtin, path)}
    return [found[problem.problem_id] for problem in problems]
