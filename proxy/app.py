"""The app factory: settings and an engine become a FastAPI app.

Knows how the parts are put together. Starts the engine and loads certificates when the app starts; a policy
that the engine cannot serve is refused there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from desist._version import __version__
from desist.data.schema import Sampling
from desist.proxy.access.middleware import AccessMiddleware
from desist.proxy.control import CertificateLike, ControlResolver, OperatingPoint, check_offered
from desist.proxy.engines.base import Engine
from desist.proxy.engines.build import build_engine
from desist.proxy.errors import CatchAllMiddleware, install_error_handlers
from desist.proxy.intake.headers import RequestIdMiddleware
from desist.proxy.lifecycle.team_member import Membership, joined
from desist.proxy.live.activation import follower_of, with_active_pair
from desist.proxy.live.certificates import load_points, running_prints
from desist.proxy.live.config_follower import follow_settings
from desist.proxy.live.model_watch import learning_models
from desist.proxy.live.reload import load_blocks
from desist.proxy.monitor.monitoring import Monitoring, start_monitoring
from desist.proxy.routes import chat, completions, health, metrics, mode, models, openapi, responses, stop
from desist.proxy.routes.relay import relay_others
from desist.proxy.settings import Settings, Source
from desist.proxy.state import ProxyState
from desist.proxy.telemetry.middleware import ObserveMiddleware
from desist.proxy.telemetry.port import metrics_port

__all__ = ["create_app"]


def create_app(
    settings: Settings,
    *,
    engine: Engine | None = None,
    certificates: Sequence[CertificateLike | OperatingPoint] | None = None,
    source: Source | None = None,
    membership: Membership | None = None,
) -> FastAPI:
    """The proxy as an ASGI app.

    `engine`: what generates (default: the one that `settings` names). `certificates`: the operating points,
    the default one first (default: the files that `settings` names). `source`: where `settings` were read
    from; it is followed while the app runs (None: they stay as they are). `membership`: what makes it one of
    several workers (None: it is alone). Its lifespan raises `NotOffered`,
    `ArtifactMismatch` or `EngineError` where the parts do not fit together.
    """
    asked, settings = settings, with_active_pair(settings)
    joins = membership or Membership()
    state = ProxyState(
        settings, engine or build_engine(settings), ControlResolver(settings.control), places=joins.places
    )
    follower = follower_of(asked, state)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following: asyncio.Task[None] | None = None
        monitoring: Monitoring | None = None
        try:
            await state.engine.start()
            if (register := getattr(state.engine, "register_metrics", None)) is not None:
                register(state.metrics.registry)
            state.sampling = _sampling(settings, state.engine)
            points = () if follower is not None and follower.active else _points(state, certificates)
            check_offered(settings.engine, state.engine.offers, points)
            state.resolver = ControlResolver(settings.control, points, state.sampling)
            monitoring = start_monitoring(state)
            if follower is not None:
                await follower.take()
                state.details["activation"] = lambda: follower.failure
                following = asyncio.create_task(follower.run())
            state.block_points = load_blocks(state, settings)
            state.details["mode"] = state.switch.detail
            await state.switch.apply()
            state.started_at, state.started = int(state.clock()), True
            with metrics_port(settings.metrics, state.metrics) as state.metrics_port:
                async with (
                    joined(state, joins.line),
                    follow_settings(state, source),
                    learning_models(state),
                ):
                    yield
        finally:
            state.started = False
            if following is not None:
                following.cancel()
            await state.relay.close()
            await state.engine.close()
            if monitoring is not None:
                await monitoring.close()

    app = FastAPI(
        title="desist",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.desist = state
    install_error_handlers(app)
    for module in (chat, completions, responses, models, stop, mode, openapi, health, metrics):
        app.include_router(module.router)
    app.router.default = relay_others
    # The last one added is the outermost.
    app.add_middleware(CatchAllMiddleware)
    app.add_middleware(AccessMiddleware, state=state)
    app.add_middleware(RequestIdMiddleware, new_id=state.new_id)
    app.add_middleware(ObserveMiddleware, metrics=state.metrics)
    return app


def _sampling(settings: Settings, engine: Engine) -> Sampling:
    """The default sampler: the settings, else the model's own (its certificates are for that one)."""
    own: Sampling = getattr(engine, "sampling", Sampling())
    asked = settings.sampling
    return Sampling(
        own.temperature if asked.temperature is None else asked.temperature,
        own.top_p if asked.top_p is None else asked.top_p,
        None,
        own.max_tokens if asked.max_tokens is None else asked.max_tokens,
    )


def _points(
    state: ProxyState, certificates: Sequence[CertificateLike | OperatingPoint] | None
) -> tuple[OperatingPoint, ...]:
    if certificates is None:
        return load_points(state.settings, running_prints(state.engine, state.sampling))
    return tuple(
        each if isinstance(each, OperatingPoint) else OperatingPoint.of(each) for each in certificates
    )
