"""The map of both papers: every equation, table and figure is on it, and everything that it names is there.

Its commands are parsed with those of the other pages, in `tests/test_commands_in_docs.py`.
"""

import runpy
from pathlib import Path
from pkgutil import resolve_name

import pytest

from labelflow.cli import main
from labelflow.mixers import MIXERS
from labelflow.recipes import ALL
from labelflow.recipes.methods import METHODS
from labelflow.recipes.papers import Item, Row, papers
from labelflow.settings import setting_names
from labelflow.tasks import Recipe

ROOT = Path(__file__).parent.parent.parent
PAPERS = papers()
ITEMS = {f"{paper}, {item.name}": item for paper, items in PAPERS.items() for item in items}
ROWS = [(item, row) for item in ITEMS.values() for row in item.rows]

# How many there are, in the papers with their appendices and in the supplements
NUMBERED = {
    "TL-Align": {"Eq.": 13, "Table": 10, "Figure": 8},
    "Token Labeling": {"Eq.": 7, "Table": 12, "Figure": 7},
}
SUPPLEMENTS = {
    "TL-Align": {"Eq.": 1, "Table": 2, "Figure": 3},
    "Token Labeling": {"Table": 5, "Figure": 2},
}
# Rows of tables
LENGTHS = {
    "TL-Align": (16, 7, 8, 6, 9, 6, 5, 5, 7, 5),
    "Token Labeling": (4, 5, 5, 31, 4, 14, 11, 7, 6, 3, 12, 19),
}
# What they print, row by row
NUMBERS = {
    "TL-Align, Table 1": """72.2 91.3 73.2 91.7 75.1 92.4 75.5 93.0 79.8 95.0 80.6 95.0 79.8 95.0 80.4 95.5
        81.2 95.5 81.4 95.7 83.0 96.3 83.4 96.5 81.8 95.5 82.3 95.8 83.5 96.4 83.7 96.5""",
    "TL-Align, Table 2": "76.4 322 79.8 322 79.8 139 79.2 314 77.5 239 80.1 322 80.6 311",
    "TL-Align, Table 3": """43.8 45.1 55.2 44.5 45.7 55.5 44.4 45.8 55.6 44.7 46.5 56.4
        47.6 49.5 58.8 48.0 49.7 59.5 48.1 49.7 59.1 48.3 50.1 59.7""",
    "TL-Align, Table 4": """50.4 69.2 54.7 43.7 66.6 47.3 50.5 69.4 54.9 43.8 66.6 47.3
        51.9 70.7 56.3 45.0 68.2 48.8 52.2 71.1 56.7 45.2 68.4 49.1
        51.9 70.5 56.4 45.0 68.1 48.9 52.3 71.2 56.9 45.3 68.7 49.1""",
    "TL-Align, Table 5": """96.2 90.0 98.1 87.1 89.5 97.9 86.4 89.7 97.6 85.7 97.1 90.1 97.8 86.4 97.9 90.7
        97.9 90.2 98.1 91.4 98.8 90.4 98.3 91.8 99.1 90.8 98.4 92.1 99.1 90.5 98.6 93.0""",
    "TL-Align, Table 6": """72.2 91.3 60.4 7.7 69.1 34.1 3.9 73.2 91.7 61.4 6.1 68.0 34.6 4.4
        79.8 95.0 68.5 18.9 54.7 42.5 6.9 80.6 95.0 68.9 19.2 53.2 43.2 7.5
        81.8 95.5 70.5 27.9 48.5 45.3 82.3 95.8 70.9 29.0 47.1 44.4""",
    "TL-Align, Table 7": "76.4 79.8 80.6 79.8 80.2 79.7 80.2 80.0 80.3",
    "TL-Align, Table 8": "79.8 80.1 80.2 80.3 80.6",
    "TL-Align, Table 9": "76.4 79.8 80.3 80.7 79.8 80.1 80.6",
    "Token Labeling, Table 1": "79.1 83.3 84.1 85.3",
    "Token Labeling, Table 2": "83.3 83.0 82.8 82.5 82.4",
    "Token Labeling, Table 3": "83.3 81.3 83.1 83.0 82.8",
    "Token Labeling, Table 4": """83.6 88.3 84.3 85.7 90.0 85.7 89.4 85.9 89.4 86.0 89.2 77.9 83.6 76.5 82.2
        81.5 83.3 84.1 84.2 82.8 82.3 83.1 79.9 85.7 81.8 86.7 83.1 87.7 84.2 84.7 85.4 89.8 85.1 89.3 86.3 90.2
        83.3 88.1 84.4 88.9 84.1 88.4 85.4 89.5 85.3 89.3 85.9 89.7 86.2 89.9 86.4 90.1""",
    "Token Labeling, Table 5": "46.1 81.9 47.3 82.6 47.2 82.4 48.4 83.0 46.5 82.1 47.6 82.7 47.9 82.6 48.6 83.1",
    "Token Labeling, Table 6": """44.9 81.7 44.9 45.6 82.1 48.4 44.0 50.3 83.5 46.1 49.3 49.7 51.6
        48.4 83.0 48.6 83.1 50.6 83.5 51.8 84.1""",
    "Token Labeling, Table 8": "79.9 81.2 81.1 82.2 82.4 83.3 84.4",
    "Token Labeling, Table 9": "81.1 81.4 81.4 81.9 82.2 82.2",
    "Token Labeling, Table 10": "82.2 82.4 82.4",
    "Token Labeling, Table 11": "73.8 75.6 76.1 76.4 78.3 79.5 71.6 77.7 80.1 81.1 80.9 81.5",
    "Token Labeling, Table 12": "85.4 85.4",
}


