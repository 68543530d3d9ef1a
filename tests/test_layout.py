"""Rules about the source as a whole: no learner is treated by its name, few files, private names stay private."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scale_cl.learners import registry

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scale_cl"
MOST_FILES = 150  # beside learners/, where each method has one
MOST_LINES_OF_SCALE = 220  # settings included

# Where a learner may be named: these files and folders, and the defaults of single files.
NAMED_ANYWHERE_IN = ("learners/", "experiments/definitions", "reports/paper")
DEFAULTS: dict[str, set[str]] = {
    "__init__.py": {"Scale"},  # the public name of the method
    "bench/suite.py": {"scale", "er"},  # measured in the longer parts of a benchmark
    "engine/network.py": {"joint"},  # batch statistics of batch and replay together
    "cli/demo.py": {"scale", "finetune"},  # the two that the demo compares
    "estimator/classifier.py": {"er"},  # an estimator that names no learner
    "estimator/scale.py": {"scale"},  # ScaleClassifier
    "experiments/scale_variants.py": {"Scale", "scale"},  # what the variants vary
    "integrations/avalanche.py": {"scale"},  # the strategy of that name
    "training/config.py": {"scale"},  # a config that names no learner
}


@cache
def source_files() -> dict[str, ast.Module]:
    """The syntax tree of every source file, by its path inside the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def methods() -> frozenset[type]:
    """The classes behind the registered learners."""
    return frozenset(registry.entry(name).kind for name in registry.names())


def imported(node: ast.AST) -> set[str]:
    """The dotted names that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "a relative import hides what it imports"
        return {f"{node.module}.{alias.name}" for alias in node.names}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def learners_named(tree: ast.Module) -> set[str]:
    """Strings that equal a learner's name; method classes and their modules, imported from anywhere in `scale_cl`."""
    classes, modules = {kind.__name__ for kind in methods()}, {kind.__module__ for kind in methods()}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in registry.names():
            found.add(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in classes:
            found.add(node.attr)
        for name in imported(node):
            home, _, last = name.rpartition(".")
            if name in modules or (last in classes and home.partition(".")[0] == "scale_cl"):
                found.add(last)
    return found


def rule_breakers() -> dict[str, set[str]]:
    """Files that name a learner where they must not."""
    found = {}
    for path, tree in source_files().items():
        if not path.startswith(NAMED_ANYWHERE_IN) and (named := learners_named(tree) - DEFAULTS.get(path, set())):
            found[path] = named
    return found


def test_no_learner_is_named_outside_its_own_file_and_the_listed_places() -> None:
    assert rule_breakers() == {}


def test_every_listed_default_is_used() -> None:
    empty = ast.parse("")
    unused = {path: names - learners_named(source_files().get(path, empty)) for path, names in DEFAULTS.items()}
    assert {path: names for path, names in unused.items() if names} == {}


def test_a_name_and_an_import_are_found_where_they_stand() -> None:
    text = "from scale_cl.learners.er import Er\ndef f(name):\n    '''er'''\n    return name == 'scale-ema'\n"
    assert learners_named(ast.parse(text)) == {"Er", "er", "scale-ema"}
    text = (
        "import scale_cl.learners.gem\nfrom scale_cl import Scale\nfrom scale_cl.learners import mir\nx = learners.Mer"
    )
    assert learners_named(ast.parse(text)) == {"gem", "Scale", "mir", "Mer"}
    assert learners_named(ast.parse("from elsewhere import Er\nx = 'an er in a sentence'\n")) == set()


def test_there_are_few_source_files() -> None:
    assert sum(not path.startswith("learners/") for path in source_files()) <= MOST_FILES


def test_the_method_of_the_paper_is_short_and_has_no_private_part() -> None:
    path = "learners/scale.py"
    assert len((SOURCE / path).read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_SCALE
    names = {name for name, defined in private_names(source_files()[path]) if defined} - {"_"}
    assert {name for name in names if name.startswith("_")} == set()


def test_private_members_are_used_in_their_own_class_or_module_only() -> None:
    ruff = Path(sys.executable).with_name("ruff")
    command = str(ruff) if ruff.exists() else shutil.which("ruff")
    if command is None:
        pytest.skip("needs ruff, of the extra dev")
    folders = [folder for folder in ("src", "examples", "benchmarks") if (ROOT / folder).is_dir()]
    words = ["check", "--isolated", "--no-cache", "--select", "SLF001", "--output-format", "concise"]
    # what the project's own settings allow, but no exemption of single files or lines
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    allowed = lint["flake8-self"]["extend-ignore-names"]
    words += ["--ignore-noqa", "--config", f"lint.flake8-self.extend-ignore-names={allowed}"]
    checked = subprocess.run([command, *words, *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode in (0, 1), checked.stderr
    assert [line for line in checked.stdout.splitlines() if "SLF001" in line] == []


def private_names(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Names, each with whether it is defined (True), or imported or read as an attribute (False).

    Torch's foreach operations are left out.
    """
    for node in ast.walk(tree):
        for name in imported(node):
            yield from ((part, False) for part in name.split("."))
        if isinstance(node, ast.Attribute) and not node.attr.startswith("_foreach_"):
            yield node.attr, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True


def undefined_private(tree: ast.Module) -> set[str]:
    """Underscore names that a file imports or reads as attributes and does not define."""
    names = {(name, defined) for name, defined in private_names(tree) if name.startswith("_") and name[1:2] != "_"}
    return {name for name, defined in names if not defined} - {name for name, defined in names if defined}


def test_no_method_reads_a_private_name_that_its_file_does_not_define() -> None:
    found = {path: undefined_private(tree) for path, tree in source_files().items() if path.startswith("learners/")}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_private_name_of_another_file_is_found() -> None:
    text = "class A:\n    _b = 1\n    def f(self):\n        self._c = self._b\n        return self._c, self._d\n"
    assert undefined_private(ast.parse(text)) == {"_d"}
    text = "from a import _b as c\nfrom d._e import f as _g\nimport h._i\n"
    assert undefined_private(ast.parse(text)) == {"_b", "_e", "_i"}
