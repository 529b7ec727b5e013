"""The group of a problem, from what is known before it is run: never from scores, answers or lengths of runs.

A certificate carries its `GroupRule`, so that a request is put into its group by the function that put the
calibration problems there. Knows facts about prompts; not where a proxy gets them from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from desist.calibration.languages import language_of
from desist.data.errors import CalibrationError
from desist.data.schema import Trace

__all__ = [
    "GROUPINGS", "LENGTH_EDGES", "PROMPT_TOKENS", "REST", "GroupRule", "Grouping", "Known", "known_of",
    "length_band", "members_of", "messages_text", "prompt_text", "rule_for", "split_keys",
]  # fmt: skip

Grouping = Literal["group", "model", "dataset", "prompt-length", "language"]
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
Unit = Literal["tokens", "characters"]

LENGTH_EDGES: Mapping[Unit, tuple[int, ...]] = {"tokens": (128, 512), "characters": (400, 2000)}
"""Lengths of the prompt at which a longer band begins, unless others are declared. Fixed beforehand."""

PROMPT_TOKENS = "prompt_tokens"
"""Key of a trace's `provenance`: tokens of its prompt as rendered, the chat template included."""

REST = "(rest)"
"""Name of the group into which small groups are pooled, where that was declared."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a problem before it is run; None: it is not known.

    `prompt`: what the user wrote; `prompt_tokens`: of the prompt as rendered; `language`: as declared.
    """

    model: str | None = None
    dataset: str | None = None
    group: str | None = None
    language: str | None = None
    prompt: str | None = None
    prompt_tokens: int | None = None


class GroupRule(BaseModel):
    """How groups are formed: the product of the keys `by`.

    `edges` and `unit`: of the bands of "prompt-length". `language`: told by the "prompt" or "declared" with
    each problem. `pooled`: the groups that the group `REST` holds (in its own certificate only).
    Raises CalibrationError (a ValueError) for keys that repeat and edges that do not rise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: tuple[Grouping, ...] = Field(min_length=1)
    edges: tuple[int, ...] = ()
    unit: Unit | None = None
    language: Literal["prompt", "declared"] | None = None
    pooled: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _checked(self) -> Self:
        _fit_together(self.by, self.edges, self.unit)
        return self

    @property
    def text(self) -> str:
        """The keys as people and certificates name them."""
        return ",".join(self.by)

    def lacks(self, known: Known) -> tuple[Grouping, ...]:
        """The keys that `known` does not tell."""
        return tuple(key for key in self.by if not self._value(key, known))

    def name(self, known: Known) -> str | None:
        """The group of a problem; None where a key is not known. A product is "model=a;language=english"."""
        values = [self._value(key, known) for key in self.by]
        told = [value for value in values if value]
        if len(told) < len(self.by):
            return None
        if len(told) == 1:
            return told[0]
        safe = (value.replace("%", "%25").replace(";", "%3B") for value in told)
        return ";".join(f"{key}={value}" for key, value in zip(self.by, safe, strict=True))

    def _value(self, key: Grouping, known: Known) -> str | None:
        if key == "prompt-length":
            size = known.prompt_tokens
            if self.unit == "characters":
                size = None if known.prompt is None else len(known.prompt)
            return None if size is None else f"{length_band(size, self.edges)} {self.unit}"
        if key == "language":
            if self.language == "declared":
                return known.language
            return None if known.prompt is None else language_of(known.prompt)
        found: str | None = getattr(known, key)
        return found


def split_keys(text: str) -> tuple[Grouping, ...]:
    """Keys from a comma-separated list. Raises CalibrationError for one that is not known, or none."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in GROUPINGS:
            raise CalibrationError(f"unknown grouping {name!r}. Choose from {', '.join(GROUPINGS)}.")
    return names  # type: ignore[return-value]


def rule_for(
    by: Sequence[Grouping] | str, traces: Sequence[Trace], edges: Sequence[int] | None = None
) -> GroupRule:
    """The rule that groups `traces`. Lengths are in tokens where traces tell them, else in characters.

    A language that the traces declare (`provenance.language`) is taken, else the prompt tells it.
    Raises CalibrationError: unknown keys, traces that lack one or of which only some tell.
    """
    keys = split_keys(by) if isinstance(by, str) else split_keys(",".join(by))
    unit: Unit | None = None
    if "prompt-length" in keys:
        unit = "tokens" if _all_or_none(traces, PROMPT_TOKENS) else "characters"
    elif edges is not None:
        raise CalibrationError(
            f"edges of prompt lengths are given, groups are formed by {', '.join(keys)}. Add the key "
            "prompt-length, or leave the edges out."
        )
    language: Literal["prompt", "declared"] | None = None
    if "language" in keys:
        language = "declared" if _all_or_none(traces, "language") else "prompt"
    chosen = () if unit is None else LENGTH_EDGES[unit] if edges is None else tuple(edges)
    _fit_together(keys, chosen, unit)
    rule = GroupRule(by=keys, edges=chosen, unit=unit, language=language)
    _all_told(rule, traces)
    return rule


