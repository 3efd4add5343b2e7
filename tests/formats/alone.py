"""What others do with exports: timm, torch or ONNX Runtime, without labelflow. Run as a program of its own.

argv: a JSON file that was exported to ({name: [format, folder]}), and the folder of evaluation images. Prints, as JSON,
the likeliest classes of all images in sorted order, and what the lines of the model card print for image.jpg.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import onnxruntime
import timm
import torch
from PIL import Image

BLOCKED = "labelflow"


def timm_folder(folder: Path):
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return model, timm.data.resolve_model_data_config(model), model.pretrained_cfg["label_names"]


def onnx_file(folder: Path):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    stored = session.get_modelmeta().custom_metadata_map
    model = lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])  # noqa: E731
    return model, json.loads(stored["data_config"]), json.loads(stored["label_names"])


def torch_program(folder: Path):
    stored = {"data_config": "", "label_names": ""}
    model = torch.export.load(folder / "model.pt2", extra_files=stored).module()
    return model, json.loads(stored["data_config"]), json.loads(stored["label_names"])


def predictions(format: str, folder: Path, files: list[Path]) -> list[str]:
    model, config, names = {"timm": timm_folder, "onnx": onnx_file, "torch": torch_program}[format](folder)
    transform = timm.data.create_transform(**config)
    images = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch in images.split(7)])
    return [names[column] for column in logits.argmax(1).tolist()]


def card(folder: Path) -> str:
    """What the Python lines of a model card print."""
    lines = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(lines, {})
    return told.getvalue().strip()


def answers(exported: dict[str, list[str]], files: list[Path]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, (format, folder) in exported.items():
        try:
            found[name] = [predictions(format, Path(folder), files), card(Path(folder))]
        except RuntimeError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    exported, files = json.loads(Path(sys.argv[1]).read_text()), sorted(Path(sys.argv[2]).rglob("*.png"))
    sys.modules[BLOCKED] = None  # type: ignore[assignment]
    alone = answers(exported, files)
    del sys.modules[BLOCKED]
    import labelflow.models  # noqa: F401

    unknown = {name: exported[name] for name, answer in alone.items() if isinstance(answer, str)}
    print(json.dumps([alone, answers(unknown, files)]))
