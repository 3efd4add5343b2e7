"""Progress, and where it is shown."""

import pytest

from labelflow.engine.progress import Counted


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
