"""Pages and charts: text is escaped, one style, plots at the right places."""

import re
import xml.etree.ElementTree as ET
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import labelflow.html
from labelflow.html import (
    Interval,
    bar_chart,
    data_uri,
    document,
    dot_plot,
    legend,
    line_chart,
    save,
    standalone,
    table,
)
from labelflow.html.chart import COLOURS

SHEET = Path(labelflow.html.__file__).with_name("style.css").read_text()


def test_a_table_says_its_text() -> None:
    rows = [("<group>",), ("<a>", "1 & 2", ""), ("b", "3", "4")]
    tree = ET.fromstring(table(("<x>", "y", "z"), rows, "<caption>"))
    assert tree.findtext("caption") == "<caption>"
    assert [cell.text for cell in tree.findall("thead/tr/th")] == ["<x>", "y", "z"]
    group, *others = tree.findall("tbody/tr")
    assert (group.get("class"), group.find("th").get("colspan"), group.findtext("th")) == ("part", "3", "<group>")
    assert [[cell.text or "" for cell in row] for row in others] == [list(row) for row in rows[1:]]
    assert [[cell.tag for cell in row] for row in others] == [["th", "td", "td"]] * 2


def test_a_page_has_everything_inside(tmp_path: Path) -> None:
    page = document("<title>", legend(["<one>"]))
    assert "<title>&lt;title&gt; – labelflow</title>" in page
    assert page.index(SHEET) < page.index("</style>")
    assert 'class="line-0"' in page
    assert "&lt;one&gt;</li>" in page
    save(tmp_path / "new" / "page.html", page)
    assert [(path.name, path.read_text()) for path in (tmp_path / "new").iterdir()] == [("page.html", page)]


def test_an_image_in_a_page() -> None:
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    kind, _, data = data_uri(image).partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(BytesIO(b64decode(data))) as read:
        assert (read.size, read.getpixel((2, 1))) == ((3, 2), (1, 2, 3))
    assert data_uri(b64decode(data)) == f"{kind},{data}"
    assert data_uri(image, "JPEG").startswith("data:image/jpeg;base64,")


def test_files_of_their_own_have_the_colours_of_pages() -> None:
    """The style sheet's first (light) values."""
    light = SHEET[: SHEET.index("@media")]
    assert re.findall(r"--line-\d: (#\w+)", light) == list(COLOURS)
    svg = ET.fromstring(standalone(line_chart("title", {"a": [(1, 1.0), (2, 3.0)]})))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert f".line-5 {{ color: {COLOURS[5]}; }}" in svg[0].text


def test_many_lines_differ_in_colour_or_dashes() -> None:
    """Twelve models: no two lines look the same, each has a colour, and the legend shows what the chart does."""
    names = [f"model {number}" for number in range(12)]
    svg = ET.fromstring(line_chart("title", {name: [(0, 1.0), (1, 2.0)] for name in names}, legend=False))
    looks = [(group.get("class"), group.get("stroke-dasharray")) for group in svg.iter("g")]
    assert len(set(looks)) == 12
    assert {name for name, _ in looks} == {f"line-{number}" for number in range(6)}
    assert [
        (group.get("class"), group.get("stroke-dasharray")) for group in ET.fromstring(legend(names)).iter("g")
    ] == looks


def test_bars_are_as_high_as_their_values() -> None:
    svg = ET.fromstring(bar_chart("<images>", [10, 0, 5], {0: "1", 3: "<8>"}, "pixels"))
    tops = [float(y) for y in re.findall(r"V([\d.]+)h", svg.find("path[@class='line-0']").get("d"))]
    heights = {text.text: float(text.get("y")) - 5 for text in svg.iter("text") if text.get("x") == "52.0"}
    assert tops == [heights["10"], pytest.approx((heights["10"] + heights["0"]) / 2)]
    assert [text.text for text in svg.iter("text")][-3:] == ["1", "<8>", "pixels"]


def test_a_long_legend_goes_on_below() -> None:
    names = [f"a model with a long name {number}" for number in range(3)]
    svg = ET.fromstring(line_chart("title", {name: [(0, 1.0), (1, 2.0)] for name in names}))
    heights = [float(text.get("y")) for text in svg.iter("text") if text.text.startswith("a model")]
    assert heights == [15, 35, 55]
    assert all(float(text.get("x")) == 38 for text in svg.iter("text") if text.text.startswith("a model"))
    highest = min(
        float(y) for line in svg.iter("polyline") for _, y in (p.split(",") for p in line.get("points").split())
    )
    assert highest > 55


def test_names_have_the_room_that_they_need() -> None:
    """Letters are about seven pixels wide."""
    name = "a method with a name of forty-two letters."
    (row,) = (
        text
        for text in ET.fromstring(dot_plot([Interval(name, 1, 2, 3)], "axis", [0, 4])).iter("text")
        if text.text == name
    )
    assert float(row.get("x")) > 7 * 42


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(one.get("cx")), float(one.get("cy"))) for one in ET.fromstring(svg).iter("circle")]


def test_dots_lie_where_their_values_are() -> None:
    """Between the ticks 0 and 10, 150 and 560 pixels from the left; beyond them at the edge, with arrows."""
    rows = [Interval("<a>", 2.0, 5.0, 8.0, points=(2.5, 7.5)), Interval("b", -5.0, 10.0, 20.0, colour=1, note="holds")]
    svg = dot_plot(rows, "axis", [0.0, 5.0, 10.0], strong=(5.0, 10.0))
    assert [x for x, _ in circles(svg)] == pytest.approx([252.5, 457.5, 560.0])
    assert [y for _, y in circles(svg)] == pytest.approx([27, 27, 53])
    bars = [path.get("d") for path in ET.fromstring(svg).iter("path") if path.get("class") == "spread"]
    assert bars == ["M232.0 27.0H478.0M355.0 20.0v14", "M150.0 53.0H560.0M156 48.0l-6 5l6 5M554 48.0l6 5l-6 5"]
    (strong,) = (path.get("d") for path in ET.fromstring(svg).iter("path") if path.get("class") == "reference")
    assert strong == "M355.0 14V66M560.0 14V66"
    assert [one.text for one in ET.fromstring(svg).iter("text")] == ["0", "5", "10", "axis", "<a>", "b", "holds"]
    assert ET.fromstring(svg).get("aria-label") == "axis: <a> 5; b holds"
