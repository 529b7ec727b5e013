"""Which paths beside our own may be passed on to the server behind, and which never.

Knows paths as they stand in the request line, before anybody has decoded them. A path is compared as written:
one that could be read in two ways (encoded, doubled or turned slashes, dot segments, parameters) is none that
was listed. Does not know HTTP or servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["DEFAULT_PATHS", "GENERATING", "PathList", "is_forbidden"]

#: Models that are asked once and keep nothing: there is no thinking to control and no state to change.
#: Not here: what generates (it would pass by the control), what reads the server (/version, /load, /metrics,
#: /tokenize) and what changes it.
DEFAULT_PATHS = (
    "/v1/embeddings",
    "/v2/embed",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/classify",
    "/pooling",
    "/v1/moderations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
)

#: Writes by a model, but is none of ours: a request there passes by budgets, stops and tenants.
GENERATING = (
    "/v1/messages",
    "/v1/chat/completions/batch",
    "/v1/systemone",
    "/v1/realtime",
    "/v1/batches",
    "/v1/assistants",
    "/v1/threads",
    "/v1/images/generations",
    "/inference/v1/generate",
    "/cohere/v2/chat",
    "/generative_scoring",
    "/invocations",
    "/generate",
    "/completion",
    "/infill",
    "/api/generate",
    "/api/chat",
)

_PLAIN = re.compile(r"(/[A-Za-z0-9_~.:@+-]+)+")
# What no client may reach, wherever it stands in a path: operators' commands of vLLM, SGLang, llama.cpp and
# Ollama, and what lays a server open. `-` counts as `_`, case is ignored.
_FORBIDDEN = re.compile(
    r"""(?x)
    abort.* | collective_rpc | pause.* | is_paused | resume.* | sleep | is_sleeping | wake_up | continue_gen.*
    | .*weight.* | .*lora.* | .*adapters? | load | unload | load_model | unload_model
    | reset.* | flush.* | release_.* | clear_.* | freeze_gc
    | server_info | get_server_info | get_model_info | .*internal_state | get_world_size | kv_event.*
    | start_.* | stop_.* | .*profil.* | scale_.* | .*elastic.* | fault_tolerance | .*_process_group
    | open_session | close_session | configure.* | shutdown.* | restart | kill | quit | crash | debug
    | slots | props | metrics | docs | redoc | openapi\.json
    """
)
_OLLAMA = re.compile(r"(?i)/api/(pull|push|delete|copy|create|blobs)(/|$)")


def is_forbidden(path: str) -> bool:
    """Whether no settings can allow `path`: a part of it changes, stops or lays open the server."""
    names = (part.lower().replace("-", "_") for part in re.split(r"[/\\]+", path))
    return bool(_OLLAMA.match(path)) or any(_FORBIDDEN.fullmatch(name) for name in names)


class PathList:
    """Listed paths; one that ends in `/*` stands for everything below it.

    Raises `ValueError` for an entry that is no plain path, or that may never be passed on.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._exact: set[str] = set()
        self._below: list[str] = []
        for entry in entries:
            path = entry.removesuffix("/*")
            if not _is_plain(path):
                raise ValueError(
                    f"{entry!r} is no plain path. Write it as the server has it, such as /v1/embeddings, or "
                    "/v1/audio/* for all below"
                )
            if is_forbidden(path):
                raise ValueError(
                    f"{entry!r} changes, stops or lays open the server and is never passed on. Call the "
                    "server itself"
                )
            if path == entry:
                self._exact.add(path)
            else:
                self._below.append(path + "/")

    def __contains__(self, path: str) -> bool:
        """Whether `path`, as it stands in the request line, may be passed on."""
        if not _is_plain(path) or is_forbidden(path):
            return False
        return path in self._exact or any(path.startswith(prefix) for prefix in self._below)

    def shown(self) -> tuple[str, ...]:
        """The entries, for messages."""
        return (*sorted(self._exact), *(prefix + "*" for prefix in self._below))


def _is_plain(path: str) -> bool:
    """One reading only: plain characters, single slashes, no dot segments, none at the end."""
    return bool(_PLAIN.fullmatch(path)) and not any(part in (".", "..") for part in path.split("/"))
