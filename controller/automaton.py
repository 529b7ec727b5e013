"""A boundary detector as a finite automaton over kinds of tokens: tables that a device can walk.

`compile_automaton` takes `BoundaryDetector` itself through all that it can meet (`exploration`) and merges
what cannot be told apart (`minimal`); so there are no second rules, and flags equal the detector's token for
token. Once thinking has closed nothing is looked at any more, as the engines do. Knows profiles and
vocabularies; no tensors and no scores.

Left to others: numbers, so reasoning tokens are only said to count and boundaries of kind "every_n" are not
told; hold-off zones, of which it says where one may open or close; the kinds and texts of boundaries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from desist.controller.boundaries import BoundaryDetector
from desist.controller.exploration import Explorer, Kind, TokenFlag, tag_rules
from desist.controller.minimal import minimal
from desist.controller.profile import ModelProfile
from desist.controller.reduced import Reduced
from desist.controller.token_signatures import Signatures
from desist.controller.vocabulary import Vocabulary
from desist.data.errors import ControlError
from desist.data.schema import BoundaryKind

__all__ = ["Standing", "TokenAutomaton", "TokenFlag", "automaton_for", "compile_automaton", "why_not"]

_ROOM = 2**15  # numbers of states and kinds in int16


class Standing(NamedTuple):
    """Where a request stands after its last token: what a device must be told to go on from there.

    `automaton`: the state. `count`: reasoning tokens so far. `periods`: every_n boundaries passed. `zone`:
    the place of the last token that may have moved a hold-off zone, -1 for none after what the host has seen.
    """

    automaton: int
    count: int = 0  # type: ignore[assignment]
    periods: int = 0
    zone: int = -1


@dataclass(frozen=True, eq=False, slots=True)
class TokenAutomaton:
    """Tables for V token ids, C kinds of tokens and N states. Build it with `compile_automaton`.

    `token_class` [V] int16: the kind of a token; `next` [N, C] int16: the state after it; `flags` [N, C]
    uint8: `TokenFlag`. `every_n`: a boundary each time so many reasoning tokens are passed, where a token is
    whole; 0 = off. `profile`: with the kinds and the every_n that were compiled.
    """

    profile: ModelProfile
    token_class: npt.NDArray[np.int16] = field(repr=False)
    next: npt.NDArray[np.int16] = field(repr=False)
    flags: npt.NDArray[np.uint8] = field(repr=False)
    every_n: int
    _states: Mapping[Reduced, int] = field(repr=False)
    _signatures: Signatures = field(repr=False)

    @property
    def vocabulary_size(self) -> int:
        return len(self.token_class)

    @property
    def n_states(self) -> int:
        return len(self.next)

    @property
    def n_classes(self) -> int:
        return int(self.next.shape[1])

    def state_of(self, detector: BoundaryDetector) -> Standing:
        """Where a detector stands now: after its prompt, after any tokens, after a rewind.

        Raises `ControlError` for a detector that reads other tags, kinds or cues.
        """
        if _read_by(detector.profile) != _read_by(self.profile):
            raise ControlError(
                f"the detector's profile '{detector.profile.name}' reads other tags, kinds, cues or every_n "
                f"than '{self.profile.name}', of which the automaton is. Compile one for each profile."
            )
        detector._settle()
        state = detector._state
        number = self._states.get(Reduced.of(state, self._signatures, tag_rules(detector).tool))
        if number is None:
            raise ControlError(
                f"the detector of profile '{detector.profile.name}' has read bytes that no tokens of the "
                "automaton's vocabulary spell. Compile the automaton for the detector's vocabulary."
            )
        return Standing(number, state.position, state.periods if self.every_n else 0)


def compile_automaton(
    profile: ModelProfile,
    vocabulary: Vocabulary,
    size: int,
    *,
    kinds: Collection[BoundaryKind] | None = None,
    every_n: int | None = None,
    max_states: int = 4096,
) -> TokenAutomaton:
    """The automaton of a profile for the token ids 0 to size - 1 (the model's logits, padding included).

    `kinds` and `every_n` stand in for the profile's own. Raises `ControlError` where `why_not` says why, or
    where more than `max_states` states are met or tables have no room.
    """
    profile = replace(
        profile,
        kinds=profile.kinds if kinds is None else tuple(kinds),
        every_n=profile.every_n if every_n is None else every_n,
    )
    detector = BoundaryDetector(profile, vocabulary)
    rules = tag_rules(detector)
    tags = _tags(profile, vocabulary, size)
    signatures = Signatures(_cues(profile))
    numbers: dict[Kind, int] = {}
    token_kinds = [
        numbers.setdefault(Kind.of(token_id, vocabulary, tags, signatures, rules), len(numbers))
        for token_id in range(size)
    ]
    explored = Explorer(detector, signatures, tuple(numbers)).explore(max_states)
    tables = minimal(explored.next, explored.flags)
    if max(tables.next.shape) > _ROOM:
        raise ControlError(
            f"profile '{profile.name}' needs {tables.next.shape[0]} states and {tables.next.shape[1]} kinds "
            f"of tokens, and tables have room for {_ROOM}. Give fewer or shorter cues, or find boundaries on "
            "the host."
        )
    return TokenAutomaton(
        profile=profile,
        token_class=tables.columns[np.array(token_kinds)].astype(np.int16),
        next=tables.next.astype(np.int16),
        flags=tables.flags.astype(np.uint8),
        every_n=(profile.every_n or 0) if "every_n" in profile.kinds else 0,
        _states={state: int(tables.states[number]) for state, number in explored.numbers.items()},
        _signatures=signatures,
    )


def why_not(profile: ModelProfile, vocabulary: Vocabulary, size: int) -> str | None:
    """Why no automaton can be compiled, told without compiling one; None: nothing is known against it."""
    try:
        tag_rules(BoundaryDetector(profile, vocabulary))
        _tags(profile, vocabulary, size)
        Signatures(_cues(profile))
    except ControlError as error:
        return str(error)
    return None


def automaton_for(profile: ModelProfile, vocabulary: Vocabulary, size: int) -> TokenAutomaton | str:
    """`compile_automaton`, kept for each profile, vocabulary (by its identity) and size.

    In place of an error its message is kept: boundaries are then to be found on the host.
    """
    return _kept(profile, cast(Any, vocabulary), size)


@lru_cache(maxsize=8)
def _kept(profile: ModelProfile, vocabulary: Any, size: int) -> TokenAutomaton | str:
    try:
        return compile_automaton(profile, vocabulary, size)
    except ControlError as error:
        return str(error)


def _cues(profile: ModelProfile) -> tuple[str, ...]:
    return profile.cues if "cue" in profile.kinds else ()


def _read_by(profile: ModelProfile) -> tuple[object, ...]:
    """All that a detector reads of its profile."""
    every_n = profile.every_n if "every_n" in profile.kinds else None
    tags = (profile.think_open, profile.think_close, profile.tool_call_open, profile.tool_call_form)
    return (*tags, profile.style, frozenset(profile.kinds), _cues(profile), every_n)


def _tags(profile: ModelProfile, vocabulary: Vocabulary, size: int) -> frozenset[int]:
    """Ids of the tags that open or end thinking. Raises `ControlError` where one is no token of its own."""
    ids = set()
    for name in ("think_open", "think_close", "tool_call_open"):
        tag = getattr(profile, name)
        if tag is None:
            continue
        token_id = vocabulary.special_id(tag)
        if token_id is None:
            raise ControlError(
                f"{name} of profile '{profile.name}' is {tag!r}, which is no token of its own in this "
                "vocabulary, and an automaton cannot take back tokens that spell it. Give the model's own "
                "tags (tool_call_open=None if it calls no tools), or find boundaries on the host."
            )
        if token_id >= size:
            raise ControlError(
                f"{name} of profile '{profile.name}' is token {token_id}, and size is {size}. Give the "
                "size of the model's logits."
            )
        ids.add(token_id)
    return frozenset(ids)
