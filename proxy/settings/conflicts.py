"""What in settings speaks against itself or has no effect, told before anything starts.

Knows all groups, model profiles and whether files are there. Loads nothing, asks no server (`doctor` does).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from desist.controller.model_names import profile_for
from desist.controller.profiles import get_profile
from desist.data.errors import ControlError
from desist.proxy.access.keys import is_exposed
from desist.proxy.relay.paths import GENERATING, PathList
from desist.proxy.settings.whole import Settings, is_loopback

__all__ = ["Conflict", "conflicts"]

# What vLLM's reasoning parsers take for the end of thinking (vllm/reasoning, 0.32); others are not judged.
_ENDS = {
    "</think>": ("deepseek_r1", "deepseek_v3", "qwen3", "glm45", "glm47", "kimi_k2", "minimax_m2", "step3"),
    "[/THINK]": ("mistral",),
    "</mm:think>": ("minimax_m3",),
    "</seed:think>": ("seed_oss",),
    "Here is my response:": ("granite",),
    "<|end|>": ("openai_gptoss", "gptoss"),
}
_PARSER_ENDS = {parser: end for end, parsers in _ENDS.items() for parser in parsers}


@dataclass(frozen=True, slots=True)
class Conflict:
    """`error`: the proxy would not start, or would serve wrongly. `warning`: something has no effect."""

    level: Literal["error", "warning"]
    path: str
    says: str

    def __str__(self) -> str:
        return f"{self.level}: {self.path}: {self.says}"


def conflicts(settings: Settings) -> tuple[Conflict, ...]:
    """All of them, errors first."""
    found = [*_access(settings), *_files(settings), *_tags(settings), *_relay(settings), *_idle(settings)]
    return tuple(sorted(found, key=lambda each: each.level != "error"))


def _error(path: str, says: str) -> Conflict:
    return Conflict("error", path, says)


def _warning(path: str, says: str) -> Conflict:
    return Conflict("warning", path, says)


def _access(settings: Settings) -> Iterator[Conflict]:
    if not settings.client_keys and not is_loopback(settings.host):
        told = "others can reach this address, and no client key is asked for."
        if settings.allow_public:
            yield _warning("allow_public", told)
        else:
            yield _error("host", f"{told} Set api_keys or api_key_file, or allow_public: true.")
    if settings.metrics.port not in (None, 0) and settings.metrics.port == settings.port:
        yield _error("metrics.port", f"is the proxy's own port {settings.port}. Give another one.")
    used = {key.tenant for key in settings.client_keys}
    for name in settings.tenants:
        if name not in used:
            yield _warning(f"tenants.{name}", "no client key belongs to it.")
    if settings.allowed_hosts and settings.client_keys:
        yield _warning("allowed_hosts", "has no effect where keys are asked for.")


def _files(settings: Settings) -> Iterator[Conflict]:
    keys: list[tuple[str, Path | None]] = [
        ("api_key_file", settings.api_key_file),
        ("operator_key_file", settings.operator_key_file),
    ]
    if settings.upstream is not None:
        keys.append(("upstream.api_key_file", settings.upstream.api_key_file))
    for path, file in keys:
        if file is not None and is_exposed(file):
            yield _warning(path, f"others may read {file}. Run chmod 600 on it.")
    wanted: list[tuple[str, Iterable[Path]]] = [
        ("certificates", settings.certificates),
        ("probe", () if settings.probe is None else (settings.probe,)),
    ]
    wanted += [
        (f"models.{name}.certificates", block.certificates or ()) for name, block in settings.models.items()
    ]
    for path, files in wanted:
        for file in files:
            if not file.exists():
                yield _error(path, f"{file} is not there.")
    if settings.mode_file is not None and not settings.mode_file.parent.is_dir():
        yield _warning("mode_file", f"the folder {settings.mode_file.parent} is not there yet.")


def _tags(settings: Settings) -> Iterator[Conflict]:
    upstream = settings.upstream
    if upstream is not None:
        given = upstream.model_fields_set
        tags = (
            upstream.think_open if "think_open" in given else None,
            upstream.think_close if "think_close" in given else None,
        )
        yield from _tag_pair("upstream", "think_open", "think_close", upstream.profile, "", tags)
    for name, block in settings.models.items():
        path = f"models.{name}"
        if settings.engine != "upstream" and (block.profile or block.tags.model_fields_set):
            yield _warning(path, f"profile and tags have no effect with engine {settings.engine}.")
        yield from _tag_pair(
            path, "tags.open", "tags.close", block.profile, name, (block.tags.open, block.tags.close)
        )
    yield from _parsers(settings)


def _tag_pair(
    path: str, opens: str, closes: str, profile: str | None, model: str, tags: tuple[str | None, str | None]
) -> Iterator[Conflict]:
    try:
        chosen = profile_for(model, profile).profile
    except ControlError as error:
        yield _error(f"{path}.profile", str(error))
        return
    own = tags[0] or chosen.think_open, tags[1] or chosen.think_close
    if own[0].strip() == own[1].strip():
        yield _error(f"{path}.{closes}", f"is {own[1]!r}, as what opens thinking. Give two tags.")
    if profile is not None:
        for name, tag, usual in ((opens, tags[0], chosen.think_open), (closes, tags[1], chosen.think_close)):
            if tag is not None and tag != usual:
                yield _warning(
                    f"{path}.{name}",
                    f"is {tag!r}, but profile '{chosen.name}' has {usual!r}. The tag given here is used; "
                    "leave it out unless the model was trained on it.",
                )


def _relay(settings: Settings) -> Iterator[Conflict]:
    """Listed paths on which a server writes all the same, out of reach of any control."""
    listed = PathList(settings.relay.paths)
    if found := [path for path in GENERATING if path in listed]:
        yield _warning(
            "relay.paths",
            f"{', '.join(found)} may be passed on: what is written there has no budget and is never stopped.",
        )


def _parsers(settings: Settings) -> Iterator[Conflict]:
    """vLLM's own reasoning parser against the tags and the profile that we are told."""
    args = _arguments(settings.vllm.args)
    parser = args.get("--reasoning-parser")
    if parser is None:
        return
    if "--reasoning-config" in args:
        yield _error(
            "vllm.args",
            f"--reasoning-parser {parser} has rules of its own, and --reasoning-config declares tags beside "
            "them: answers may land in the reasoning field. Leave one of the two out.",
        )
    end = _PARSER_ENDS.get(parser)
    if settings.vllm.profile is None or end is None:
        return
    with contextlib.suppress(ControlError):  # an unknown profile is told of elsewhere
        profile = get_profile(settings.vllm.profile)
        if profile.think_close.strip() != end:
            yield _error(
                "vllm.profile",
                f"is '{profile.name}', whose thinking ends with {profile.think_close!r}, but vllm.args has "
                f"--reasoning-parser {parser}, which waits for {end!r}. Let both name one model family.",
            )


