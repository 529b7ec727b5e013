"""What must be the same when a threshold is used as when it was calibrated: the fields and how they compare.

Each field is compared by itself, so that a refusal can name it. Knows names and short texts; not where
the running values come from (`desist.controller.fingerprints`, the engines and the probes make them).
"""

from __future__ import annotations

from collections.abc import Mapping

from desist.calibration.plan import Plan
from desist.controller.fingerprints import HOLD_OFF, PROFILE_FIELDS

__all__ = ["FIELDS", "differing", "plan_prints"]

FIELDS: Mapping[str, str] = {
    "model": "weights and config of the model",
    "tokenizer": "its vocabulary",
    "template": "its chat template",
    "dtype": "number format of weights and cache",
    "profile": "the model profile as a whole",
    "tags": "think tags, tool-call tag and assistant header",
    "cues": "the cue set",
    "kinds": "boundary kinds at which decisions are taken",
    "every_n": "distance of boundaries of kind every_n",
    "hold_off": "version of the rules that hold a stop back",
    "hand_off": "texts that close the thinking",
    "cue": "whether a stop keeps the cue just read or cuts before it",
    "sampler": "temperature, top_p and top_k",
    "judge": "who decided that two answers are the same",
    "answer_mode": "write or extract",
    "probe": "the probe that scores",
    "patience": "consecutive boundaries above the threshold",
    "warmup": "reasoning tokens before the first stop",
    "smoothing": "weight of the newest score",
    "traffic": "the later problems that calibration problems were weighted to",
}
"""Every field that is compared, with what it stands for. A streaming probe's field is "rom"."""


def plan_prints(plan: Plan) -> dict[str, str]:
    """The fields that the plan itself declares."""
    found = {
        "judge": plan.judge,
        "answer_mode": plan.answer_mode,
        "patience": str(plan.patience),
        "warmup": str(plan.warmup_tokens),
        "smoothing": f"{plan.ema:g}",
    }
    if plan.kinds is not None:
        found["kinds"] = ",".join(sorted(plan.kinds))
    return found


def differing(plan: Plan, stored: Mapping[str, str], running: Mapping[str, str]) -> dict[str, str | None]:
    """Each field of `running` that is not as calibrated, with the calibrated value (None: not known).

    `stored`: the certificate's own fingerprints. A boundary kind that was not in calibration differs; one
    that was and is not used now differs as well, since fewer boundaries are another policy. Certificates
    older than the single fields of a profile are asked for the profile as a whole.
    """
    known = {**stored, **plan_prints(plan)}
    if "hold_off" not in stored and "profile" in stored:  # made before these fields, when each had one value
        known |= {"hold_off": HOLD_OFF, "cue": "kept"}
        if running.get("profile") == stored["profile"]:
            known |= {name: running[name] for name in PROFILE_FIELDS if name in running and name != "kinds"}
    return {name: known.get(name) for name, value in running.items() if known.get(name) != value}
