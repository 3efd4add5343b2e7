"""Results as rows of plain values, and as a pandas data frame."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


class Table:
    """What a notebook makes a table of."""

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows, by column."""
        raise NotImplementedError

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a data frame."""
        try:
            import pandas
        except ImportError:
            raise ValueError("to_pandas() needs pandas: pip install pandas; .records has the same rows") from None
        return pandas.DataFrame(self.records)
