"""Who may talk to the server: under which names, and with which token."""

import ipaddress
import re
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from labelflow.explore.guard import Guard

HERE = "http://lab.example:7860"
TOKEN = "a-secret_1"
INSIDE = PlainTextResponse("inside")
PORTS = st.one_of(st.just(""), st.integers(0, 65535).map(lambda port: f":{port}"))
NAMES = st.one_of(
    st.sampled_from(["localhost", "LocalHost", "lab.example", "LAB.example"]),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)
HOSTS = st.builds("{}{}".format, NAMES, PORTS)


def status(*hosts: str) -> int:
    """Of a request with these Host headers."""
    told: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def send(message: Any) -> None:
        told.append(message)

    headers = [(b"host", host.encode("latin-1")) for host in hosts]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    anyio.run(Guard(INSIDE, {"lab.example", ""}), scope, receive, send)
    return int(told[0]["status"])


@given(HOSTS)
def test_its_names_and_addresses_are_answered_with_any_port(host: str) -> None:
    assert status(host) == 200


@given(HOSTS, st.sampled_from(" \t@/\\#?%;,'\"<>|^`{}()!$&*+=~\x00\xa0é"), st.data())
def test_one_more_character_is_refused_wherever_it_stands(host: str, odd: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(host)))
    assert status(host[:place] + odd + host[place:]) == 403


@given(st.text("localhst127.:[]@-x", max_size=12))
def test_whatever_is_answered_is_a_name_or_an_address(host: str) -> None:
    if status(host) == 200:
        name = re.sub(r":\d+\Z", "", host)
        assert name == "localhost" or ipaddress.ip_address(name.strip("[]"))


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("",),
        ("localhost", "localhost"),
        ("localhost", "evil.example"),
        *((host,) for host in ("evil.example@127.0.0.1", "evil.example:80@127.0.0.1:7860", "user:word@localhost")),
        *((host,) for host in ("localhost:", "localhost:65536", "localhost:-1", "localhost:7_8", "localhost:80:80")),
        *((host,) for host in ("::1", "[::1", "::1]", "[:::]", "[]", "[127.0.0.1]", "[localhost]", "[fe80::1%eth0]")),
        *((host,) for host in ("127.1", "0x7f.0.0.1", "127.0.0.01", "2130706433", "127.0.0.1.", "lab.example.")),
        *((host,) for host in ("localhost#", "localhost/", "localhost\\evil", "%6cocalhost", "localhost\n")),
    ],
)
def test_odd_hosts_are_refused(hosts: tuple[str, ...]) -> None:
    assert status(*hosts) == 403


def client(token: str = TOKEN) -> TestClient:
    return TestClient(Guard(INSIDE, {"lab.example"}, token), HERE)


@pytest.mark.parametrize("path", ["/", "/page.js", "/setup", "/picture/example-0", "/nowhere"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=a-secret_", "?token=a-secret_11", "?token=%C3%A9", "?a=1"])
def test_without_the_token_nothing_is_told_but_what_to_do(path: str, query: str) -> None:
    visitor = client()
    told = visitor.get(path + query)
    words = "this page asks for a token; open the whole address that labelflow explore printed"
    assert (told.status_code, told.json()) == (403, {"error": words})
    assert told.headers["cache-control"] == "no-store"
    page = visitor.get(path + query, headers={"accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert f"<p>T{words[1:]}.</p>" in page.text
    assert visitor.post(path + query).status_code == 403
    assert not visitor.cookies


def test_the_token_is_shown_once_and_kept_in_a_cookie_that_scripts_and_other_sites_do_not_get() -> None:
    visitor = client()
    told = visitor.get(f"/?token={TOKEN}")
    assert told.text != "inside"
    assert told.headers["refresh"] == "0; url=/"  # without the token
    name, *flags = told.headers["set-cookie"].split("; ")
    assert name == f"labelflow_7860={TOKEN}"
    assert sorted(flag.lower() for flag in flags) == ["httponly", "path=/", "samesite=strict"]
    assert [visitor.get("/").text, visitor.post("/answer").text, visitor.get("/?token=old").text] == ["inside"] * 3
    assert visitor.get(f"/?token={TOKEN}").headers["refresh"]  # again, and the address is as short
    assert visitor.post("/answer", headers={"origin": "http://evil.example"}).status_code == 403
    assert visitor.get(f"/?token={TOKEN}", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("cookie", ["", "a-secret_", "a-secret_11", "é", '"', "a-secret_1;labelflow_7860=x"])
def test_another_cookie_is_none(cookie: str) -> None:
    sent = {"cookie": f"labelflow_7860={cookie}".encode()}
    assert client().get("/", headers=sent).status_code == 403


def test_servers_on_two_ports_of_a_host_do_not_take_each_others_cookie() -> None:
    visitor = client()
    visitor.get(f"/?token={TOKEN}")
    visitor.get(f"/?token={TOKEN}", headers={"host": "lab.example:8000"})
    visitor.get(f"/?token={TOKEN}", headers={"host": "[::1]"})
    assert {cookie.name for cookie in visitor.cookies.jar} == {"labelflow_7860", "labelflow_8000", "labelflow_"}


def test_a_token_is_not_sent_with_what_changes_something() -> None:
    assert client().post(f"/answer?token={TOKEN}").status_code == 403


def test_without_one_nothing_is_asked() -> None:
    visitor = client(token="")
    assert [visitor.get("/").text, visitor.get("/?token=").text, visitor.post("/answer").text] == ["inside"] * 3
    assert not visitor.cookies
