"""Write docs/papers.md, the map of both papers, from src/labelflow/recipes/papers.toml: python docs/papers.py"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from labelflow.recipes import ALL
from labelflow.recipes.papers import Item, Row, papers

PAGE = Path(__file__).with_suffix(".md")
STATES = ("delivered", "quoted", "not delivered")
KINDS = {"Eq.": "equations", "Figure": "figures", "Table": "tables", "": "in the text"}

INTRO = """\
# The papers, row by row

Where each equation of [TL-Align](https://arxiv.org/abs/2210.06455) and of
[Token Labeling](https://arxiv.org/abs/2104.10858) is in the code, and the command for each figure and each row of a
table. `labelflow show RECIPE` prints a recipe's full command, with its data and GPUs; `RUN` is the folder of a run,
which `labelflow train RECIPE --out RUN` writes. The numbers are the papers', in percent; nobody has run their recipes
to the end with labelflow yet, for want of GPUs.

- *Delivered*: there is a command or a function for it, which a test looks up; not that its number was reached.
- *Quoted*: a baseline that the paper takes from elsewhere, and for which there is no recipe. `labelflow list --quoted`
  prints these.
- *Not delivered*: with the reason.

Names in brackets are those in the supplements, which repeat the appendices. `python docs/papers.py` writes this page
from `recipes/papers.toml`."""


def page() -> str:
    """The text of docs/papers.md."""
    sections = [_section(paper, items) for paper, items in papers().items()]
    return "\n\n".join([INTRO, _counts(), *sections]) + "\n"


def _counts() -> str:
    found = [(paper, _kind(item), row) for paper, items in papers().items() for item in items for row in item.rows]
    groups = [
        (f"{paper}, {named}", [row for of, its, row in found if (of, its) == (paper, kind)])
        for paper in papers()
        for kind, named in KINDS.items()
    ]
    groups.append(("all", [row for _, _, row in found]))
    counts = [(named, Counter(row.state for row in rows)) for named, rows in groups]
    return _table(("rows", *STATES), [(named, *(str(count[state]) for state in STATES)) for named, count in counts])


def _kind(item: Item) -> str:
    word = item.name.split()[0]
    return word if word in KINDS else ""


def _section(paper: str, items: list[Item]) -> str:
    """Equations and figures have a table together; what has rows of its own, one each."""
    together = [_together(paper, kind, [item for item in items if _kind(item) == kind]) for kind in ("Eq.", "Figure")]
    return "\n\n".join([f"## {paper}", *together, *(_alone(paper, item) for item in items if _has_rows(item))])


def _has_rows(item: Item) -> bool:
    return any(row.label for row in item.rows)


def _together(paper: str, kind: str, items: list[Item]) -> str:
    lines = [(_name(item), item.about, "row by row below" if _has_rows(item) else _how(item.rows[0])) for item in items]
    return f"### {paper}: {KINDS[kind]}\n\n{_table((KINDS[kind][:-1], 'what', 'here'), lines)}"


def _alone(paper: str, item: Item) -> str:
    columns = "\n".join(f"- {column}: `{command}`" for column, command in item.columns.items())
    lines = [(row.label, item.reported(row), _how(row)) for row in item.rows]
    if any(reported for _, reported, _ in lines):
        table = _table(("row", "paper", "here"), lines)
    else:
        table = _table(("row", "here"), [(label, how) for label, _, how in lines])
    return "\n\n".join(filter(None, (f"### {paper}, {_name(item)}: {item.about}", columns, table)))


def _name(item: Item) -> str:
    return f"{item.name} [{item.supplement}]" if item.supplement else item.name


def _how(row: Row) -> str:
    if row.state == "delivered":
        how = ", ".join(_named(row.by))
    else:
        how = f"quoted from {row.quoted}" if row.quoted else f"not delivered: {row.missing}"
    return f"{how} ({row.note})" if row.note else how


def _named(by: Sequence[str]) -> Iterator[str]:
    """As a reader can use it; places of one file together, with a link to it."""
    for module, names in groupby(by, lambda name: name.partition(":")[0] if ":" in name else ""):
        if module:
            path = f"{module.replace('.', '/')}.py"
            places = ", ".join(f"`{name.partition(':')[2]}`" for name in names)
            yield f"{places} in [{path}](../src/labelflow/{path})"
        else:
            yield from (
                f"`labelflow {ALL[name].kind.command} {name}`" if name in ALL else f"`{name}`" for name in names
            )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
