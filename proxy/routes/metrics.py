"""GET /metrics: the app's own Prometheus registry. Counts only, so no key is asked."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from desist.proxy.state import state_of

__all__ = ["router"]

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(state_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})
