"""The layers of labelflow, from the bottom up: a module imports what is below it, and from its own folder.

`tests/test_structure.py` enforces the order. `labelflow compare` trains a cell again when a file of COMPUTE changes.
"""

COMPUTE = (  # decides the numbers of a run
    *("lazy", "process", "files", "spec", "settings", "tables", "chance"),
    *("precision", "tokens", "mix", "kernels", "flow", "sparse", "loss", "models", "adapters", "follow"),
    *("token_mixer", "align"),
    *("guides", "mixers", "targets", "data", "engine", "predictions", "classifier", "labels", "tasks"),
)
PRESENTATION = (  # configures, shows or compares runs
    *("layers", "arguments", "html", "analysis", "formats", "figures", "report", "recipes", "comparison"),
    *("checking", "robustness", "study", "explore", "api", "commands", "cli", "__main__"),
)
LAYERS = COMPUTE + PRESENTATION


def is_compute(file: str) -> bool:
    """Whether a file of the package, such as "engine/loop.py", decides the numbers of a run."""
    return file.split("/")[0].removesuffix(".py") in COMPUTE
