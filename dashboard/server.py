"""Serving: waitress in front of the app, with the checks that every request passes first.

On the loopback address every user of this machine may look, and a page of another site must not: the Host header has
to name this machine, which stops DNS rebinding. Beyond loopback every request needs the token. The content security
policy forbids the browser to load anything from elsewhere, whatever a run folder holds.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import socket
import threading
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import waitress
from dash import Dash
from flask import Flask, Response, abort, redirect, request
from waitress import wasyncore
from werkzeug.wrappers import Response as BaseResponse

from ringtune.bootstrap.interfaces import is_loopback
from ringtune.dashboard.app import create_app
from ringtune.errors import UsageError

THREADS = 8
TOKEN_BYTES = 24
SELF = "'self'"
FRAMES = f"{SELF} http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:* vscode-webview:"
"""Pages that may show the app in a frame: those that the user's own machine serves."""


@dataclass(frozen=True)
class ServeOptions:
    """How to serve.

    Attributes:
        root: Folder of runs, or one run.
        host: Address to listen on.
        port: Port, 0 for any free one.
        token: Secret that every request must carry; empty for none, which only loopback allows.
        prefix: Path under which a proxy shows the app, with a slash at both ends; ``{port}`` stands for the port.
        first: What is named below the prefix: the page to open, "" for the table of runs.
        framed: Pages of this machine's other servers (a notebook) may show the app in a frame.
    """

    root: Path
    host: str = "127.0.0.1"
    port: int = 8050
    token: str = ""
    prefix: str = "/"
    first: str = ""
    framed: bool = False


class Server:
    """A dashboard that listens; `run` serves until `close` or an interrupt.

    Raises:
        UsageError: The folder is missing, the port is taken, the address is not this machine's, or a token is needed.
    """

    def __init__(self, options: ServeOptions) -> None:
        check(options)
        self._stopping = threading.Event()
        self._listener = _listen(options)
        self.port = int(self._listener.getsockname()[1])
        self.options = options = replace(options, prefix=options.prefix.replace("{port}", str(self.port)))
        app = create_app(options.root, options.prefix)
        guard(app, options)
        self._server: Any = waitress.create_server(
            app.server,
            sockets=[self._listener],
            ident=None,
            clear_untrusted_proxy_headers=True,
            threads=THREADS,
        )

    @property
    def url(self) -> str:
        """The address to open, with the token when one is needed."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        shown = socket.gethostname() if host in ("0.0.0.0", "[::]") else host
        return f"http://{shown}:{self.port}{self.path}"

    @property
    def path(self) -> str:
        """The address without the server, which works behind the same proxy."""
        query = f"?{urlencode({'token': self.options.token})}" if self.options.token else ""
        return f"{self.options.prefix}{self.options.first}{query}"

    def run(self) -> None:
        """Serve until `close` is called on another thread, or until interrupted; then nothing listens any more."""
        try:
            while not self._stopping.is_set():
                self._server.asyncore.loop(timeout=1, count=1, map=self._server._map)
        finally:
            self._server.task_dispatcher.shutdown(timeout=5)
            wasyncore.close_all(self._server._map, ignore_all=True)
            self._listener.close()

    def close(self) -> None:
        """Let `run` end, on whichever thread it is."""
        self._stopping.set()
        with contextlib.suppress(OSError):  # it has ended already
            self._server.pull_trigger()


def _listen(options: ServeOptions) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(_bind_words(options, error)) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Bound here so that another program on the port is noticed now, not when serving begins.
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise UsageError(_bind_words(options, error)) from error
    return listener


def check(options: ServeOptions) -> None:
    """Check what can be checked before listening.

    Raises:
        UsageError: The folder is missing or no folder, or ``host`` is beyond loopback and there is no token.
    """
    if not options.root.exists():
        raise UsageError(
            f"{options.root}: no such folder. Give the folder of your runs (a job started with `ringtune run` makes "
            "`runs/` where it is started), for example: ringtune dashboard ~/project/runs"
        )
    if not options.root.is_dir():
        raise UsageError(f"{options.root} is a file, not a folder of runs")
    if not is_loopback(options.host) and not options.token:
        raise UsageError(f"--host {options.host} is reachable from other machines: it needs --token")


def new_token() -> str:
    """Return a secret that cannot be guessed."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def _bind_words(options: ServeOptions, error: OSError) -> str:
    where = f"{options.host}:{options.port}"
    if isinstance(error, socket.gaierror):
        return f"--host {options.host}: no such host name. Give an address of this machine, for example 127.0.0.1"
    if error.errno == errno.EADDRINUSE:
        return f"Port {where} is in use. Give another one with --port, or --port 0 for any that is free"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{options.host} is no address of this machine. Give one that is, for example 127.0.0.1"
    return f"Cannot listen on {where}: {error.strerror or error}"


def guard(app: Dash, options: ServeOptions) -> None:
    """Put the checks before, and the headers behind, every request of the app."""
    server = app.server
    assert isinstance(server, Flask)
    policy = content_policy(app) + f"; frame-ancestors {FRAMES if options.framed else SELF}"
    cookie = f"ringtune-{options.port}"

    @server.before_request
    def admit() -> BaseResponse | None:
        if not options.token:
            return (
                None if _host_is_here(request.host) else abort(421, "This dashboard only answers under its own address")
            )
        if _same(_offered(cookie), options.token):
            return _without_token() if "token" in request.args else None
        return Response(
            "This dashboard needs a token: open the address that `ringtune dashboard` printed.\n",
            401,
            mimetype="text/plain",
        )

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        if not options.framed:
            response.headers["X-Frame-Options"] = "SAMEORIGIN"
        if options.token and _same(request.args.get("token", ""), options.token):
            response.set_cookie(cookie, options.token, httponly=True, samesite="Strict", path=options.prefix)
        return response

    def _without_token() -> BaseResponse | None:
        if request.method != "GET":
            return None
        rest = [(key, value) for key, value in parse_qsl(request.query_string.decode("latin-1")) if key != "token"]
        return redirect(request.path + (f"?{urlencode(rest)}" if rest else ""))


def content_policy(app: Dash) -> str:
    """Return the policy: everything from this server, and only the inline scripts that Dash itself writes."""
    scripts = " ".join(["'self'", *app.csp_hashes()])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'none'"
    )


def _offered(cookie: str) -> str:
    """Return the token that a request carries: in its address, as a bearer, or in the cookie set the first time."""
    if token := request.args.get("token"):
        return token
    header = request.headers.get("Authorization", "")
    if header.startswith("Bearer "):
        return header[7:]
    try:
        found = SimpleCookie(request.headers.get("Cookie", "")).get(cookie)
    except CookieError:
        return ""
    return found.value if found else ""


def _same(offered: str, token: str) -> bool:
    return hmac.compare_digest(offered.encode(), token.encode())


def _host_is_here(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return is_loopback(name.strip("[]"))
