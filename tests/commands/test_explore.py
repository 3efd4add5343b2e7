"""`labelflow explore`: what it offers, and what it says when it cannot start."""

import builtins
import os
import secrets
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch import nn

pytest.importorskip("starlette")

import labelflow.classifier
from labelflow.classifier import load
from labelflow.commands import explore as explore_command
from labelflow.commands.explore import addresses, examples, explore, listen, offered
from labelflow.explore import try_out

TINY = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5)=random"


def test_without_models_it_offers_a_small_one_and_says_that_it_is_random(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no quickstart
    (small,) = offered(())
    assert (small.name, small.preprocessing.size, small.trained) == ("a small ViT", 64, False)


def test_the_quickstart_is_offered_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    (tmp_path / "runs/quickstart/recipe.json").touch()
    asked = []

    def refuse(name: str, weights: str) -> Any:
        asked.append(name)
        raise ValueError("enough")

    monkeypatch.setattr(labelflow.classifier, "load", refuse)
    with pytest.raises(ValueError, match="enough"):
        offered(())
    assert asked == ["runs/quickstart"]


def test_models_are_tried_out_before_the_page_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    coat = "coat_tiny(img_size=32)=random"
    with pytest.raises(ValueError, match=r"coat_tiny.* cannot be shown; .* can be followed: .*CoaT"):
        offered([TINY, coat, TINY])
    assert capsys.readouterr().out == f"Trying out {TINY} (1 of 2)\nTrying out {coat} (2 of 2)\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.patch_embed.proj.weight.data.fill_(float("nan")), "did its training diverge"),
        (lambda model: setattr(model.patch_embed, "proj", nn.Conv2d(1, 24, 8, 8)), "square colour images.*channels"),
        (lambda model: setattr(model.patch_embed, "img_size", (32, 16)), "square colour images"),
    ],
    ids=["not a number", "one channel", "not square"],
)
def test_a_model_that_cannot_be_shown_is_told(change: Callable[[Any], None], words: str) -> None:
    classifier = load(TINY)
    try_out(classifier)
    change(classifier.model)
    with pytest.raises(ValueError, match=rf"(?s)cannot be shown.*{words}"):
        try_out(classifier)


def test_given_images_come_first_as_squares(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20), "red").save(tmp_path / "red.png")
    (name, first), *scenes = examples([tmp_path / "red.png"])
    assert (name, first.size) == ("red.png", (20, 20))
    assert len(scenes) >= 6
    assert {image.size for _, image in scenes} == {(256, 256)}
    (tmp_path / "bad.jpg").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"cannot read the image .*bad\.jpg"):
        examples([tmp_path / "bad.jpg"])


def test_a_taken_port_is_one_line_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} is in use; choose another, such as --port {port + 1}"):
            listen("127.0.0.1", port)
    with pytest.raises(ValueError, match=r"cannot listen on 203\.0\.113\.1, port 0"):  # which nobody has
        listen("203.0.113.1", 0)
    with pytest.raises(ValueError, match="port must be between 0 and 65535, not 70000"):
        listen("127.0.0.1", 70_000)


def test_without_starlette_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "uvicorn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="needs starlette and uvicorn: pip install starlette uvicorn"):
        explore((TINY,))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_serves_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], host: str
) -> None:
    listening = listen(host, 0)
    monkeypatch.setattr(explore_command, "listen", lambda *unused: listening)
    monkeypatch.setattr(secrets, "token_urlsafe", lambda: "t0ken")
    url, *more = addresses(listening, "t0ken" if host == "0.0.0.0" else "")
    assert url.startswith("http://127.0.0.1:")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    pages = []

    def visit() -> None:
        try:
            for address in (url, url.partition("?")[0]):
                with browser.open(address, timeout=60) as response:
                    pages.append(response.read().decode())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Thread(target=visit)
    visitor.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells take from what they start with &
    explore((TINY,), host=host)  # and comes back
    signal.signal(signal.SIGINT, before)
    visitor.join()
    assert "Where do the labels go?" in pages[1]
    told = capfd.readouterr()
    assert told.out == f"Open {' or '.join([url, *more])} in a browser. Press Ctrl-C to stop.\n\n"
    warning = "labelflow: other machines can reach this page; whoever has the token can use it\n"
    assert told.err == (warning if more else "")


@pytest.mark.parametrize(
    ("host", "opened"),
    [
        ("127.0.0.1", ["http://127.0.0.1:7/?token=a"]),
        ("::1", ["http://[::1]:7/?token=a"]),
        ("192.0.2.7", ["http://192.0.2.7:7/?token=a"]),
        ("0.0.0.0", ["http://127.0.0.1:7/?token=a", "http://lab:7/?token=a"]),
        ("::", ["http://[::1]:7/?token=a", "http://lab:7/?token=a"]),
    ],
)
def test_what_is_to_be_opened_has_a_host(monkeypatch: pytest.MonkeyPatch, host: str, opened: list[str]) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "lab")
    listening: Any = SimpleNamespace(getsockname=lambda: (host, 7))
    assert addresses(listening, "a") == opened
    assert addresses(listening) == [address.removesuffix("/?token=a") for address in opened]
