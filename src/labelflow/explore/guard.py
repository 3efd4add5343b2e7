"""What every request and every answer passes: only this page may talk to the server, and only its own files load."""

import ipaddress
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests that come through another site, and puts the headers on every answer.

    hosts: the names under which the server may be called. Addresses in digits always may: another site can give its
    own name this machine's address (DNS rebinding), but not the other way round.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self.app, self.hosts = app, {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        problem = self._problem(scope["method"], Headers(scope=scope))
        app: Any = self.app if problem is None else JSONResponse({"error": problem}, 403)
        await app(scope, receive, send_with_headers)

    def _problem(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if not self._trusted(host):
            return "unknown host name; open the address that labelflow explore printed"
        origin = headers.get("origin")
        elsewhere = headers.get("sec-fetch-site", "same-origin") != "same-origin"
        if method not in ("GET", "HEAD") and (elsewhere or origin not in (None, f"http://{host}", f"https://{host}")):
            return "requests must come from the page of this server"
        return None

    def _trusted(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self.hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False
