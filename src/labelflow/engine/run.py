"""The folder of a run. Files are written atomically: completely, or not at all."""

import json
from pathlib import Path
from typing import Any

from labelflow.files import atomic_write

CONFIG, BEST = "config.json", "model.safetensors"  # timm's names
LAST = "last.safetensors"
METRICS = "metrics.jsonl"
DETAILS = "classes.json"


class Run:
    """config.json and model.safetensors (the best weights), which timm can load if it is a classifier's;
    last.safetensors, recipe.json, environment.json, metrics.jsonl, classes.json (metrics by class at the last
    evaluation, for tasks that have them), checkpoints/"""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, value: Any) -> None:
        with atomic_write(self / name) as path:
            path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def read(self, name: str) -> Any:
        try:
            return json.loads((self / name).read_text())
        except FileNotFoundError:
            raise ValueError(f"{self.folder} is not a run: it has no {name}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"{self / name} is damaged: {error}") from None

    def config(self) -> dict[str, Any]:
        """What the model can be made of again, the names of its classes, and what must be the same on resume."""
        config: dict[str, Any] = self.read(CONFIG)
        return config

    def weights(self, which: str = "best") -> Path:
        """best (last, before the first evaluation, as in timm), last, or a file."""
        if which not in ("best", "last"):
            return Path(which)
        for name in (BEST, LAST) if which == "best" else (LAST,):
            if (self / name).exists():
                return self / name
        raise ValueError(f"{self.folder} has no weights yet; they are written with the first checkpoint")

    def checkpoints(self) -> list[Path]:
        """Complete ones, oldest first."""
        parent = self / "checkpoints"
        return sorted(path for path in parent.iterdir() if path.name.isdigit()) if parent.exists() else []

    def has_progress(self) -> bool:
        """Whether there is something to lose: a start that failed before its first checkpoint leaves nothing."""
        return bool(self.checkpoints()) or any(self.folder.glob("*.safetensors"))

    def log(self, record: dict[str, Any]) -> None:
        """Append a line of metrics."""
        with open(self / METRICS, "a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All records. A last line that a kill cut short is dropped; any other damage is an error."""
        path = self / METRICS
        records: list[dict[str, Any]] = []
        for number, line in enumerate(path.read_text().splitlines(keepends=True) if path.exists() else [], start=1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                if line.endswith("\n"):
                    raise ValueError(f"{path} is damaged in line {number}: {error}") from None
        return records

    def rewind(self, update: int) -> None:
        """Drop the metrics of later updates, which will be repeated."""
        lines = [json.dumps(record) + "\n" for record in self.metrics() if record["update"] <= update]
        with atomic_write(self / METRICS) as path:
            path.write_text("".join(lines))
