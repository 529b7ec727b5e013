"""How a policy is carried out, as fingerprints: tags, cues, boundary kinds, hold-off, hand-off.

One field each, so that a difference can be named. Knows a model's profile; not the model, the sampler or
the threshold. Readable where a value is short.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from desist.controller.profile import ModelProfile
from desist.data.fingerprint import fingerprint

#: Fields that profiles did not have when the first certificates were made. At their defaults, which are how
#: such profiles were read, they are left out of fingerprints.
_ADDED = (
    "tool_call_close", "tool_call_form", "style", "answer_open", "template_opens", "thinking_switch",
    "thinks_by_default",
)  # fmt: skip

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
        "profile": fingerprint(_told(profile)),
        "tags": fingerprint(_tags(profile)),
        "cues": fingerprint(profile.cues if "cue" in profile.kinds else ()),
        "kinds": ",".join(sorted(profile.kinds)),
        "hold_off": HOLD_OFF,
        "hand_off": fingerprint([profile.handoff_write, profile.handoff_extract, profile.extract_suffix]),
        "cue": cue,
    }
    if "every_n" in profile.kinds:
        found["every_n"] = str(profile.every_n)
    return found


def _told(profile: ModelProfile) -> dict[str, object]:
    """All fields, the added ones only where they say something new."""
    return {
        field.name: getattr(profile, field.name)
        for field in fields(profile)
        if field.name not in _ADDED or getattr(profile, field.name) != field.default
    }


def _tags(profile: ModelProfile) -> list[object]:
    tags: list[object] = [profile.think_open, profile.think_close, profile.tool_call_open]
    tags.append(profile.assistant_header)
    if profile.tool_call_open:
        tags += [profile.tool_call_form, profile.tool_call_close]
    return tags if profile.style == "tags" else [*tags, profile.style]
