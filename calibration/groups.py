"""Certificates per group (Mondrian): one plan, one threshold for each group that has traces enough.

Groups must be fixed without looking at outcomes and be known when a decision is taken (dataset, model,
length of the prompt). "joint": all groups' statements hold together with probability 1 - delta, each gets
delta / G; "each": every statement holds by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, Literal

from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.exact import exact
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["calibrate_groups"]


def calibrate_groups(
    traces: Iterable[Trace],
    *,
    delta: object,
    forbidden_problems: Collection[str],
    delta_split: Literal["joint", "each"] = "joint",
    **settings: Any,
) -> dict[str, Certificate | CannotCertify]:
    """`calibrate` for each `Trace.group`; small groups get `CannotCertify`. `settings`: as in `calibrate`.

    Raises CalibrationError where traces have no group.
    """
    members: defaultdict[str, list[Trace]] = defaultdict(list)
    without = 0
    for trace in traces:
        if trace.group is None:
            without += 1
        else:
            members[trace.group].append(trace)
    if without or not members:
        raise CalibrationError(
            f"{without} traces have no group, {len(members)} groups found. Give every trace a group."
        )
    share = exact(delta) / (len(members) if delta_split == "joint" else 1)
    return {
        group: calibrate(
            members[group],
            delta=share,
            group=group,
            forbidden_problems=forbidden_problems,
            **settings,
        )
        for group in sorted(members)
    }
