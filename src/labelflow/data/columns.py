"""Which column holds what: what was asked for must be there, and what was not may be."""

from collections.abc import Callable, Iterable, Sequence

from labelflow.data.settings import Columns

DEFAULT = Columns()


def check_asked(columns: Columns, settings: Iterable[str], header: Sequence[str], what: str) -> None:
    """ValueError if a column has a name of its own and is not in the header."""
    for setting in settings:
        name = getattr(columns, setting)
        if _is_asked(columns, setting) and name not in header:
            option = f"--{setting.replace('_', '-')}"
            raise ValueError(f"{what} has no column {name} ({option}), but {', '.join(header)}")


def choose_labels(columns: Columns, can_be: Callable[[str, bool], bool], what: str) -> tuple[str, bool] | None:
    """The column of labels, and whether an image has several of them; None if there is none. The one that was asked
    for is preferred.

    can_be: whether a column holds one label an image, or several.
    """
    settings = ["label_column", "labels_column"]
    wanted = [setting for setting in settings if _is_asked(columns, setting)] or settings
    pairs = [(getattr(columns, setting), setting == "labels_column") for setting in wanted]
    found = [(name, several) for name, several in pairs if name and can_be(name, several)]
    if len(found) == 2:
        one, many = columns.label_column, columns.labels_column
        raise ValueError(
            f"{what} has the columns {one} and {many}: --labels-column '' makes {one} its classes, --label-column '' "
            f"{many}"
        )
    return found[0] if found else None


def _is_asked(columns: Columns, setting: str) -> bool:
    return getattr(columns, setting) not in ("", getattr(DEFAULT, setting))
