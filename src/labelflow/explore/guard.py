"""What every request and every answer passes: only this page may talk to the server, and only its own files load."""

import ipaddress
import re
import secrets
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, Response
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
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z._-]+))(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)


class Guard:
    """Refuses requests that come through another site or without the token, and puts the headers on every answer.

    hosts: the names under which the server may be called. Addresses in digits always may: another site can give its
    own name this machine's address (DNS rebinding), but not the other way round.
    token: what a visitor has to know; empty: nothing. It is asked for once, and then kept in a cookie.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), token: str = "") -> None:
        self.app, self.hosts, self.token = app, {"localhost", *(host.lower() for host in hosts)}, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = HTTPConnection(scope)
        app = self._foreign(request) or self._unknown(request) or self.app
        await app(scope, receive, send_with_headers)

    def _foreign(self, request: HTTPConnection) -> Response | None:
        """The refusal of what comes through another site."""
        names, origin = request.headers.getlist("host"), request.headers.get("origin")
        if len(names) != 1 or not self._trusted(names[0]):
            return refusal(request, "unknown host name; open the address that labelflow explore printed")
        elsewhere = request.headers.get("sec-fetch-site", "same-origin") != "same-origin"
        own = (None, f"http://{names[0]}", f"https://{names[0]}")
        if request.scope["method"] not in ("GET", "HEAD") and (elsewhere or origin not in own):
            return refusal(request, "requests must come from the page of this server")
        return None

    def _trusted(self, host: str) -> bool:
        """Whether this is a name of the server or an address, with or without a port, and nothing else."""
        if not (parts := HOST.fullmatch(host)):
            return False
        six, name, port = parts.groups(default="")
        try:
            known = ipaddress.IPv6Address(six) if six else name.lower() in self.hosts or ipaddress.IPv4Address(name)
            return bool(known) and int(port or 0) < 2**16
        except ValueError:
            return False

    def _unknown(self, request: HTTPConnection) -> Response | None:
        """The refusal of visitors without the token. Those with it get a cookie, and the page's address without it."""
        if not self.token:
            return None
        cookie = HOST.sub(r"labelflow_\3", request.headers["host"])  # servers on other ports of the host see it, too
        if request.scope["method"] == "GET" and self._is_token(request.query_params.get("token", "")):
            response = sentence('<a href="/">Open the page</a>', 200)
            response.headers["Refresh"] = "0; url=/"  # redirects that began on another site would lack strict cookies
            response.set_cookie(cookie, self.token, httponly=True, samesite="strict")
            return response
        if self._is_token(request.cookies.get(cookie, "")):
            return None
        return refusal(request, "this page asks for a token; open the whole address that labelflow explore printed")

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode(), self.token.encode())


def refusal(request: HTTPConnection, problem: str) -> Response:
    """For a person, or for a program."""
    if "text/html" in request.headers.get("accept", ""):
        return sentence(f"{problem[0].upper()}{problem[1:]}.", 403)
    return JSONResponse({"error": problem}, 403)


def sentence(text: str, status: int) -> Response:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>labelflow explore</title>'
    return HTMLResponse(f'<!doctype html><html lang="en"><head>{head}</head><body><p>{text}</p></body></html>', status)
