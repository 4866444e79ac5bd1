"""Metrics of a running job for Prometheus, served by rank 0 for all ranks."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from socket import AI_PASSIVE, SOCK_STREAM, getaddrinfo, gethostname
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

try:
    import prometheus_client
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as missing:
    from ringtune.errors import RingtuneError

    raise RingtuneError(
        "metrics are exported by the package prometheus_client, which is not installed: "
        "pip install 'ringtune[metrics]', or leave --metrics-port (RINGTUNE_METRICS_PORT) out"
    ) from missing

from ringtune.bootstrap.interfaces import is_loopback
from ringtune.errors import ConfigError
from ringtune.meters.catalogue import CATALOGUE, Metric, speaks
from ringtune.meters.durations import BOUNDS_NS
from ringtune.meters.state import RankState

_open: weakref.WeakSet[Exporter] = weakref.WeakSet()
"""Exporters of this process, for its forked children."""

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class JobCollector:
    """The collector that prometheus_client calls at every scrape.

    Args:
        states: Returns the states of the ranks.
    """

    def __init__(self, states: Callable[[], Sequence[RankState]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; one that no rank reports has no lines."""
        states = self._states()
        for metric in CATALOGUE:
            yield family_of(metric, states)

    def describe(self) -> list[Any]:
        """Nothing: prometheus_client would collect once to learn the names."""
        return []


def family_of(metric: Metric, states: Sequence[RankState]) -> Any:
    """Return a metric with the values of all ranks that report it."""
    family = _FAMILIES[metric.kind](metric.name, metric.meaning.rstrip("."), labels=metric.all_labels)
    for state in states:
        if not speaks(metric, state):
            continue
        own = () if metric.scope == "job" else (str(state.rank) if metric.scope == "rank" else state.host,)
        if metric.kind == "histogram":
            bounds = [*(f"{bound / 1e9:g}" for bound in BOUNDS_NS), "+Inf"]
            counts = accumulate(state.step_counts)
            family.add_metric(own, list(zip(bounds, counts, strict=True)), sum_value=state.step_ns / 1e9)
        for labels, value in metric.values(state):
            family.add_metric((*own, *labels), value)
    return family


class _Handler(WSGIRequestHandler):
    """Answers one connection; one that is idle for `timeout` seconds is closed."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes are no news."""


def _server_class(family: int) -> type[WSGIServer]:
    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = family

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A scraper that hangs up, or says nothing, is no error of the job."""
            if not isinstance(sys.exc_info()[1], OSError):
                super().handle_error(request, client_address)

    return Server


def _under_own_name(app: WSGIApplication, host: str) -> WSGIApplication:
    """Return the application; on the loopback address it answers under this machine's own names alone.

    A page of another site, opened in a browser here, cannot read the metrics by giving its own name this address (DNS
    rebinding). Beyond loopback they are served to everybody who reaches the port, by whatever name.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            name = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname or ""
        except ValueError:  # half a bracket: no name of this machine
            name = ""
        if is_loopback(host) and not is_loopback(name) and name != gethostname().lower():
            start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"These metrics are only served under an address of this machine, such as 127.0.0.1.\n"]
        return app(environ, start_response)

    return answer


class Exporter:
    """Serves the metrics until it is closed. Owns the server and its thread.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 = one that is free.
        states: Returns the states of the ranks; called on the server's threads.

    Attributes:
        url: Where the metrics are.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(self, host: str, port: int, states: Callable[[], Sequence[RankState]]) -> None:
        registry = prometheus_client.CollectorRegistry()
        registry.register(JobCollector(states))
        app = _under_own_name(prometheus_client.make_wsgi_app(registry), host)
        try:
            family = getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0][0]
            self._server = make_server(host, port, app, _server_class(family), handler_class=_Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"RINGTUNE_METRICS_PORT={port}: cannot serve metrics on {host}:{port}: {reason}; choose another port "
                "(0 = any that is free)"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="ringtune-metrics", daemon=True)
        self._thread.start()
        _open.add(self)
        bracketed = f"[{host}]" if ":" in host else host
        self.url = f"http://{bracketed}:{self._server.server_port}/metrics"

    def leave_to_parent(self) -> None:
        """Close a forked child's copy of the socket: a child that lives on would keep the port."""
        self._server.socket.close()

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _after_fork() -> None:
    for exporter in _open:
        exporter.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
