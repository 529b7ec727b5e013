"""How a policy is carried out, as fingerprints: tags, cues, boundary kinds, hold-off, hand-off.

One field each, so that a difference can be named. Knows a model's profile; not the model, the sampler or
the threshold. Readable where a value is short.
"""

from __future__ import annotations

from typing import Literal

from desist.controller.profile import ModelProfile
from desist.data.fingerprint import fingerprint

__all__ = ["HOLD_OFF", "PROFILE_FIELDS", "profile_fingerprints"]

HOLD_OFF = "1"
"""Version of the hold-off rules (`holdoff`); to be raised whenever they hold at other places than before."""

PROFILE_FIELDS = ("profile", "tags", "cues", "kinds", "every_n", "hand_off")
"""The fields below that a fingerprint of the whole profile covers as well."""


def profile_fingerprints(
    profile: ModelProfile, *, cue: Literal["kept", "rewound"] = "kept"
) -> dict[str, str]:
    """One fingerprint for each part of the policy that the profile decides.

    `cue`: what a stop does with the cue just read: engines that force the hand-off keep it, those that
    abort and continue cut before it.
    """
    found = {
        "profile": fingerprint(profile),
        "tags": fingerprint(
            [profile.think_open, profile.think_close, profile.tool_call_open, profile.assistant_header]
        ),
        "cues": fingerprint(profile.cues if "cue" in profile.kinds else ()),
        "kinds": ",".join(sorted(profile.kinds)),
        "hold_off": HOLD_OFF,
        "hand_off": fingerprint([profile.handoff_write, profile.handoff_extract, profile.extract_suffix]),
        "cue": cue,
    }
    if "every_n" in profile.kinds:
        found["every_n"] = str(profile.every_n)
    return found
