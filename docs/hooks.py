"""What the site needs beyond its pages: files that pages link to, notebooks and docstrings as Markdown."""

import json
import os
import posixpath
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)#\s]+")  # not to another host, nor within the page
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_config(config: MkDocsConfig) -> None:
    """Only where there are several versions is there something to select from."""
    if "MIKE_DOCS_VERSION" not in os.environ:
        config.extra.pop("version", None)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Files of the repository that pages link to, and those that they link to in turn, become part of the site."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    for place in waiting:
        for target in _linked(place, _text(_path_of(place))):
            if target not in files.src_uris and _path_of(target).is_file():
                files.append(_file(target, config))
                waiting += [target] if target.endswith(".md") else []


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that are right on GitHub, turned to where their files are on the site."""
    folder = posixpath.dirname(page.file.src_uri)
    return LINK.sub(lambda link: posixpath.relpath(_place(page.file.src_uri, link[0]), folder), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pictures further down wait until they are near; the first one is what the page opens with."""
    first, *others = html.split("<img ")
    return "<img ".join([first, *others[:1], *(f'loading="lazy" {other}' for other in others[1:])])


def _place(page: str, link: str) -> str:
    """Where on the site the file is to which a page links; pages of the site lie in docs/."""
    path = posixpath.normpath(posixpath.join(_path_of(page).parent.relative_to(ROOT).as_posix(), link))
    page_of = ".md" * path.endswith((".py", ".ipynb"))
    return (path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}") + page_of


def _path_of(place: str) -> Path:
    path = place.removesuffix(".md") if place.endswith((".py.md", ".ipynb.md")) else place
    return ROOT / (path.removeprefix("repository/") if path.startswith("repository/") else f"docs/{path}")


def _linked(place: str, text: str) -> list[str]:
    return [_place(place, link) for link in LINK.findall(text)] if not place.endswith(".py.md") else []


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _file(place: str, config: MkDocsConfig) -> File:
    path = _path_of(place)
    if path.suffix == ".py":
        name = path.relative_to(ROOT).as_posix()
        return File.generated(config, place, content=f"{UNSEARCHED}# {name}\n\n``````python\n{_text(path)}``````\n")
    if path.suffix == ".ipynb":
        return File.generated(config, place, content=_notebook(path))
    if path.suffix == ".md":
        return File.generated(config, place, content=UNSEARCHED + _text(path))
    return File.generated(config, place, abs_src_path=str(path))


def _notebook(path: Path) -> str:
    return "\n\n".join(map(_cell, json.loads(_text(path))["cells"]))


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    shown = {kind: "".join(data).strip() for kind, data in output.get("data", {}).items()}
    if "image/png" in shown:
        return f'<img alt="" src="data:image/png;base64,{shown["image/png"]}">'
    return shown.get("text/html") or f"```text\n{shown.get('text/plain') or ''.join(output['text']).strip()}\n```"


class PlainDocstrings(griffe.Extension):
    """Docstrings as we write them: examples become code, options and fields become lists."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(_markdown, re.split(r"\n\s*\n", obj.docstring.value)))

    def on_module_instance(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.is_init_module:
            mod.docstring = None  # its page has an introduction

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Fields are told in their class's docstring, in one list, instead of under a heading for each."""
        own = [member for member in cls.members.values() if isinstance(member, griffe.Attribute)]
        fields = [member for member in own if "property" not in member.labels and member.annotation]
        told = [f"- `{field.name}`: {text}" for field in fields if (text := _told(field))]
        if told and cls.docstring:
            cls.docstring.value += "\n\n" + "\n".join(told)
        for field in fields:
            field.docstring = None


def _told(field: griffe.Attribute) -> str:
    """A field's docstring, or the comment behind it, which may go on below."""
    if field.docstring:
        return field.docstring.value.replace("\n", " ")
    assert field.lineno
    assert isinstance(field.filepath, Path)
    line, *below = _text(field.filepath).splitlines()[field.lineno - 1 :]
    more = takewhile(lambda text: text.strip().startswith("# "), below)
    comment = line.partition("  # ")[2]
    return " ".join([comment, *(text.strip(" #") for text in more)]) if comment and "self." not in line else ""


def _markdown(paragraph: str) -> str:
    if paragraph.startswith(">>> "):
        return f"```pycon\n{paragraph}\n```"
    option = re.compile(r'^("\w+"|[a-z_]+(?:, [a-z_]+)*): (?=\S)', re.MULTILINE)
    return option.sub(r"- `\1`: ", paragraph) if option.match(paragraph) else paragraph
