"""The server: who may talk to it, how much, and what it says when something is wrong."""

import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from labelflow.classifier import load
from labelflow.data.world import World
from labelflow.explore import Shelf, make_app, server, uploads
from labelflow.explore.answer import Box, answer

TINY = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5)"
HERE = "http://localhost:7860"
PICTURES = [World("val", 2, size=32).load(index)[0] for index in range(2)]
QUESTION = {"model": 0, "own": "example-0", "partner": "example-1", "box": [0.25, 0.25, 0.75, 0.5]}


@pytest.fixture(scope="module")
def client() -> TestClient:
    classifier = load(TINY, "random")
    shelf = Shelf([("<b>one</b>", PICTURES[0]), ("two", PICTURES[1])])
    return TestClient(make_app([classifier], shelf, hosts={"lab.example"}), HERE, raise_server_exceptions=False)


def png(side: int = 20) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return file.getvalue()


def test_the_page_and_its_files_are_served_and_nothing_else(client: TestClient) -> None:
    for path in ("/", "/page.css", "/page.js", "/stage.js", "/curve.js", "/icon.svg"):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].split(";")[0] != "text/plain"
    for path in ("/server.py", "/page.html", "/picture/", "/picture/..%2fserver.py", "/%2e%2e/mix.py", "/static/"):
        assert client.get(path).status_code == 404
        assert client.get(path).json()["error"]


def test_the_page_has_no_inline_script_or_style_and_loads_only_own_files(client: TestClient) -> None:
    page = client.get("/").text
    assert "style=" not in page
    assert "<style" not in page
    assert "onclick" not in page
    assert "//" not in page.replace("<!doctype", "")
    assert page.count("<script") == page.count('<script type="module" src="page.js">') == 1


def test_every_answer_has_the_headers(client: TestClient) -> None:
    refused = client.get("/", headers={"host": "evil.example"})
    for response in (client.get("/"), client.get("/nowhere"), client.post("/answer", content=b"?"), refused):
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert response.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "127.0.0.1:7860", "[::1]:7860", "192.168.1.7", "lab.example:80")),
        *((host, 403) for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7860")),
        *((host, 403) for host in ("", "[", "a:b:c")),
    ],
)
def test_only_its_own_names_are_answered(client: TestClient, host: str, status: int) -> None:
    assert client.get("/setup", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": HERE}, 200),
        ({"origin": HERE, "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:8000"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": HERE, "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_other_sites_cannot_send_anything(client: TestClient, headers: dict[str, str], status: int) -> None:
    assert client.post("/images", content=png(), headers=headers).status_code == status
    assert client.post("/answer", json=QUESTION, headers=headers).status_code == status


def test_an_upload_is_kept_shown_and_answered_about(client: TestClient) -> None:
    key = client.post("/images", content=png()).json()["id"]
    shown = client.get(f"/picture/{key}")
    assert shown.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(shown.content)).size == (20, 20)
    told = client.post("/answer", json={**QUESTION, "own": key})
    assert told.status_code == 200
    direct = answer(load(TINY, "random"), Image.new("RGB", (20, 20), "red"), PICTURES[1], Box(0.25, 0.25, 0.75, 0.5))
    assert told.json() == direct


def test_setup_tells_what_can_be_chosen(client: TestClient) -> None:
    told = client.get("/setup").json()
    assert told["models"] == [{"name": TINY, "note": "Random weights: this model is not trained.", "size": 32}]
    assert told["images"] == [{"id": "example-0", "name": "<b>one</b>"}, {"id": "example-1", "name": "two"}]


def test_too_much_is_not_read_to_its_end(client: TestClient) -> None:
    sent = 0

    def endless() -> Any:
        nonlocal sent
        while sent < 3 * uploads.BYTES:
            sent += 2**16
            yield bytes(2**16)

    response = client.post("/images", content=endless())
    assert (response.status_code, response.json()["error"]) == (
        413,
        "the request is larger than 10 MB; choose a smaller file",
    )
    assert client.post("/answer", content=b" " * 5000).status_code == 413


def test_bad_files_are_told_in_words(client: TestClient) -> None:
    response = client.post("/images", content=b"hello")
    assert response.status_code == 400
    assert "not a JPEG, PNG, WebP or BMP" in response.json()["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 1}, "model must be an index from 0 to 0"),
        ({"model": -1}, "model must be"),
        ({"model": True}, "model must be"),
        ({"model": "../../runs"}, "model must be"),
        ({"own": "nothing"}, "no longer has this image"),
        ({"partner": None}, "no longer has this image"),
        ({"own": ["example-0"]}, "no longer has this image"),
        ({"box": [0, 0, 1]}, "four fractions"),
        ({"box": [0, 0, 1, 1.01]}, "four fractions"),
        ({"box": [0, -0.1, 1, 1]}, "four fractions"),
        ({"box": [0, 0, float("nan"), 1]}, "four fractions"),
        ({"box": [0, 0, float("inf"), 1]}, "four fractions"),
        ({"box": [0, 0, 10**2000, 1]}, "four fractions"),
        ({"box": [0, 0, True, 1]}, "four fractions"),
        ({"box": "0, 0, 1, 1"}, "four fractions"),
        ({"box": None}, "four fractions"),
        ({"box": [0.6, 0, 0.5, 1]}, "left <= right"),
        ({"box": [0, 0.6, 1, 0.5]}, "top <= bottom"),
    ],
)
def test_bad_questions_are_refused_in_words(client: TestClient, change: dict[str, Any], words: str) -> None:
    response = client.post("/answer", content=json.dumps(QUESTION | change))
    assert response.status_code == 400
    assert words in response.json()["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 4000])
def test_what_is_no_question_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post("/answer", content=body)
    assert (response.status_code, "JSON object" in response.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ValueError("this model has no tokens"), 400, "this model has no tokens"),
        (
            RuntimeError("in /home/me/secret"),
            500,
            "the server failed; its terminal shows the error",
        ),
    ],
)
def test_a_model_that_fails_is_told(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, words: str
) -> None:
    def fail(*unused: object) -> None:
        raise error

    monkeypatch.setattr(server, "answer", fail)
    response = client.post("/answer", json=QUESTION)
    assert (response.status_code, response.json()) == (status, {"error": words})
    assert response.headers["x-content-type-options"] == "nosniff"


def test_nothing_is_written(client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where tempfile, and so starlette, would write
    key = client.post("/images", content=png(600)).json()["id"]
    client.post("/answer", json={**QUESTION, "own": key})
    assert not list(tmp_path.rglob("*"))
