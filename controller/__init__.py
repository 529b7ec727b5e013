"""The decision: where a reasoning model may be stopped, and when it is. Pure, causal, no I/O, no torch."""

from desist.controller.boundaries import BoundaryDetector
from desist.controller.core import (
    Action,
    AnswerMode,
    Boundary,
    Control,
    Decision,
    GiveUp,
    Mode,
    Policy,
    StopReason,
)
from desist.controller.machine import StopMachine, answer_reserve, grace_tokens
from desist.controller.model_names import Chosen, profile_for
from desist.controller.profile import DEFAULT_CUES, ModelProfile
from desist.controller.profiles import PROFILES, builtin_profile, get_profile
from desist.controller.replay import Replayed, held_at, replay_many, replay_trace
from desist.controller.scorers import (
    CueCount,
    FirstCue,
    ForcedConfidence,
    Need,
    Position,
    RandomScore,
    SameAnswer,
    Scorer,
    StoredScore,
    check_offers,
)
from desist.controller.session import Scored, Session
from desist.controller.vocabulary import TokenizerVocabulary, Vocabulary

__all__ = [
    "DEFAULT_CUES",
    "PROFILES",
    "Action",
    "AnswerMode",
    "Boundary",
    "BoundaryDetector",
    "Chosen",
    "Control",
    "CueCount",
    "Decision",
    "FirstCue",
    "ForcedConfidence",
    "GiveUp",
    "Mode",
    "ModelProfile",
    "Need",
    "Policy",
    "Position",
    "RandomScore",
    "Replayed",
    "SameAnswer",
    "Scored",
    "Scorer",
    "Session",
    "StopMachine",
    "StopReason",
    "StoredScore",
    "TokenizerVocabulary",
    "Vocabulary",
    "answer_reserve",
    "builtin_profile",
    "check_offers",
    "get_profile",
    "grace_tokens",
    "held_at",
    "profile_for",
    "replay_many",
    "replay_trace",
]
