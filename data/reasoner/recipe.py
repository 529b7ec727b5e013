"""The numbers of the trace grammar, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Recipe:
    """How often the reasoner errs, re-checks and stops. All rates are probabilities."""

    first_error_hard: float = 0.22
    first_error_easy: float = 0.01
    recheck_error_hard: float = 0.04
    recheck_error_easy: float = 0.002
    recheck_error_product: float = 0.08
    repeat_error: float = 0.15
    #: At a cue: go straight to the wrong step if there is one, and by false alarm if there is none.
    suspect_if_wrong: float = 0.93
    suspect_if_right: float = 0.06
    redo_all: float = 0.4
    jump_to_answer: float = 0.75
    cue_in_first_derivation: float = 0.02
    cue_in_recheck: float = 0.12
    paragraph_in_derivation: float = 0.03
    paragraph_without_cue: float = 0.12
    #: Thinking ends when one answer has been reached k times; weights of k = 2, 3, ...
    reach_weights: tuple[float, ...] = (0.10, 0.25, 0.30, 0.20, 0.15)
    most_answers: int = 9
    #: Wrong results carry no training weight, right ones little (used where errors are denser than the model
    #: should make them).
    mute_results: bool = False


SERVED = Recipe()
#: Denser errors, to teach the state at a cue; wrong results are not trained on.
DENSE = replace(
    SERVED,
    first_error_hard=0.45,
    first_error_easy=0.05,
    recheck_error_hard=0.3,
    recheck_error_easy=0.1,
    recheck_error_product=0.3,
    repeat_error=0.2,
    mute_results=True,
)
#: No errors and no re-checks: the first phase of training.
CLEAN = replace(
    SERVED,
    first_error_hard=0.0,
    first_error_easy=0.0,
    cue_in_first_derivation=0.0,
    reach_weights=(1.0,),
    most_answers=1,
)