def _numbered(counts: dict[str, int]) -> set[str]:
    return {f"{kind} {number}" for kind, count in counts.items() for number in range(1, count + 1)}


def test_every_equation_table_and_figure_is_on_it() -> None:
    assert list(PAPERS) == list(NUMBERED)
    for paper, items in PAPERS.items():
        names = [item.name for item in items]
        assert len(names) == len(set(names))
        assert {name for name in names if name.split()[0] in NUMBERED[paper]} == _numbered(NUMBERED[paper])
        repeated = [item.supplement for item in items if item.supplement]
        assert len(repeated) == len(set(repeated))
        assert set(repeated) == _numbered(SUPPLEMENTS[paper])


@pytest.mark.parametrize("paper", LENGTHS)
def test_tables_have_all_their_rows(paper: str) -> None:
    tables = [ITEMS[f"{paper}, Table {number + 1}"] for number in range(len(LENGTHS[paper]))]
    assert tuple(len(table.rows) for table in tables) == LENGTHS[paper]
    for table in tables:
        assert all(row.label for row in table.rows)
        assert len({row.label for row in table.rows}) == len(table.rows), table.name


@pytest.mark.parametrize("where", NUMBERS)
def test_numbers_are_the_papers_own(where: str) -> None:
    item = ITEMS[where]
    printed = [number for row in item.rows for numbers in item.numbers(row).values() for number in numbers]
    assert printed == [float(number) for number in NUMBERS[where].split()]


def test_only_tables_of_settings_and_operations_have_no_numbers() -> None:
    tables = {where for where in ITEMS if ", Table " in where}
    assert tables - NUMBERS.keys() == {"TL-Align, Table 10", "Token Labeling, Table 7"}


@pytest.mark.parametrize(("item", "row"), ROWS, ids=lambda part: getattr(part, "name", "") or part.label)
def test_what_a_row_names_is_there(item: Item, row: Row) -> None:
    """Commands are those of the page, which are all parsed."""
    assert [bool(row.by), bool(row.quoted), bool(row.missing)].count(True) == 1
    assert all(isinstance(number, int | float) for number in row.numbers.values())  # a key that is misspelt is none
    options = {f"--{name.replace('_', '-')}" for name in setting_names(Recipe())}
    for name in (*row.by, *item.columns.values()):
        if name.startswith("python "):
            assert (ROOT / name.split()[1]).is_file()
        elif name.startswith("--"):
            assert name in options
        elif name not in ALL and not name.startswith("labelflow "):
            assert resolve_name(f"labelflow.{name}")


@pytest.mark.parametrize("name", [name for name, entry in ALL.items() if entry.paper.startswith(tuple(PAPERS))])
def test_every_recipe_of_the_papers_is_on_it(name: str) -> None:
    """In each table and figure that it says it is from: "Tables 2, 7, 9 (1)", "Table 4, Figure 5"."""
    paper, *places = ALL[name].paper.split(", ")
    kind = ""
    for place in places:
        kind, number = place.split()[:2] if place[0].isalpha() else (kind, place.split()[0])
        item = ITEMS[f"{paper}, {kind.rstrip('s')} {number}"]
        named = [*(row.by for row in item.rows), *(command.split() for command in item.columns.values())]
        assert any(name in names for names in named), item.name


def test_what_is_said_to_be_missing_is_missing() -> None:
    names = {name.replace("_", "") for name in (*METHODS, *MIXERS)}
    assert not [row.label for _, row in ROWS if row.missing and row.label.lower().replace(" ", "") in names]


def test_the_page_is_made_of_it() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "papers.py"))["page"]()
    assert (ROOT / "docs" / "papers.md").read_text() == page, "python docs/papers.py writes it again"
    states = [row.state for _, row in ROWS]
    counts = [str(states.count(state)) for state in ("delivered", "quoted", "not delivered")]
    assert f"| all | {' | '.join(counts)} |" in page


def test_quoted_baselines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--quoted"]) == 0
    listed = capsys.readouterr().out
    for _, row in ROWS:
        assert row.state != "quoted" or row.label in listed
    assert "LV-ViT" not in listed
    assert main(["list", "--quoted", "nfnet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4  # a heading, F3 to F5
    assert main(["list"]) == 0
    assert "labelflow list --quoted" in capsys.readouterr().out
