"""What is released: what wheel and sdist contain, where their links lead, and what hosted checks run."""

import importlib.util
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tracked() -> set[str]:
    """Files of the repository as the next commit will have them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is not a repository")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What wheel and sdist contain, without what describes the package itself."""
    pytest.importorskip("hatchling")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    folder = str(tmp_path_factory.mktemp("dist"))
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"])
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=folder)
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    return {"wheel": in_wheel, "sdist": in_sdist}


def test_a_wheel_is_the_package_and_nothing_else(built: dict[str, set[str]]) -> None:
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/labelflow/")}
    assert built["wheel"] == package
    assert "labelflow/py.typed" in package


def test_an_sdist_has_what_its_tests_need(built: dict[str, set[str]]) -> None:
    """All of the repository but how its own CI starts."""
    assert tracked() ^ built["sdist"] == {".ci/run"}


def test_a_hosted_build_knows_its_addresses() -> None:
    pytest.importorskip("hatchling")
    hook = module_of(ROOT / "hatch_build.py")
    assert hook.addresses("Someone/labelflow")["Documentation"] == "https://someone.github.io/labelflow/"
    text = "[a](docs/a.md#b) ![c](c.jpg) [d](https://e.org) [f](#g)"
    assert hook.absolute(text, "someone/labelflow", "v1.2") == (
        "[a](https://github.com/someone/labelflow/blob/v1.2/docs/a.md#b) "
        "![c](https://github.com/someone/labelflow/raw/v1.2/c.jpg) [d](https://e.org) [f](#g)"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.findall(r"\]\((?!https://)", hook.absolute(readme, "someone/labelflow", "v1.2"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_hosted_checks_call_what_everyone_calls(path: Path) -> None:
    """Targets of the Makefile and files that exist, with least permissions and an end."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        if called := job.get("uses"):
            assert (ROOT / called).is_file()
            continue
        assert job["timeout-minutes"] <= 60
        for run in filter(None, (step.get("run") for step in job["steps"])):
            if run.startswith("make"):
                assert set(re.findall(r"(?<= )[a-z][\w-]+(?= |$)", run)) <= targets
            for file in re.findall(r"^python (\S+\.py)", run):
                assert (ROOT / file).is_file()


def hosted(name: str) -> dict[str, Any]:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def test_hosted_tests_run_on_the_versions_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert hosted("ci.yml")["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


def test_nothing_is_published_before_all_checks() -> None:
    jobs = hosted("release.yml")
    assert (jobs["ci"]["uses"], jobs["publish"]["needs"]) == ("./.github/workflows/ci.yml", "ci")
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]


def test_notes_of_a_release(tmp_path: Path) -> None:
    notes = module_of(ROOT / ".github" / "release_notes.py").notes
    (tmp_path / "src" / "labelflow").mkdir(parents=True)
    (tmp_path / "src" / "labelflow" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    changes = tmp_path / "CHANGELOG.md"
    text = "\nNew: [this](docs/this.md).\n\n### Upgrading from 1.1\n- a is b\n\n### Details\n- many\n"
    changes.write_text(f"# Changelog\n\n## 1.2.0 (2026-01-02)\n{text}\n## 1.1.0 (2025-01-02)\n\n- old\n")
    here = "https://github.com/some/one/blob/v1.2.0"
    assert notes("v1.2.0", "some/one", tmp_path) == (
        f"New: [this]({here}/docs/this.md).\n\n### Upgrading from 1.1\n- a is b\n\n[All changes]({here}/CHANGELOG.md)"
    )
    with pytest.raises(SystemExit, match=r"__init__.py has version 1.2.0, but the tag is v1.3.0"):
        notes("v1.3.0", "some/one", tmp_path)
    changes.write_text("# Changelog\n\n## Unreleased\n\n- newer\n\n## 1.2.0 (2026-01-02)\n\n- new\n")
    with pytest.raises(SystemExit, match=r"CHANGELOG.md begins with Unreleased, but the tag is v1.2.0"):
        notes("v1.2.0", "some/one", tmp_path)


def test_this_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "src/labelflow/__init__.py").read_text(), re.MULTILINE)
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.findall(
        r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )[0]
    assert version == cited == newest
