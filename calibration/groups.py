"""Certificates per group (Mondrian): one plan, one threshold for each group that has problems enough.

Groups must be fixed without looking at outcomes and be known when a decision is taken (see `group_keys`).
"joint": all groups' statements hold together with probability 1 - delta, each gets delta / G; "each": every
statement holds by itself. Which of the two is said in every certificate. The number of groups G counts all
that occur, also those too small: which ones are is known before any score is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.exact import exact
from desist.calibration.group_keys import LENGTH_EDGES, Grouping, group_key
from desist.calibration.problems import problem_hash
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["calibrate_groups"]


def calibrate_groups(
    traces: Iterable[Trace],
    *,
    delta: object,
    forbidden_problems: Collection[str],
    delta_split: Literal["joint", "each"] = "joint",
    by: Grouping = "group",
    edges: Sequence[int] = LENGTH_EDGES,
    minimum: int = 1,
    **settings: Any,
) -> dict[str, Certificate | CannotCertify]:
    """`calibrate` for each group; small groups get `CannotCertify`, so they never stop.

    `by`: what groups are formed by; `edges`: of the bands of "prompt-length", in characters; `minimum`:
    problems below which a group is not certified even where the mathematics would allow it; `settings`: as in
    `calibrate`. Raises CalibrationError where traces have no group.
    """
    everything = list(traces)
    key = group_key(by, edges)
    without = sum(trace.group is None for trace in everything) if by == "group" else 0
    if without or not everything:
        raise CalibrationError(
            f"{without} traces have no group, of {len(everything)} traces. Give every trace a group."
        )
    members: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in everything:
        members[key(trace)].append(trace)
    share = exact(delta) / (len(members) if delta_split == "joint" else 1)
    found: dict[str, Certificate | CannotCertify] = {}
    for group in sorted(members):
        certified = calibrate(
            members[group],
            delta=share,
            group=group,
            group_by=by,
            n_groups=len(members),
            delta_split=delta_split,
            forbidden_problems=forbidden_problems,
            **settings,
        )
        problems = len({problem_hash(trace) for trace in members[group]})
        if problems < minimum and isinstance(certified, Certificate):
            plan = {
                name: getattr(certified, name)
                for name in CannotCertify.model_fields
                if hasattr(certified, name)
            }
            plan.pop("certified", None)
            certified = CannotCertify(**{**plan, "reason": "too_few", "n": problems, "needed_n": minimum})
        found[group] = certified
    return found
