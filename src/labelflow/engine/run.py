"""The folder of a run. Its files are written completely or not at all, and checked when they are read."""

import json
from pathlib import Path
from typing import Any

from labelflow.files import atomic_write, check_file, has_file, list_file, named_errors, read_checksums

CONFIG, BEST = "config.json", "model.safetensors"  # timm's names
LAST = "last.safetensors"
HEADS = {BEST: "heads.safetensors", LAST: "last_heads.safetensors"}  # what was trained beside these weights
METRICS = "metrics.jsonl"
DETAILS = "classes.json"


class Run:
    """config.json and model.safetensors (the best weights), which timm can load if it is a classifier's;
    last.safetensors; heads.safetensors and last_heads.safetensors (what was trained beside each of them, if anything);
    recipe.json, environment.json, metrics.jsonl, classes.json (metrics by class at the last evaluation, for tasks that
    have them), data.npz (the files it is trained on), checkpoints/, checksums.json (of all these files)"""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, value: Any) -> None:
        with atomic_write(self / name, checked=True) as path:
            path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def read(self, name: str) -> dict[str, Any]:
        path = self / name
        try:
            check_file(path)
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise ValueError(f"{self.folder} is not a run: it has no {name}") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path} is damaged: it holds no JSON object")
        return value

    def config(self) -> dict[str, Any]:
        """What the model can be made of again, the names of its classes, and what must be the same on resume."""
        return self.read(CONFIG)

    def has(self, name: str) -> bool:
        """Whether a file is there; ValueError if it was, and has been lost."""
        return has_file(self / name)

    def weights(self, which: str = "best") -> Path:
        """best (last, before the first evaluation, as in timm), last, or a file."""
        if which not in ("best", "last"):
            return Path(which)
        for name in (BEST, LAST) if which == "best" else (LAST,):
            if self.has(name):
                return self / name
        raise ValueError(f"{self.folder} has no weights yet; they are written with the first checkpoint")

    def heads(self) -> Path | None:
        """What was trained beside the best weights, such as a token head, if anything."""
        file = HEADS[self.weights().name]
        return self / file if self.has(file) else None

    def checkpoints(self) -> list[Path]:
        """Complete ones, oldest first."""
        parent = self / "checkpoints"
        return sorted(path for path in parent.iterdir() if path.name.isdigit()) if parent.exists() else []

    def has_progress(self) -> bool:
        """Whether there is something to lose: a start that failed before its first checkpoint leaves nothing."""
        listed = any(name.endswith(".safetensors") for name in read_checksums(self.folder))  # if they are lost, too
        return listed or bool(self.checkpoints()) or any(self.folder.glob("*.safetensors"))

    def log(self, record: dict[str, Any]) -> None:
        """Append a line of metrics."""
        with named_errors(self / METRICS), open(self / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All records. A last line that a kill cut short is dropped; any other damage is an error."""
        path = self / METRICS
        if not self.has(METRICS):
            return []
        check_file(path, grows=True)
        records: list[dict[str, Any]] = []
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    break
                raise ValueError(f"{path} is damaged in line {number}: {error}") from None
            if not isinstance(record, dict) or not {"kind", "update"} <= record.keys():
                raise ValueError(f"{path} is damaged in line {number}: it is no record of metrics")
            records.append(record)
        return records

    def rewind(self, update: int) -> None:
        """Drop the metrics of later updates, which will be repeated."""
        lines = [json.dumps(record) + "\n" for record in self.metrics() if record["update"] <= update]
        with atomic_write(self / METRICS, checked=True) as path:
            path.write_text("".join(lines), encoding="utf-8")

    def seal_metrics(self) -> None:
        """List the checksum of what was measured so far."""
        list_file(self / METRICS)
