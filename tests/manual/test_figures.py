"""The pictures of the manual show what runs give, and are drawn from the data that is kept beside them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.manual.blocks import DOCS

FIGURES = DOCS / "figures"
OF_A_RUN = "terminal.svg"  # terminal.py draws what a run prints


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manual_figures", FIGURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def kept() -> dict[str, dict[str, object]]:
    data: dict[str, dict[str, object]] = json.loads((FIGURES / "data.json").read_text(encoding="utf-8"))
    return data


def last_row(matrices: list[list[list[float]]]) -> float:
    return statistics.fmean(statistics.fmean(matrix[-1]) for matrix in matrices)


def test_a_fresh_run_gives_the_data_that_is_kept(make: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "SEEDS", 1)
    fresh = make.matrices("finetune")
    stored = kept()["finetune"]["matrices"][:1]  # type: ignore[index]
    assert len(fresh[0]) == len(stored[0]) == 10
    first_task = [[row[0] for row in matrix] for matrix in (fresh[0], stored[0])]
    assert first_task[0] == pytest.approx(first_task[1], abs=10)  # another processor, other bits
    assert last_row(fresh) == pytest.approx(last_row(stored), abs=5)


def test_every_run_has_the_command_that_repeats_it(make: ModuleType) -> None:
    data = kept()
    assert set(data) == set(make.RUNS)
    for name in make.RUNS:
        assert data[name]["command"] == make.command(name)
        assert len(data[name]["matrices"]) == make.SEEDS  # type: ignore[arg-type]


def test_every_picture_is_drawn_from_the_data_that_is_kept(make: ModuleType) -> None:
    checksum = hashlib.sha256(json.dumps(kept(), sort_keys=True).encode()).hexdigest()
    for name in make.PICTURES:
        assert f"data.json {checksum}" in (FIGURES / f"{name}.svg").read_text(encoding="utf-8"), name


def test_the_script_draws_every_picture_there_is(make: ModuleType) -> None:
    drawn = dict(make.drawn(kept()))
    assert {*drawn, OF_A_RUN} == {path.name for path in FIGURES.glob("*.svg")}
    assert all(content.startswith(b"<?xml") and len(content) < 100_000 for content in drawn.values())


def test_what_the_text_says_of_the_pictures_holds() -> None:
    acc = {name: last_row(run["matrices"]) for name, run in kept().items()}  # type: ignore[arg-type]
    assert acc["finetune"] < 45 < 85 < acc["scale"]
    assert acc["without DER++"] < 50
    for part in ("without the adversary", "without the generator"):  # no difference that three seeds can show
        assert abs(acc[part] - acc["scale"]) < 1
    assert abs(acc["scale, 25 slots"] - acc["er, 100 slots"]) < 2


def test_every_picture_is_used_and_has_a_description() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    for picture in FIGURES.glob("*.svg"):
        assert f"](figures/{picture.name})" in text, picture.name
    assert "![](" not in text


def test_pictures_are_small(make: ModuleType) -> None:
    assert sum(Path(FIGURES / f"{name}.svg").stat().st_size for name in make.PICTURES) < 400_000
