"""pyproject.toml and the workflows are true: what is declared is imported and the reverse, and commands exist."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

import scale_cl
from tests.conftest import CORE, TOGETHER

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
USED_BY_TESTS_ONLY = ("dev", "docs")
DISTRIBUTIONS = {
    "PIL": "pillow",
    "avalanche": "avalanche-lib",
    "sklearn": "scikit-learn",
    "xdist": "pytest-xdist",
    "yaml": "pyyaml",
}
TOOLS = {  # run, not imported: by make, pytest, mypy or mkdocs
    *("build", "import-linter", "mypy", "pandas-stubs", "pytest-cov", "ruff", "setuptools"),
    *("types-pyyaml", "mkdocs-material", "mkdocstrings"),
}
INDIRECT = {"torchvision"}  # avalanche-lib brings it
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def declared(requirements: Iterable[str]) -> set[str]:
    """Names of distributions, without versions and extras."""
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def imported(*folders: str) -> set[str]:
    """Distributions that the Python files below these folders import."""
    modules: set[str] = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules.add(node.module.partition(".")[0])
    modules -= {*sys.stdlib_module_names, "benchmarks", "docs", "scale_cl", "tests"}
    return {DISTRIBUTIONS.get(module, module).lower() for module in modules}


def of_users() -> set[str]:
    return declared(name for extra, names in EXTRAS.items() if extra not in USED_BY_TESTS_ONLY for name in names)


def test_the_package_imports_what_it_declares_and_declares_what_it_imports() -> None:
    assert imported("src") == declared(PROJECT["dependencies"]) | of_users()


def test_tests_documentation_and_examples_import_only_what_is_declared() -> None:
    extras = declared(name for names in EXTRAS.values() for name in names)
    used = imported("tests", "benchmarks", "examples", "docs")
    assert used - INDIRECT <= declared(PROJECT["dependencies"]) | extras
    unused = declared([*EXTRAS["dev"], *EXTRAS["docs"]]) - used
    assert unused == TOOLS


def test_make_installs_every_extra_for_the_tests() -> None:
    (listed,) = re.findall(r"-e '\.\[(.*)\]'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert set(listed.split(",")) == set(EXTRAS)


def test_files_that_may_break_a_rule_exist() -> None:
    exempt = PYPROJECT["tool"]["ruff"]["lint"]["per-file-ignores"]
    assert [pattern for pattern in exempt if not any(ROOT.glob(pattern))] == []


def test_the_lists_of_core_tests_and_of_tests_that_stay_together_name_tests() -> None:
    assert [start for start in (*CORE, *TOGETHER) if not any(ROOT.glob(f"{start}*"))] == []


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))


def read(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_commands_that_the_makefile_has(path: Path) -> None:
    jobs = read(path)["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    assert all(isinstance(job["timeout-minutes"], int) for job in jobs.values())
    made = [re.match(r"make (\w+)", step["run"]) for step in steps if "run" in step]
    assert {found[1] for found in made if found} <= targets()
    assert any(made)
    assert {need for job in jobs.values() for need in [job.get("needs")] if need} <= set(jobs)


def test_every_supported_python_is_tested_and_classified() -> None:
    (tests,) = [read(path)["jobs"]["test"] for path in WORKFLOWS if path.name == "ci.yml"]
    tested = tests["strategy"]["matrix"]["python"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert tested == classified
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_a_release_is_built_once_and_published_without_a_token() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    publish = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert "secrets." not in text


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_asks_for(path: Path) -> None:
    form = read(path)
    if path.name == "config.yml":
        assert all({"name", "url", "about"} == set(link) for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= set(form)
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_hooks_run_the_linter_of_the_virtual_environment() -> None:
    hooks = [hook for repository in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    entries = [hook["entry"] for hook in hooks if "entry" in hook]
    assert [entry.split()[:2] for entry in entries] == [[".venv/bin/ruff", "check"], [".venv/bin/ruff", "format"]]


def test_addresses_name_one_repository() -> None:
    home = PROJECT["urls"]["Homepage"]
    assert all(url.startswith(home) for url in PROJECT["urls"].values())
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"{home}/security" in security


def test_the_citation_has_the_version_of_the_package() -> None:
    assert read(ROOT / "CITATION.cff")["version"] == scale_cl.__version__
