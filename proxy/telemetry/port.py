"""A port for metrics alone: who reads them there reaches nothing else. Knows one setting and a registry."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from prometheus_client import start_http_server

from desist.data.errors import ControlError
from desist.proxy.settings import MetricsSettings
from desist.proxy.telemetry.metrics import Metrics, multiprocess_folder

__all__ = ["metrics_port"]


@contextlib.contextmanager
def metrics_port(settings: MetricsSettings, metrics: Metrics) -> Iterator[int | None]:
    """Serve the metrics on `settings.port` for as long as this lasts; the port, None where there is none.

    Of several workers the first one has it and tells the counts of all. Raises `ControlError` where the
    address is taken by something else.
    """
    if settings.port is None:
        yield None
        return
    try:
        server, thread = start_http_server(settings.port, settings.host, metrics.shown())
    except (OSError, OverflowError) as error:
        if multiprocess_folder() is not None and getattr(error, "errno", None) == errno.EADDRINUSE:
            yield None
            return
        raise ControlError(
            f"metrics cannot be served on {settings.host}, port {settings.port}: {error}. Give another "
            "metrics.port, or leave it out: /metrics stays."
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
