"""Results as rows of plain values, and as a pandas data frame."""

from html import escape
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

    def _repr_html_(self) -> str:
        rows = self.records
        head = "".join(f"<th>{escape(str(name))}</th>" for name in (rows[0] if rows else ()))
        body = "".join(f"<tr>{''.join(f'<td>{_shown(value)}</td>' for value in row.values())}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: Any) -> str:
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
