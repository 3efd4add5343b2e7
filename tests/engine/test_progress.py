"""What is printed: times left that are true, durations, names as they are."""

import pytest
from rich.console import Console as Rich
from rich.table import Table

from labelflow.engine import progress
from labelflow.engine.progress import Counted, clock, duration, table_console


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(progress, "time", ticking)
    return ticking


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0, "0 seconds"), (38.4, "38 seconds"), (89, "89 seconds"), (91, "2 minutes"), (2700, "45 minutes")),
        *((5400, "1.5 hours"), (12_400, "3.4 hours"), (360_000, "100.0 hours")),
    ],
)
def test_durations_have_a_unit_that_suits_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_clock() -> None:
    assert [clock(seconds) for seconds in (0.4, 61, 3725)] == ["0:00:00", "0:01:01", "1:02:05"]


def test_the_time_left_is_of_what_will_be_needed(time: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of what was planned was needed so far, and so it probably is of the rest."""
    with Counted("attacks", "passes", 10_000, seconds=0) as counted:
        time.now = 1.0
        counted.advance(100)
        assert "100/10000  100.0 passes/s  0:01:39 left" in capsys.readouterr().out
        counted.spare(900)
        time.now = 2.0
        counted.advance(100)  # 200 in two seconds; 8,900 are planned, of which 200 / 1,100 are needed
        assert (counted.total, counted.expected) == (9_100, 200 + round(8_900 * 200 / 1_100))
        assert "about 0:00:16 left" in capsys.readouterr().out


def test_what_is_under_way_counts_in_full(time: Clock) -> None:
    """An image that has survived so far will probably survive; only of the others a part is spared."""
    with Counted("attacks", "passes", 2_000, quiet=True) as counted:
        counted.begin(1_000)
        time.now = 1.0
        counted.advance(100)
        counted.spare(300)  # 600 of those begun are left, and 1,000 others, of which 100 / 400 are needed
        assert counted.expected == 100 + 600 + 250
        counted.advance(600)
        assert counted.expected == 700 + 1_000 * 700 // 1_000


def test_what_was_done_before_says_nothing_about_the_rest(time: Clock) -> None:
    with Counted("attacks", "passes", 1_000, quiet=True) as counted:
        counted.forgo(500)
        time.now = 1.0
        counted.advance(100)
        assert counted.expected == 500


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("a[bold]b", "c", box=None)
    table.add_row("[red]run[/red]", ":dog: [/]")
    table_console().print(table)
    with Counted("x", "y", 1) as counted:
        counted.say("[link]of a run[/]")
    out = capsys.readouterr().out
    assert all(name in out for name in ("a[bold]b", "[red]run[/red]", ":dog: [/]", "[link]of a run[/]"))


def test_aside_is_not_where_data_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for aside in (False, True):
        with Counted("reading", "images", 4, seconds=-1.0, aside=aside) as progress:
            progress.advance(2)
            progress.say("[one] was skipped")
        told = capsys.readouterr()
        lines = (told.err if aside else told.out).splitlines()
        assert (told.out if aside else told.err) == ""
        assert lines[0].startswith("reading  2/4  ")
        assert lines[1] == "[one] was skipped"


def test_a_notebook_has_one_line_that_is_written_again(
    time: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten steps, one displayed line; the last state stays. What is said is plain text beside it."""
    shown: list[str] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            shown.append(content["text/plain"])

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(content["text/plain"])
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress, "Console", lambda **options: Rich(**{**options, "force_jupyter": not options}))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter's kernel does: it is no terminal all the same
    with Counted("reading", "images", 10) as counted:
        for _ in range(10):
            time.now += 0.2
            counted.advance(1)
        counted.say("[one] was skipped")
    assert shown[-1].startswith("reading  10/10  ")
    assert 2 <= len(shown) <= 6  # twice a second, and the end
    assert capsys.readouterr().out == "[one] was skipped\n"
    shown.clear()
    with Counted("reading", "images", 10, quiet=True) as counted:
        time.now += 1
        counted.advance(10)
    assert not shown
