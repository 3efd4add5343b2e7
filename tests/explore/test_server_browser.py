"""The page in a real browser: one server, one browser, a tiny model."""

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("uvicorn")
pytest.importorskip("playwright", reason="playwright is not installed")
import uvicorn
from playwright.sync_api import expect, sync_playwright

from labelflow.commands.explore import addresses, examples, listen, offered
from labelflow.explore import Shelf, make_app
from labelflow.explore.connections import Connection

TINY = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2, num_classes=5)=random"
CAIT = "cait_xxs24_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5)=random"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


@contextmanager
def serving(app: Any) -> Iterator[tuple[Any, str]]:
    listening = listen("127.0.0.1", 0)
    settings = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", http=Connection, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(settings)
    (url,) = addresses(listening)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield server, url
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Any, str]]:
    (cait,) = offered([CAIT])
    for block in cait.model.blocks_token_only:  # type: ignore[union-attr]
        block.attn.q.weight.data *= 1000  # so that it looks at some tokens more than at others
    with serving(make_app([*offered([TINY]), replace(cait, weights="mine")], Shelf(examples()))) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as program:
        browser = program.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def opened(server: tuple[Any, str], browser: Any) -> Iterator[Any]:
    """Opens the page in a window of some size; afterwards nothing may have gone wrong in it, but what is expected."""
    contexts, problems = [], []

    def open_page(width: int, height: int, expected: str = "^$", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda told: re.search(expected, told.text) or problems.append(told.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server[1])
        page.wait_for_selector("#targets tr")
        expect(page.locator("#spoken")).to_contain_text("A fills")  # things came to rest
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def box_of(page: Any) -> dict[str, float]:
    """The box as it is seen, in parts of the picture."""
    inner, outer = page.locator("#box").bounding_box(), page.locator("#stage").bounding_box()
    left, top = (inner["x"] - outer["x"]) / outer["width"], (inner["y"] - outer["y"]) / outer["height"]
    right, bottom = left + inner["width"] / outer["width"], top + inner["height"] / outer["height"]
    return {"left": left, "top": top, "right": right, "bottom": bottom}


def area(page: Any) -> float:
    """What the page says that A fills."""
    return float(re.search(r"A fills ([\d.]+)", page.inner_text("#summary"))[1])  # type: ignore[index]


def answered(page: Any, act: Any) -> Any:
    """The question that was asked, and answered, after something was done."""
    with page.expect_response("**/answer") as response:
        act()
    page.wait_for_timeout(150)
    return response.value.request.post_data_json


def test_a_person_plays_with_it(opened: Any, tmp_path: Path) -> None:
    page = opened(1280, 900)
    assert "Random weights" in page.inner_text("#note")
    assert area(page) == pytest.approx(75, abs=0.1)

    asked = answered(page, lambda: page.locator("[data-role=own] .choices button").nth(3).click())
    assert (asked["own"], asked["partner"]) == ("example-3", "example-1")
    assert page.locator("[data-role=own] [aria-pressed=true]").get_attribute("data-id") == "example-3"

    # the pointer moves the box, and a corner resizes it
    stage, before = page.locator("#stage").bounding_box(), box_of(page)
    box = page.locator("#box").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    answered(page, lambda: page.mouse.move(box["x"] + box["width"] / 2 - 0.125 * stage["width"], box["y"], steps=6))
    page.mouse.up()
    after = box_of(page)
    assert after["left"] == pytest.approx(before["left"] - 0.125, abs=0.01)
    assert after["right"] - after["left"] == pytest.approx(0.5, abs=0.01)
    box = page.locator("#box").bounding_box()
    page.mouse.move(box["x"] + box["width"], box["y"] + box["height"])
    page.mouse.down()
    answered(page, lambda: page.mouse.move(stage["x"] + 2 * stage["width"], box["y"] + box["height"], steps=3))
    page.mouse.up()
    assert box_of(page)["right"] == pytest.approx(1, abs=0.01)  # it stays inside
    assert box_of(page)["left"] == pytest.approx(after["left"], abs=0.01)

    # all layers came with the answer, so that the slider asks nothing
    asked_again: list[str] = []
    page.on("request", lambda request: asked_again.append(request.url))
    first = page.locator("#canvas").screenshot()
    page.locator("#layer").fill("3")
    assert page.inner_text("#layer-name") == "3 of 3: blocks.2"
    assert page.locator("#canvas").screenshot() != first
    page.locator("input[value=presence]").check(force=True)
    assert "Presence" in page.inner_text("#means")
    page.locator("#opacity").fill("0")
    assert page.inner_text("#opacity-value") == "0 %"
    page.mouse.move(stage["x"] + 5, stage["y"] + 5)
    assert re.match(r"Token in row 1, column 1: presence \d\.\d\d", page.inner_text("#cell"))
    assert not asked_again

    assert answered(page, lambda: page.select_option("#model", "1"))["model"] == 1
    assert page.get_attribute("#layer", "max") == "2"
    assert page.inner_text("#note") == ""
    page.screenshot(path=tmp_path / "desktop.png", full_page=True)


def test_the_curve_ends_at_the_classifier(opened: Any) -> None:
    page = opened(1280, 900)
    with page.expect_response("**/answer") as response:
        page.select_option("#model", "1")  # a CaiT, whose last layers have no tokens, but stir the labels
    told = response.value.json()
    layers, arrived = [layer["aligned"] for layer in told["layers"]], told["targets"]["TL-Align"]
    assert arrived != layers[-1]
    expect(circles := page.locator("#curve .labels circle")).to_have_count(4)  # start, two layers, classifier
    rules = [float(rule.get_attribute("y1")) for rule in page.locator("#curve .rule").all()]
    texts = page.locator("#curve text").all_text_contents()
    assert "classifier" in texts
    least, *_, most = (float(text.split()[0]) / 100 for text in texts if text.endswith(" %"))
    pixels = (rules[-1] - rules[0]) / (most - least)
    heights = [rules[0] + (share - least) * pixels for share in (told["area"], *layers, arrived)]
    assert [float(circle.get_attribute("cy")) for circle in circles.all()] == pytest.approx(heights, abs=0.5)


def test_reference_lines_can_be_told_apart(opened: Any) -> None:
    """By their dashes, not by colour alone; each has its name in its colour, and a line that leads to it."""
    page = opened(1280, 900)
    levels, names = page.locator("#curve .level"), ["CutMix", "TransMix", "Token Labeling"]
    expect(levels).to_have_count(3)
    dashes = levels.evaluate_all("lines => lines.map(line => getComputedStyle(line).strokeDasharray)")
    colours = levels.evaluate_all("lines => lines.map(line => getComputedStyle(line).stroke)")
    assert len(set(dashes)) == len(set(colours)) == 3
    for place, name in enumerate(names):
        text = page.locator(f"#curve .level-{place} text")
        assert text.text_content() == name
        assert text.evaluate("text => getComputedStyle(text).fill") == colours[place]
    expect(page.locator("#curve .leader")).to_have_count(5)


def test_results_that_are_not_of_what_is_chosen_are_dimmed(opened: Any) -> None:
    page = opened(1280, 900, expected="503 \\(Service Unavailable\\)")
    results, state, held = page.locator(".outcome"), page.locator("#state"), []
    page.route("**/answer", lambda route: held.append(route))
    fresh = page.evaluate(canvas := "document.querySelector('#canvas').toDataURL()")
    page.locator("#box").press("ArrowUp")
    expect(state).to_have_text("Working it out …")
    assert results.get_attribute("aria-busy") == "true"
    page.keyboard.press("ArrowDown")  # back, which is asked next
    with page.expect_request("**/answer"):
        held[0].continue_()
    assert state.inner_text() == "Working it out …"
    held[1].fulfill(status=503, json={"error": "the server is busy"})
    expect(state).to_have_text("Out of date")
    assert (results.get_attribute("aria-busy"), results.get_attribute("class")) == ("false", "outcome result dim")
    assert page.evaluate(canvas) != fresh
    page.unroute("**/answer")
    answered(page, lambda: page.get_by_role("button", name="Try again").click())
    expect(state).to_have_text("")
    assert page.evaluate(canvas) == fresh


def test_it_can_be_used_with_the_keyboard_alone(opened: Any) -> None:
    page = opened(1280, 900)
    page.locator("[data-role=partner] input[type=file]").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "box"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    before = box_of(page)
    answered(page, lambda: page.keyboard.press("ArrowLeft"))
    assert box_of(page)["left"] == pytest.approx(before["left"] - 0.02, abs=0.005)
    assert box_of(page)["right"] == pytest.approx(before["right"] - 0.02, abs=0.005)
    answered(page, lambda: page.keyboard.press("Shift+ArrowDown"))
    assert box_of(page)["bottom"] == pytest.approx(before["bottom"] + 0.02, abs=0.005)
    assert box_of(page)["top"] == pytest.approx(before["top"], abs=0.005)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#layer-name") == "1 of 3: blocks.0"

    page.locator("summary").press("Enter")
    page.get_by_label("Left, %").fill("0")
    page.get_by_label("Top, %").fill("0")
    page.get_by_label("Right, %").fill("50")
    page.get_by_label("Bottom, %").fill("50")
    expect(page.locator("#spoken")).to_contain_text("A fills 75.0")
    assert list(box_of(page).values()) == pytest.approx([0, 0, 0.5, 0.5], abs=0.005)


def test_uploads_and_errors_are_told_in_words(opened: Any, tmp_path: Path) -> None:
    page = opened(1280, 900, expected="400 \\(Bad Request\\)")
    (tmp_path / "broken.jpg").write_bytes(b"no image at all")
    upload = page.locator("[data-role=own] input[type=file]")
    upload.set_input_files(tmp_path / "broken.jpg")
    page.wait_for_selector("#problem:visible")
    assert page.get_attribute("#problem", "role") == "alert"
    assert "not a JPEG, PNG, WebP or BMP" in page.inner_text("#problem")

    with (tmp_path / "large.png").open("wb") as large:
        large.truncate(10_000_001)
    upload.set_input_files(tmp_path / "large.png")
    expect(page.locator("#problem")).to_contain_text("larger than 10 MB")

    Image.new("RGB", (60, 30), "orange").save(tmp_path / "<i>fine.png")
    asked = answered(page, lambda: upload.set_input_files(tmp_path / "<i>fine.png"))
    assert not asked["own"].startswith("example")
    assert page.is_hidden("#problem")
    assert page.locator("[data-role=own] [aria-pressed=true] img").get_attribute("alt") == "<i>fine.png"

    drop = """async ([url, selector]) => {
        const file = new File([await (await fetch(url)).blob()], "dropped.jpg"), data = new DataTransfer();
        data.items.add(file);
        document.querySelector(selector).dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
    }"""
    picture = page.locator("[data-role=own] img").first.get_attribute("src")
    asked = answered(page, lambda: page.evaluate(drop, [picture, "[data-role=partner]"]))
    assert not asked["partner"].startswith("example")


def test_while_the_box_is_dragged_questions_wait_for_answers(opened: Any) -> None:
    page = opened(1280, 900)
    under_way, most, boxes = 0, 0, []

    def began(request: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        boxes.append(request.post_data_json["box"])

    def ended(request: Any) -> None:
        nonlocal under_way
        under_way -= 1

    page.on("request", began)
    page.on("requestfinished", ended)
    page.locator("#box").focus()
    for _ in range(15):
        page.keyboard.press("ArrowUp")
    page.wait_for_timeout(1000)
    assert most == 1
    assert under_way == 0
    assert boxes[-1][1] == pytest.approx(0.375 - 15 * 0.02, abs=1e-3)  # the newest came last


def test_a_phone_has_room_for_it(opened: Any, tmp_path: Path) -> None:
    page = opened(390, 844, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.querySelector('#box')).touchAction") == "none"
    page.locator("#box").scroll_into_view_if_needed()
    box, before, scrolled = page.locator("#box").bounding_box(), box_of(page), page.evaluate("scrollY")
    touch = page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    points = [[{"x": x, "y": y - step}] for step in (0, 15, 30)]
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[0]})
    for point in points[1:]:
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": point})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_timeout(200)
    assert box_of(page)["top"] < before["top"] - 0.05
    assert page.evaluate("scrollY") == scrolled
    colours = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.screenshot(path=tmp_path / f"phone_{scheme}.png", full_page=True)
    assert len(colours) == 2


