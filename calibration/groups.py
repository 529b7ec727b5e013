"""Certificates per group (Mondrian): one plan, one threshold for each group that has problems enough.

Groups are formed without looking at outcomes, by what is known when a decision is taken (see `group_keys`),
and so is which of them are calibrated: by their number of problems alone. "joint": all their statements hold
together with probability 1 - delta, each gets delta / G for G groups that are calibrated; "each": every
statement holds by itself. Which of the two is said in every certificate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from desist.calibration.calibrate import calibrate
from desist.calibration.certificate import CannotCertify, Certificate
from desist.calibration.exact import exact
from desist.calibration.group_keys import REST, Grouping, GroupRule, known_of, rule_for
from desist.calibration.plan import GUARANTEES, DeltaSplit
from desist.calibration.problems import problem_hash
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = ["Groups", "SmallGroups", "calibrate_groups", "certify_groups", "form_groups"]

SmallGroups = Literal["shadow", "rest"]
"""What becomes of groups that are too small: nothing stops in them, or they are one group together."""

_PLACEHOLDER = "(any)"


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of problems before any score was looked at.

    `calibrated`: those with problems enough, among them `REST` where small ones were pooled; `small`: the
    others, which never stop. `delta`: of the whole; `share`: of one
    calibrated group; `needed`: problems with which one more group would be calibrated.
    """

    rule: GroupRule
    calibrated: Mapping[str, tuple[Trace, ...]]
    small: Mapping[str, tuple[Trace, ...]]
    pooled: tuple[str, ...]
    delta: Fraction
    share: Fraction
    split: DeltaSplit
    needed: int

    @property
    def small_sizes(self) -> dict[str, int]:
        """Number of problems of each small group."""
        return {name: _problems(traces) for name, traces in self.small.items()}

    def rule_of(self, group: str) -> GroupRule:
        """The rule as a certificate of `group` carries it."""
        return self.rule.model_copy(update={"pooled": self.pooled if group == REST else ()})


def form_groups(
    traces: Iterable[Trace],
    *,
    by: Sequence[Grouping] | str,
    delta: object,
    delta_split: DeltaSplit | None = None,
    edges: Sequence[int] | None = None,
    minimum: int = 1,
    small: SmallGroups = "shadow",
    **settings: Any,
) -> Groups:
    """Groups and which of them are calibrated, from the number of problems of each.

    `by`: one key or several, then groups are their product. `edges`: of the bands of "prompt-length".
    `minimum`: problems below which a group is not calibrated even where `settings` (as in `calibrate`) would
    allow it. `delta_split` None: "joint" for methods with a delta, "each" for those that promise a mean.
    Raises CalibrationError: see `rule_for`; a joint statement of a method without a delta.
    """
    everything = list(traces)
    if not everything:
        raise CalibrationError("there are no traces to form groups of. Give a file with scored traces.")
    if minimum < 1:
        raise CalibrationError(f"minimum is {minimum}. Give the fewest problems of a group, 1 or more.")
    promise = GUARANTEES[settings.get("method", "ltt")]
    if delta_split == "joint" and promise != "pac":
        raise CalibrationError(
            f"method '{settings['method']}' has no delta that groups could share, so there is no joint "
            "statement. Ask for 'each', or take the method 'ltt' or 'pac'."
        )
    split: DeltaSplit = delta_split or ("joint" if promise == "pac" else "each")
    rule, whole = rule_for(by, everything, edges), exact(delta)
    members: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in everything:
        name = rule.name(known_of(trace))
        assert name is not None  # the rule was made so that every trace tells
        members[name].append(trace)
    sizes = {name: _problems(group) for name, group in members.items()}
    order = sorted(members, key=lambda name: (-sizes[name], name))

    def share(groups: int) -> Fraction:
        return whole / (max(1, groups) if split == "joint" else 1)

    def least(groups: int) -> int:
        """Fewest problems of each of so many groups."""
        alone = calibrate((), delta=share(groups), **{**settings, "forbidden_problems": (), "floors": None})
        return max(minimum, getattr(alone, "needed_n", None) or 1)

    def too_many(groups: int) -> bool:
        together = groups + (small == "rest" and groups < len(order))
        return sizes[order[groups - 1]] < least(together)

    count = bisect_left(range(1, len(order) + 1), True, key=too_many)
    chosen, left = order[:count], order[count:]
    pooled = [trace for name in left for trace in members[name]] if small == "rest" else []
    if pooled and _problems(pooled) < least(count + 1):
        pooled = []
    calibrated = {name: tuple(members[name]) for name in sorted(chosen)}
    if pooled:
        calibrated[REST] = tuple(pooled)
    return Groups(
        rule,
        calibrated,
        {} if pooled else {name: tuple(members[name]) for name in sorted(left)},
        tuple(sorted(left)) if pooled else (),
        whole,
        share(len(calibrated)),
        split,
        least(len(calibrated) + 1),
    )


def certify_groups(
    groups: Groups,
    *,
    forbidden_problems: Collection[str],
    own: Callable[[str, Sequence[Trace]], Mapping[str, Any]] | None = None,
    **settings: Any,
) -> dict[str, Certificate | CannotCertify]:
    """`calibrate` for each group; small groups get `CannotCertify`, their scores are not looked at.

    `settings`: as in `calibrate`, without delta; `own`: settings of one group, from its name and its traces,
    laid over these. Raises CalibrationError.
    """
    found: dict[str, Certificate | CannotCertify] = {}

    def run(name: str, traces: Sequence[Trace]) -> Certificate | CannotCertify:
        return calibrate(
            traces,
            delta=groups.share,
            group=name,
            group_by=groups.rule.text,
            group_rule=groups.rule_of(name),
            n_groups=max(1, len(groups.calibrated)),
            delta_split=groups.split,
            forbidden_problems=forbidden_problems,
            **{**settings, **({} if own is None or not traces else own(name, traces))},
        )

    for name, traces in groups.calibrated.items():
        found[name] = run(name, traces)
    if groups.small:
        empty = run(_PLACEHOLDER, ())
        assert isinstance(empty, CannotCertify)
        for name, n in groups.small_sizes.items():
            found[name] = empty.model_copy(
                update={"group": name, "reason": "too_few", "n": n, "needed_n": groups.needed}
            )
    return dict(sorted(found.items()))


def calibrate_groups(
    traces: Iterable[Trace],
    *,
    delta: object,
    forbidden_problems: Collection[str],
    delta_split: DeltaSplit | None = None,
    by: Sequence[Grouping] | str = "group",
    edges: Sequence[int] | None = None,
    minimum: int = 1,
    small: SmallGroups = "shadow",
    **settings: Any,
) -> dict[str, Certificate | CannotCertify]:
    """`form_groups`, then `certify_groups`: the certificate of each group, or why it has none."""
    groups = form_groups(
        traces, by=by, delta=delta, delta_split=delta_split, edges=edges, minimum=minimum, small=small,
        **settings,
    )  # fmt: skip
    return certify_groups(groups, forbidden_problems=forbidden_problems, **settings)


def _problems(traces: Sequence[Trace]) -> int:
    return len({problem_hash(trace) for trace in traces})
