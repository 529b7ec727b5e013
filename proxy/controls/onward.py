"""What of a request's fields about thinking goes to the server behind, and what the proxy does in its place.

Changed is only what must be: a field that would hide thinking from the proxy, or leave it in the content,
since the proxy shows it as asked anyway; and the names of efforts that a setting translates. Budgets go on or
not as the engine decides, with `without_budgets`. Works on copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from desist.proxy.controls.aliases import ALIASES, Alias, dig

__all__ = ["onward", "without_budgets"]

_BUDGETS = tuple(alias for alias in ALIASES if alias.kind == "budget" and not alias.template)
_FORMATS = tuple(alias for alias in ALIASES if alias.kind == "format")
_EFFORTS = tuple(alias for alias in ALIASES if alias.kind == "effort")


def without_budgets(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without any native budget, for a call whose budget the proxy enforces itself.

    What a chat template is told stays: it makes the prompt. An object that held nothing else goes, and so
    does `thinking: {"type": "enabled"}`: no server takes it without its number.
    """
    out = dict(body)
    for alias in _BUDGETS:
        _drop(out, alias)
    if out.get("thinking") == {"type": "enabled"} and body.get("thinking") != out["thinking"]:
        del out["thinking"]
    return out


def onward(body: Mapping[str, Any], efforts: Mapping[str, str | None], *, shown_here: bool) -> dict[str, Any]:
    """The body for the server behind. `efforts`: what names of efforts are called there (None: not sent).

    `shown_here`: the proxy reads thinking and shows it as the request asks, so the server must tell it.
    """
    out = dict(body)
    for alias in _FORMATS if shown_here else ():
        if alias.read(dig(out, alias.path)) in ("inline", "none"):
            _drop(out, alias)
    for alias in _EFFORTS if efforts else ():
        name = dig(out, alias.path)
        if isinstance(name, str) and name in efforts:
            _drop(out, alias, efforts[name])
    return out


def _drop(out: dict[str, Any], alias: Alias, instead: Any = None) -> None:
    """Take the field out of `out`, or put `instead` in its place. Nested objects are copied, not changed."""
    *outer, last = alias.path
    held = out
    for name in outer:
        inner = held.get(name)
        if not isinstance(inner, Mapping) or last not in inner:
            return
        held[name] = held = dict(inner)
    if instead is not None:
        held[last] = instead
    else:
        held.pop(last, None)
    if outer and not held:
        out.pop(outer[0])