def test_it_says_when_the_server_is_gone(opened: Any) -> None:
    page = opened(1280, 900, expected="ERR_INTERNET_DISCONNECTED")
    page.context.set_offline(True)
    page.locator("#box").press("ArrowUp")
    page.wait_for_selector("#problem:visible")
    assert "The server does not answer. Is labelflow explore still running?" in page.inner_text("#problem")
    page.context.set_offline(False)
    answered(page, lambda: page.get_by_role("button", name="Try again").click())
    assert page.is_hidden("#problem")


def test_the_token_opens_the_page_once_and_for_all(server: tuple[Any, str], browser: Any) -> None:
    """Also by a link on another site, after which browsers do not send strict cookies along with redirects."""
    app = make_app(offered([TINY]), Shelf(examples()), token="a-secret_1")
    with serving(app) as (_, url), browser.new_context() as context:
        page = context.new_page()
        assert page.goto(url).status == 403
        assert page.inner_text("p") == (
            "This page asks for a token; open the whole address that labelflow explore printed."
        )
        page.goto(server[1].replace("127.0.0.1", "localhost"))  # another site
        page.evaluate("link => { location.href = link }", f"{url}/?token=a-secret_1")
        page.wait_for_selector("#targets tr")
        assert page.url == f"{url}/"
        assert page.evaluate("document.cookie") == ""
        assert answered(page, lambda: page.locator("#box").press("ArrowUp"))["own"] == "example-0"
        assert page.reload().status == 200

        context.clear_cookies()  # as when the server was started again, with another token
        page.locator("#box").press("ArrowUp")
        expect(page.locator("#problem")).to_contain_text("This page asks for a token; open the whole address")
