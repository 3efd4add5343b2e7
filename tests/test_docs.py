"""The site of the documentation: it builds without a warning, is whole, and needs no other host."""

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import labelflow

ROOT = Path(__file__).parent.parent
NAV = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MOST = 700_000  # bytes that a page loads before anyone scrolls: its own, its pictures, style sheets and scripts
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "srcset", "video": "src"}


class Page(HTMLParser):
    """What a page loads, what it links to, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.later: set[str] = set()  # of what it loads, pictures that wait until they are near
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self.loads += [values[LOADED[tag]]] if LOADED.get(tag) in values else []
        self.later |= {values["src"]} if values.get("loading") == "lazy" else set()
        self.links += [values["href"]] if tag == "a" and "href" in values else []
        self.places |= {values["id"]} if "id" in values else set()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("the site is built by mkdocs and mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # strict counts no warnings where mkdocs is --quiet
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_is_in_the_navigation_and_is_there(pages: dict[Path, Page], site: Path) -> None:
    docs = ROOT / "docs"
    written = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert set(NAV) == written | {f"notebooks/{path.name}.md" for path in docs.glob("notebooks/*.ipynb")}
    assert {site / name.replace(".md", ".html") for name in NAV} <= pages.keys()


def test_nothing_comes_from_another_host(pages: dict[Path, Page], site: Path) -> None:
    for path, page in pages.items():
        assert page.loads
        assert not [load for load in page.loads if urlsplit(load).netloc], path
    for path in site.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", path.read_text()), path


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the root of a server
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path}: {link}"
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):  # of the theme's own code
                assert unquote(parts.fragment) in pages[target].places, f"{path}: {link}"


@pytest.mark.parametrize("name", labelflow.__all__)
def test_public_names_are_documented(name: str, pages: dict[Path, Page], site: Path) -> None:
    assert f"<code>{name}</code>" in (site / "api" / "index.html").read_text()
    if not inspect.ismodule(getattr(labelflow, name)):
        places = set().union(*(page.places for path, page in pages.items() if path.parent == site / "api"))
        assert {f"labelflow.{name}", f"labelflow.mixers.{name}"} & places


def test_pages_are_light(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        if path.name != "404.html":
            loads = [load for load in set(page.loads) - page.later if not re.search(r"^data:|\.html$|/$|\.$", load)]
            weight = sum(
                file.stat().st_size for file in (path, *(path.parent / unquote(urlsplit(load).path) for load in loads))
            )
            assert weight < MOST, f"{path}: {weight}"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_pages_opened_as_files(site: Path) -> None:
    """On a phone, without a server: the search finds, nothing is wider than the screen, nothing is loaded elsewhere."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import expect, sync_playwright

    problems: list[str] = []
    with sync_playwright() as program:
        browser = program.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
        page.on("console", lambda told: problems.append(told.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or problems.append(asked.url))
        for name in ("papers.html", "figures.html", "index.html"):
            page.goto((site / name).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        page.click("label[for=__search]")
        expect(page.locator(".md-search-result__meta")).to_have_text("Type to start searching")  # it is ready
        page.type(".md-search__input", "fluctuation")
        expect(page.locator(".md-search-result__link").first).to_have_attribute("href", re.compile("glossary"))
        page.click(".md-search-result__link")
        expect(page).to_have_url(re.compile(r"^file:.*/glossary\.html"))
        browser.close()
    assert not problems
