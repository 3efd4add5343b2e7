"""Imports point down only (design: data flows one way), and importing is quiet and light."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import labelflow
from labelflow.adapters import FAMILIES
from labelflow.adapters.registry import UNAVAILABLE
from labelflow.layers import LAYERS

ROOT = Path(labelflow.__file__).parent


def imported(path: Path) -> set[str]:
    """The parts of labelflow that a file imports."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "labelflow":
            inside = node.module.split(".")[1:]
            parts |= {inside[0]} if inside else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            parts |= {name.name.split(".")[1] for name in node.names if name.name.startswith("labelflow.")}
    return parts


def test_every_part_has_a_layer() -> None:
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == set(LAYERS)


def test_imports_point_down() -> None:
    for level, layer in enumerate(LAYERS):
        files = [ROOT / f"{layer}.py"] if (ROOT / f"{layer}.py").exists() else list((ROOT / layer).rglob("*.py"))
        for path in files:
            above = imported(path) - set(LAYERS[: level + 1])
            assert not above, f"{path.relative_to(ROOT)} imports {sorted(above)}, which stands above {layer}"


def test_files_can_be_read_in_one_sitting() -> None:
    long = {str(path): lines for path in ROOT.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 300}
    assert not long


TESTS = Path(__file__).parent
EVERYTHING = {  # tests of the whole, not of one module
    *("cluster", "compile", "distributed", "docs", "examples", "golden", "golden_conventions", "overfit", "structure"),
    *("device", "notebooks", "package", "portable", "training_examples"),
}


def test_tests_mirror_the_source() -> None:
    """`tests/x/test_y.py`, or `test_y_more.py`, tests `x/y.py` or the folder `x/y`; tests/benchmarks, benchmarks."""
    for path in TESTS.rglob("test_*.py"):
        folder, name = path.parent.relative_to(TESTS), path.stem.removeprefix("test_")
        beginnings = ["_".join(name.split("_")[: count + 1]) for count in range(name.count("_") + 1)]
        homes = [ROOT / folder / part for part in beginnings]
        mirrors = any(home.with_suffix(".py").exists() or home.is_dir() for home in homes)
        assert mirrors or folder == Path("benchmarks") or (not folder.parts and name in EVERYTHING), path


UNDECLARED = {"huggingface_hub", "triton"} | {"IPython", "pandas"}  # timm's and torch's | used where there are some


def test_what_is_imported_is_declared() -> None:
    """In pyproject.toml, not only brought by a package that is."""
    trees = [ast.parse(path.read_text()) for path in ROOT.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"labelflow"}
    homes = packages_distributions()
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    declared = {_normal(re.split(r"[^\w-]", line)[0]) for line in lines}
    missing = {name for name in packages if not declared & {_normal(home) for home in homes.get(name, [])}}
    assert missing == UNDECLARED


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_import_is_quiet_and_brings_no_plots() -> None:
    code = "import sys, labelflow.cli; sys.exit(any(name in sys.modules for name in ('matplotlib', 'skimage')))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_family_can_be_loaded_with_this_timm() -> None:
    files = {path.stem for path in (ROOT / "adapters").glob("*.py")}
    assert not UNAVAILABLE
    assert set(FAMILIES) <= files
    assert not {
        name for name in files - set(FAMILIES) if "register_model(" in (ROOT / "adapters" / f"{name}.py").read_text()
    } - {*("registry", "averages", "huggingface", "graph")}