_NAMES: Mapping[Grouping, str] = {
    "group": "group", "model": "model", "dataset": "dataset", "prompt-length": "prompt", "language": "prompt",
}  # fmt: skip
_REMEDIES: Mapping[Grouping, str] = {
    "group": "write `group` to each trace",
    "model": "write `model` to each trace",
    "dataset": "write `dataset` to each trace",
    "prompt-length": "write `problem`, `prompt` or `provenance.prompt_tokens` to each trace",
    "language": "write `problem`, `prompt` or `provenance.language` to each trace",
}


def _all_told(rule: GroupRule, traces: Sequence[Trace]) -> None:
    everything = [known_of(trace) for trace in traces]
    for key in rule.by:
        without = [number for number, known in enumerate(everything) if key in rule.lacks(known)]
        if without:
            raise CalibrationError(
                f"{len(without)} of {len(traces)} traces have no {_NAMES[key]}, trace "
                f"{traces[without[0]].trace_id} is the first: {_REMEDIES[key]}, or leave the key {key} out."
            )


def _fit_together(by: Sequence[Grouping], edges: Sequence[int], unit: Unit | None) -> None:
    if len(set(by)) != len(by):
        raise CalibrationError(f"groups are formed by {', '.join(by)}. Name each key once.")
    banded = "prompt-length" in by
    rising = all(low < high for low, high in zip((0, *edges), edges, strict=False))
    if banded != (unit is not None) or banded != bool(edges) or not rising:
        raise CalibrationError(
            f"edges of prompt lengths are {list(edges)}. Give rising numbers above 0, such as 128,512, and "
            "only with the key prompt-length."
        )


def _all_or_none(traces: Sequence[Trace], key: str) -> bool:
    without = [trace.trace_id for trace in traces if trace.provenance.get(key) in (None, "")]
    if without and len(without) < len(traces):
        raise CalibrationError(
            f"{len(without)} of {len(traces)} traces have no provenance.{key}, trace {without[0]} is the "
            "first, the others have. Write it to all of them, or to none."
        )
    return not without and bool(traces)


def known_of(trace: Trace) -> Known:
    """What was known of a trace's problem before it was run. Raises CalibrationError."""
    tokens = trace.provenance.get(PROMPT_TOKENS)
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0):
        raise CalibrationError(
            f"trace {trace.trace_id}: provenance.{PROMPT_TOKENS} is {tokens!r}. Write a whole number."
        )
    language = trace.provenance.get("language")
    return Known(
        trace.model or None,
        trace.dataset,
        trace.group,
        None if language is None else str(language),
        prompt_text(trace) or None,
        tokens,
    )


def members_of(rule: GroupRule, group: str, traces: Iterable[Trace]) -> list[Trace]:
    """The traces of one group, for `REST` those of the groups that it holds. Raises CalibrationError."""
    everything = list(traces)
    _all_told(rule, everything)
    wanted = frozenset(rule.pooled) if group == REST else {group}
    return [trace for trace in everything if rule.name(known_of(trace)) in wanted]


def prompt_text(trace: Trace) -> str:
    """What the user asked, as text: the user's messages, else the problem, else the prompt as it stands."""
    whole = trace.prompt if isinstance(trace.prompt, str) else ""
    said = "" if isinstance(trace.prompt, str) else messages_text(trace.prompt or ())
    return next((text for text in (said, trace.problem, whole) if text.strip()), "")


def messages_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """The text of the user's messages, one after the other; of all messages where no user speaks."""
    everything = list(messages)
    own = [message for message in everything if message.get("role") == "user"]
    return "\n".join(filter(None, (_text(message.get("content")) for message in own or everything)))


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else ()
    return "".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text"))


def length_band(size: int, edges: Sequence[int]) -> str:
    """The band of a length: "<400", "400-1999", ">=2000" for the edges 400 and 2000."""
    place = bisect_right(edges, size)
    if place == 0:
        return f"<{edges[0]}"
    return f">={edges[-1]}" if place == len(edges) else f"{edges[place - 1]}-{edges[place] - 1}"
