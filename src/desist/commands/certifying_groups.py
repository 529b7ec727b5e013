"""`desist calibrate --group-by`: a certificate for each group, one report, and what is missing where."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from desist.commands.certifying_flags import expiring
from desist.commands.common import REFUSED, show

if TYPE_CHECKING:
    from desist.calibration import CannotCertify, Certificate
    from desist.calibration.figures import Figures
    from desist.calibration.group_table import GroupLine
    from desist.calibration.groups import Groups
    from desist.data.schema import Trace

__all__ = ["INDEX", "GroupFlags", "calibrate_by_groups", "certificate_name", "group_flags"]

INDEX = "groups.json"
"""Beside the certificates of groups: what became of each group, and which file is its certificate."""


class GroupFlags(NamedTuple):
    """How groups are to be formed, as the flags say it."""

    by: str
    minimum: int
    split: Literal["joint", "each"] | None
    small: Literal["shadow", "rest"]
    edges: tuple[int, ...] | None


def group_flags(
    by: str | None,
    minimum: int | None,
    joint: bool | None,
    small: Literal["shadow", "rest"] | None,
    edges: str | None,
    alphas: Sequence[str],
) -> GroupFlags | None:
    """None where no groups are asked for. Raises BadParameter for flags that do not go together."""
    named = {
        "--min-group": minimum,
        "--joint/--each": joint,
        "--small-groups": small,
        "--length-edges": edges,
    }
    given = [name for name, value in named.items() if value is not None]
    if by is None:
        if given:
            raise typer.BadParameter(f"{given[0]} goes with --group-by. Say what groups are formed by.")
        return None
    if len(alphas) > 1:
        raise typer.BadParameter(
            "--group-by takes one --alpha. Calibrate once for each alpha, into folders of their own; whoever "
            "chooses among K of them after looking divides --delta by K."
        )
    try:
        bounds = None if edges is None else tuple(int(edge) for edge in edges.split(","))
    except ValueError:
        raise typer.BadParameter(f"--length-edges is {edges!r}; give numbers such as 128,512.") from None
    split: Literal["joint", "each"] | None = None if joint is None else "joint" if joint else "each"
    return GroupFlags(by, minimum or 1, split, small or "shadow", bounds)


def calibrate_by_groups(
    flags: GroupFlags,
    traces: Sequence[Trace],
    *,
    alpha: str,
    delta: str,
    settings: Mapping[str, Any],
    own: Callable[[Sequence[Trace]], Mapping[str, Any]],
    test: Sequence[Trace],
    figures: Mapping[str, Any],
    valid_days: int,
) -> tuple[dict[str, Certificate | CannotCertify], list[Figures], Groups]:
    """The certificates or refusals of all groups, the figures of those that were calibrated, the groups.

    `settings`: as in `calibrate`; `own`: what the traces of one group say of themselves. `figures`: settings
    of the figures.
    """
    from desist.calibration.figures import calibration_figures
    from desist.calibration.group_keys import members_of
    from desist.calibration.groups import certify_groups, form_groups

    groups = form_groups(
        traces, by=flags.by, delta=delta, delta_split=flags.split, edges=flags.edges, minimum=flags.minimum,
        small=flags.small, alpha=alpha, **settings,
    )  # fmt: skip
    certified = certify_groups(groups, alpha=alpha, own=lambda _, members: own(members), **settings)
    found = {name: expiring(one, valid_days) for name, one in certified.items()}
    small = tuple(found[name] for name in groups.small)
    shown = groups.calibrated
    if not shown:  # then the largest group stands for how far it is
        sizes = groups.small_sizes
        largest = max(sizes, key=lambda name: sizes[name])
        shown = {largest: groups.small[largest]}
        small = tuple(one for one in small if one.group != largest)
    drawn = [
        calibration_figures(
            found[name], members, test=members_of(groups.rule_of(name), name, test), **figures
        )
        for name, members in shown.items()
    ]
    drawn[0] = drawn[0].model_copy(update={"small_groups": small})
    return found, drawn, groups


def written(
    found: Mapping[str, Certificate | CannotCertify], groups: Groups, lines: Sequence[GroupLine], out: Path
) -> list[dict[str, Any]]:
    """The rows of the groups, each with its file; certificates, estimates and the index are written."""
    from desist.calibration import Certificate
    from desist.data.jsonl import atomic_file
    from desist.proxy.answering.estimates import StepTable

    rows = []
    for line in lines:
        one, row = found[line.group], line.model_dump(mode="json")
        row["certificate"] = None
        if isinstance(one, Certificate):
            path = one.save(out / certificate_name(line.group))
            StepTable.from_traces(list(groups.calibrated[line.group])).save(
                path.with_suffix(".estimates.json")
            )
            row["certificate"] = str(path)
        rows.append(row)
    names = [{**row, "certificate": row["certificate"] and Path(row["certificate"]).name} for row in rows]
    index = {"group_by": groups.rule.text, "delta_split": groups.split, "groups": names}
    with atomic_file(out / INDEX) as file:
        file.write(json.dumps(index, indent=1, ensure_ascii=False).encode() + b"\n")
    return rows


def certificate_name(group: str) -> str:
    """The file of a group's certificate: its name as far as a file may bear it, and a piece of its hash."""
    plain = re.sub(r"[^A-Za-z0-9._=-]+", "_", group).strip("_.")[:60]
    return f"certificate-{plain}-{hashlib.sha256(group.encode()).hexdigest()[:8]}.json"


