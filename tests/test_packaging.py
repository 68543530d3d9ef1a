"""The sdist and the wheel: built without a network, installed in a folder of their own, used from another directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import scale_cl

ROOT = Path(__file__).parents[1]
NEEDED_TO_BUILD = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "SECURITY.md",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from it."""
    checkout, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for name in NEEDED_TO_BUILD:
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    finished([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout)], out)
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was installed to."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = next(built.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    finished([*pip, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], built)
    return folder


def finished(command: list[str], directory: Path, **environment: str) -> str:
    """What the command printed, after it ended well."""
    ended = subprocess.run(
        command, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def source_files() -> set[str]:
    package = ROOT / "src"
    files = (path for path in (package / "scale_cl").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package).as_posix() for path in files}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == source_files()
    assert any(name.endswith(".cu") for name in names), "the CUDA sources"
    assert any(name.endswith(".html.j2") for name in names), "the report's templates"
    assert "scale_cl/py.typed" in names


def test_the_sdist_holds_sources_and_papers_but_no_tests_or_results(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"} <= names
    assert {f"src/{name}" for name in source_files()} <= names
    assert not [name for name in names if name.startswith(("tests/", "results/", "docs/"))]


def test_files_carry_the_version_of_the_package(built: Path) -> None:
    assert {path.name for path in built.iterdir()} == {
        f"scale_cl-{scale_cl.__version__}.tar.gz",
        f"scale_cl-{scale_cl.__version__}-py3-none-any.whl",
    }


def test_the_installed_package_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    def run(*command: str) -> str:
        return finished([*command], tmp_path, PYTHONPATH=str(installed), SCALE_CL_DATA=str(tmp_path / "data"))

    script = [sys.executable, str(installed / "bin" / "scale-cl")]
    where = run(sys.executable, "-c", "import scale_cl; print(scale_cl.__file__)")
    assert where.strip() == str(installed / "scale_cl" / "__init__.py")
    assert "reproduce" in run(*script, "--help")
    run(*script, "run", "--learner", "er", "--tasks", "1", "--out", "run", "-q")
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["config"]["stream"]["name"] == "digits"
