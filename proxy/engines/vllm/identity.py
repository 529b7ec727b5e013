"""Which choice of which request an internal vLLM request id stands for.

vLLM writes `<choice>_cmpl-<id>-<prompt>-<random>`, without `<choice>_` for a single choice and without
`-<prompt>` for chat. The client's own id may hold anything, so only the outer parts are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from desist.proxy.engines.vllm.wire import Identity

__all__ = ["identity_of"]

_CHOICE = re.compile(r"(\d+)_(?=(?:chat)?cmpl-|resp_|\d+(?:-[0-9a-f]{8})?$)")
_RANDOM = re.compile(r"-[0-9a-f]{8}$")
_PROMPT = re.compile(r"-(\d+)$")


def identity_of(request_id: str, key: str, taken: Callable[[Identity], bool] = lambda _: False) -> Identity:
    """The identity of an internal request id.

    `taken` tells identities that other running requests have: callers of the offline API give one key to
    many prompts whose ids do not tell their number, and get the next free one.
    """
    choice = _CHOICE.match(request_id)
    rest = _RANDOM.sub("", request_id[choice.end() :] if choice else request_id)
    prompt = _PROMPT.search(rest) if rest.startswith("cmpl-") else None
    found = Identity(key, int(prompt.group(1)) if prompt else 0, int(choice.group(1)) if choice else 0)
    while taken(found):
        found = Identity(key, found.prompt + 1, found.choice)
    return found
