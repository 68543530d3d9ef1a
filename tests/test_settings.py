"""Settings: types, ranges, texts and the errors that name what would be right."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.errors import ConfigError
from scale_cl.settings import Settings, as_dict, build, explain, field_names, parse_assignment, parse_text, setting


@dataclass(frozen=True)
class Sample(Settings):
    rate: float = setting(0.1, "learning rate", above=0, high=10)
    slots: int = setting(50, "memory slots", low=1, below=1000)
    limit: int | None = setting(None, "a limit, or none", low=1)
    order: int | Literal["natural"] = setting(0, "seed or natural", low=0)
    policy: Literal["ring", "reservoir"] = setting("ring", "which samples stay")
    size: int = setting(8, "a size of a few", choices=(8, 16))
    widths: tuple[int, ...] = setting((256, 256), "widths of layers", low=1)
    on: bool = setting(True, "whether it is on")
    label: str = setting("x", "any text")
    note: str | None = setting(None, "text, or none")


def test_defaults_are_valid_and_explained() -> None:
    rows = {row.name: row for row in explain(Sample(rate=0.5))}
    assert list(rows) == field_names(Sample)
    assert rows["rate"] == ("rate", 0.5, 0.1, "learning rate", "a number above 0 and at most 10")
    assert [row.legal for row in list(rows.values())[1:]] == [
        "a whole number of at least 1 and below 1000",
        "a whole number of at least 1 or none",
        "a whole number of at least 0 or natural",
        "one of ring, reservoir",
        "one of 8, 16",
        "a list, each a whole number of at least 1",
        "true or false",
        "",
        "none or text",
    ]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sample().rate = 1.0  # type: ignore[misc]


def test_a_whole_number_becomes_the_float_that_the_field_asks_for() -> None:
    rate = Sample(rate=1).rate
    assert type(rate) is float
    assert rate == 1.0


def test_json_values_build_the_same_settings_again() -> None:
    cfg = Sample(rate=0.3, limit=4, order="natural", widths=(3, 4), on=False, note="hello")
    assert as_dict(cfg)["widths"] == [3, 4]
    assert build(Sample, as_dict(cfg)) == cfg


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("rate", 0, "rate: 0.0 is out of range, it must be above 0 and at most 10"),
        ("rate", 10.5, "at most 10"),
        ("rate", float("nan"), "not a finite number"),
        ("rate", float("inf"), "not a finite number"),
        ("rate", 10**400, "is not a number"),
        ("rate", "fast", "'fast' is not a number"),
        ("rate", True, "True is not a number"),
        ("rate", None, "None is not a number"),
        ("slots", 0, "at least 1 and below 1000"),
        ("slots", 1000, "below 1000"),
        ("slots", 5.0, "5.0 is not a whole number"),
        ("slots", True, "True is not a whole number"),
        ("limit", 0, "at least 1"),
        ("limit", "all", "'all' is not a whole number or none"),
        ("order", "random", "'random' is not a whole number or natural"),
        ("order", -1, "at least 0"),
        ("policy", "heap", "'heap' is not one of ring, reservoir"),
        ("size", 9, "9 is not one of 8, 16"),
        ("widths", [1, 0], "0 is out of range"),
        ("widths", [1, "a"], "is not a list, each a whole number"),
        ("widths", 5, "is not a list"),
        ("on", 1, "1 is not true or false"),
        ("label", 5, "5 is not text"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field_and_what_would_be_right(
    field: str, value: object, reason: str
) -> None:
    with pytest.raises(ConfigError) as error:
        build(Sample, {field: value}, section="learner")
    assert str(error.value).startswith(f"learner.{field}: ")
    assert reason in str(error.value)
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Sample(**{field: value})  # type: ignore[arg-type]


def test_an_unknown_field_is_refused_with_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'learner\.rat'; did you mean 'rate'\?"):
        build(Sample, {"rat": 1}, section="learner")
    with pytest.raises(ConfigError, match="unknown setting 'qqqqqq'; known are rate, slots"):
        parse_text(Sample, "qqqqqq", "1")


@pytest.mark.parametrize(
    ("field", "text", "end"),
    [
        ("rate", "0,01", "is not a number; write 0.01"),
        ("rate", "-0,5e-3", "is not a number; write -0.5e-3"),
        ("rate", "1,000", "is not a number"),  # one, or a thousand
        ("rate", "1,2,3", "is not a number"),
        ("rate", "a,b", "is not a number"),
        ("slots", "1,5", "is not a whole number"),
    ],
)
def test_a_decimal_comma_is_told_from_what_is_no_number(field: str, text: str, end: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_text(Sample, field, text)
    assert str(error.value) == f"{field}: {text!r} {end}"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("rate", "1e-3", 1e-3),
        ("rate", "2", 2.0),
        ("limit", "none", None),
        ("limit", "null", None),
        ("limit", "7", 7),
        ("order", "natural", "natural"),
        ("order", "3", 3),
        ("policy", "reservoir", "reservoir"),
        ("widths", "100,50", (100, 50)),
        ("widths", "[100, 50]", (100, 50)),
        ("on", "off", False),
        ("on", "True", True),
        ("label", "12", "12"),
        ("note", "none", None),
        ("note", "nothing", "nothing"),
    ],
)
def test_text_is_read_as_the_type_of_the_field(field: str, text: str, value: object) -> None:
    read = parse_text(Sample, field, text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("field", "text"), [("rate", "fast"), ("slots", "1.5"), ("on", "maybe"), ("widths", "a,b")])
def test_text_that_does_not_fit_is_refused(field: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: .* is not "):
        parse_text(Sample, field, text)


def test_an_assignment_splits_at_the_first_equals_sign() -> None:
    assert parse_assignment("run.batch_size = 20") == ("run.batch_size", "20")
    assert parse_assignment("label=a=b") == ("label", "a=b")


@pytest.mark.parametrize("text", ["rate", "=1", "", " =1"])
def test_an_assignment_without_both_sides_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected field=value"):
        parse_assignment(text)


@given(rate=st.floats(min_value=1e-300, max_value=10), slots=st.integers(1, 999), on=st.booleans())
def test_every_valid_value_survives_being_written_as_text(rate: float, slots: int, on: bool) -> None:
    cfg = Sample(rate=rate, slots=slots, on=on)
    texts = {name: str(getattr(cfg, name)) for name in ("rate", "slots", "on")}
    assert build(Sample, {name: parse_text(Sample, name, text) for name, text in texts.items()}) == cfg