def show_groups(
    found: Mapping[str, Certificate | CannotCertify],
    drawn: Sequence[Figures],
    groups: Groups,
    out: Path,
    payload: dict[str, Any],
    *,
    as_json: bool,
) -> int:
    """Write the certificates and print the outcome; REFUSED where no group is certified."""
    from desist.calibration.exact import exact_text
    from desist.calibration.group_table import (
        GROUP_HEAD,
        group_cells,
        group_lines,
        group_statement,
        group_words,
        worst_line,
    )
    from desist.data.markdown import table

    lines = group_lines(drawn)
    rows = written(found, groups, lines, out)
    worst = worst_line(lines)
    first = next(iter(found.values()))
    certified = worst is not None
    plain = first.model_dump(mode="json", include={"alpha", "loss", "method", "scorer", "group_by"})
    payload |= {
        **plain,
        "certified": certified,
        "guarantee": first.guarantee if certified else "none",
        "threshold": None,
        "n": sum(line.n for line in lines),
        "needed_n": groups.needed,
        "holdout_risk": None if worst is None else worst.holdout_risk,
        "holdout_ci": None if worst is None or worst.holdout_ci is None else list(worst.holdout_ci),
        "saved_fraction": _saved(drawn, groups),
        "delta": exact_text(groups.delta),
        "delta_split": groups.split,
        "statement": group_statement(first, lines),
        "worst_group": None if worst is None else worst.group,
        "group_rule": groups.rule.model_dump(mode="json"),
        "groups": rows,
        "certificates": [row["certificate"] for row in rows if row["certificate"]],
    }
    words = f"{group_words(drawn)}\n\n{table(GROUP_HEAD, group_cells(lines))}"
    show(payload, as_json=as_json, words=words)
    return 0 if certified else REFUSED


def _saved(drawn: Sequence[Figures], groups: Groups) -> float:
    """Share of all groups' tokens that is saved; in small groups nothing is."""
    from desist.calibration.problems import one_per_problem

    if not groups.calibrated:
        return 0.0
    saved = sum(one.saved * one.run_tokens * one.n_traces for one in drawn)
    runs = sum(one.run_tokens * one.n_traces for one in drawn)
    for traces in groups.small.values():
        runs += sum(each.n_reasoning_tokens + each.n_answer_tokens for each in one_per_problem(traces)[0])
    return float(saved / max(1.0, runs))