def _arguments(args: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    last = ""
    for arg in args:
        if arg.startswith("-"):
            last, _, value = arg.replace("_", "-", arg.count("_") if "=" not in arg else 0).partition("=")
            found[last] = value
        elif last:
            found[last] = arg
    return found


def _idle(settings: Settings) -> Iterator[Conflict]:
    """Settings that have no effect as the others stand."""
    control = settings.control
    if settings.upstream is not None and settings.engine == "embedded":
        yield _warning("upstream", "has no effect with engine embedded. Set engine: upstream or vllm.")
    if settings.engine != "vllm" and settings.vllm.model_fields_set - {"log", "args"}:
        yield _warning("vllm", f"has no effect with engine {settings.engine}.")
    if settings.engine == "upstream":
        if settings.certificates or settings.probe:
            yield _error(
                "certificates" if settings.certificates else "probe",
                "engine upstream reads no hidden states, so nothing can decide by them. Use engine vllm.",
            )
        elif control.alpha is not None:
            yield _warning("control.alpha", "engine upstream decides by budgets only.")
        if settings.model is not None:
            yield _warning("model", "engine upstream serves what its server serves.")
    if control.budget is not None and control.mode != "active":
        yield _warning("control.budget", f"has no effect in mode {control.mode}.")
    if settings.force_certificates and settings.certificates:
        yield _warning("force_certificates", "all certificates count as uncertified.")
    if settings.activation is not None and (settings.certificates or settings.probe):
        yield _warning("activation", "the active pair takes the place of probe and certificates.")
    if settings.monitor.audit_rate > 0 and settings.engine != "embedded":
        yield _error("monitor.audit_rate", f"engine {settings.engine} cannot run on beside its stop.")
    if settings.vllm.profile is not None:
        try:
            get_profile(settings.vllm.profile)
        except ControlError as error:
            yield _error("vllm.profile", str(error))
