"""GET /healthz (the process lives) and /readyz (requests can be served; else 503, and why). No key asked."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from desist._version import __version__
from desist.data.errors import EngineError
from desist.proxy.errors import error_body
from desist.proxy.state import state_of

__all__ = ["router"]

router = APIRouter()


@router.get("/health")  # where vLLM has it: benchmark clients look there
@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok", "version": __version__}


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    state = state_of(request)
    try:
        if state.admission.draining:
            reason: str | None = "this server is shutting down"
        else:
            reason = await state.engine.ready() if state.started else "the engine is starting"
    except EngineError as error:
        reason = str(error)
    body: dict[str, Any] = {
        "status": "ready" if reason is None else "unavailable",
        "version": __version__,
        "engine": state.settings.engine,
        "mode": state.settings.control.mode,
        "certificates": [
            {"name": p.name, "alpha": float(p.alpha), "loss": p.loss, "answer": p.answer}
            for p in state.resolver.points
        ],
    }
    told = {name: text for name, tell in state.details.items() if (text := tell()) is not None}
    if told:
        body["details"] = told
    if reason is not None:
        body |= {"reason": reason} | error_body(f"not ready: {reason}", 503, code="not_ready")
    return Response(msgspec.json.encode(body), 200 if reason is None else 503, media_type="application/json")
