"""Settings as frozen dataclasses whose fields carry their own documentation, type and range.

The same class is the YAML schema, the command-line option and the manual: a field is declared once, with `setting`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, Union

from scale_cl.errors import ConfigError, is_utf8, others_code, shown

S = TypeVar("S", bound="Settings")

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
_NONE_WORDS = frozenset({"none", "null", "~"})
_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})
_evaluated: dict[type[Any], dict[str, Any]] = {}  # types of fields, by class


class Explained(NamedTuple):
    """One setting as a person reads it."""

    name: str
    value: object
    default: object
    doc: str
    legal: str  # the values that it may take, in words; empty for any text


def setting(
    default: object,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[object] | None = None,
) -> Any:
    """Declare a field: its default, one line of documentation, and the values it may take (low and high included)."""
    limits = {"low": low, "high": high, "above": above, "below": below}
    metadata = {"doc": doc, "choices": None if choices is None else tuple(choices), **limits}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Base of every config: construction checks the type and range of each field."""

    def __post_init__(self) -> None:
        """Check every field and store it in its own type (an int given for a float becomes one)."""
        kinds = _kinds(type(self))
        for field in dataclasses.fields(self):
            value = _checked(kinds[field.name], field.metadata, getattr(self, field.name), field.name)
            object.__setattr__(self, field.name, value)


def _kinds(cls: type[Any]) -> Mapping[str, Any]:
    """The type of each field, evaluated once per class: a search makes thousands of configs."""
    if cls not in _evaluated:
        _evaluated[cls] = typing.get_type_hints(cls)
    return _evaluated[cls]


def build(cls: type[S], values: Mapping[str, object], *, section: str = "") -> S:
    """Make a `cls` of named values; `section` is the prefix that errors name the fields with."""
    with others_code(cls, cls.__post_init__, f"{cls.__name__} cannot be made of these settings"):
        kinds = _kinds(cls)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        checked = {}
        for name, value in values.items():
            require_field(cls, name, section=section)
            checked[name] = _checked(kinds[name], fields[name].metadata, value, _label(section, name))
        return cls(**checked)


def parse_assignment(text: str) -> tuple[str, str]:
    """Split the `field=value` of `--set` into its two sides."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text!r}: expected field=value, such as --set inner_lr=0.05 or run.batch_size=20")
    return name.strip(), value.strip()


def parse_text(cls: type[Settings], field: str, text: str, *, section: str = "") -> object:
    """Turn the text of a command-line value into the field's type, checked."""
    require_field(cls, field, section=section)
    label = _label(section, field)
    kind = _kinds(cls)[field]
    limits = next(f.metadata for f in dataclasses.fields(cls) if f.name == field)
    for alternative in _alternatives(kind):
        value = _read_as(alternative, text)
        if value is not _UNREADABLE:
            return _checked(kind, limits, value, label)
    raise ConfigError(f"{label}: {shown(text)} is not {_kind_names(kind)}{_with_a_point(kind, text)}")


def explain(cfg: Settings) -> list[Explained]:
    """Every setting in order of declaration: name, value in force, default, documentation, legal values."""
    kinds = _kinds(type(cfg))
    return [
        Explained(f.name, getattr(cfg, f.name), f.default, f.metadata.get("doc", ""), _legal(kinds[f.name], f.metadata))
        for f in dataclasses.fields(cfg)
    ]


def as_dict(cfg: Settings) -> dict[str, Any]:
    """The settings as JSON values, in order of declaration."""
    return {f.name: _plain(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}


def field_names(cls: type[Settings]) -> list[str]:
    """Names of the fields, in order of declaration."""
    return [f.name for f in dataclasses.fields(cls)]


def require_field(cls: type[Settings], name: str, *, section: str = "") -> None:
    """Raise ConfigError, naming the closest field, unless `cls` has a field of this name."""
    known = field_names(cls)
    if name not in known:
        raise ConfigError(f"unknown setting {_label(section, name)!r}; {suggest(name, known)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an 'unknown ...' message: the closest known name if there is one, else all of them."""
    known = list(known)
    spelt = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.6)
    return f"did you mean {spelt[close[0]]!r}?" if close else f"known are {', '.join(known) or 'none'}"


# --- checking ---------------------------------------------------------------------------------------------------------
_UNREADABLE = object()


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union (a lone type is a union of one), a plain string last because it reads anything."""
    members = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    return tuple(sorted(members, key=lambda member: member is str))


def _checked(kind: Any, limits: Mapping[str, Any], value: object, label: str) -> object:
    for alternative in _alternatives(kind):
        fitted = _fit(alternative, value)
        if fitted is not _UNREADABLE:
            _check_range(limits, fitted, label)
            return fitted
    raise ConfigError(f"{label}: {shown(value)} is not {_kind_names(kind)}")


def _fit(kind: Any, value: object) -> object:
    """`value` as `kind`, or _UNREADABLE. A whole number is a float, but True is not a number and 1.0 not an int."""
    if kind is types.NoneType:
        return None if value is None or value == "none" else _UNREADABLE  # YAML says null, people say none
    if typing.get_origin(kind) is Literal:
        return value if any(value == c and type(value) is type(c) for c in typing.get_args(kind)) else _UNREADABLE
    if typing.get_origin(kind) is tuple:
        member = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):
            return _UNREADABLE
        fitted = tuple(_fit(member, v) for v in value)
        return _UNREADABLE if _UNREADABLE in fitted else fitted
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023:
        return float(value)
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _UNREADABLE
    return value if isinstance(value, kind) else _UNREADABLE


def _check_range(limits: Mapping[str, Any], value: object, label: str) -> None:
    if isinstance(value, tuple):
        for member in value:
            _check_range(limits, member, label)
        return
    if isinstance(value, str) and not is_utf8(value):
        raise ConfigError(f"{label}: {shown(value)} is not UTF-8 text, so no file can hold it; rename it")
    choices = limits.get("choices")
    if choices is not None and value is not None and value not in choices:
        raise ConfigError(f"{label}: {shown(value)} is not one of {', '.join(str(c) for c in choices)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{label}: {shown(value)} is out of range, numbers have at most 18 digits")
    if not math.isfinite(value):
        raise ConfigError(f"{label}: {value!r} is not a finite number")
    low, high, above, below = (limits.get(k) for k in ("low", "high", "above", "below"))
    right = (
        (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if not right:
        raise ConfigError(f"{label}: {shown(value)} is out of range, it must be {_range_words(limits)}")


def _range_words(limits: Mapping[str, Any]) -> str:
    words = {"low": "at least", "above": "above", "high": "at most", "below": "below"}
    return " and ".join(f"{word} {limits[k]}" for k, word in words.items() if limits.get(k) is not None)


def _legal(kind: Any, limits: Mapping[str, Any]) -> str:
    """The values that a field may take; empty for any text."""
    if limits.get("choices") is not None:
        return f"one of {', '.join(str(choice) for choice in limits['choices'])}"
    if kind is str:
        return ""
    bounds = _range_words(limits)
    bounds = f" of {bounds}" if bounds.startswith("at") else f" {bounds}".rstrip()
    return " or ".join(
        _kind_name(k) + (bounds if k in (int, float) or typing.get_origin(k) is tuple else "")
        for k in _alternatives(kind)
    )


def _kind_names(kind: Any) -> str:
    return " or ".join(_kind_name(alternative) for alternative in _alternatives(kind))


def _kind_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        choices = [str(c) for c in typing.get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_kind_name(typing.get_args(kind)[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "none"}
    return words.get(kind, str(kind))


def _label(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


# --- text and JSON ----------------------------------------------------------------------------------------------------
def _read_as(kind: Any, text: str) -> object:
    """`text` read as `kind`, or _UNREADABLE."""
    if kind is types.NoneType:
        return None if text.lower() in _NONE_WORDS else _UNREADABLE
    if kind is bool:
        word = text.lower()
        return True if word in _TRUE_WORDS else False if word in _FALSE_WORDS else _UNREADABLE
    if typing.get_origin(kind) is Literal:
        return next((c for c in typing.get_args(kind) if str(c) == text), _UNREADABLE)
    if typing.get_origin(kind) is tuple:
        parts = [p.strip() for p in text.strip("[]()").split(",") if p.strip()]
        read = tuple(_read_as(typing.get_args(kind)[0], p) for p in parts)
        return _UNREADABLE if _UNREADABLE in read else read
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return _UNREADABLE
    return text


def _with_a_point(kind: Any, text: str) -> str:
    """What to write where a decimal comma was meant; nothing for one that may part thousands, such as 1,000."""
    point = text.replace(",", ".")
    if text.count(",") != 1 or float not in _alternatives(kind) or _THOUSANDS.fullmatch(text):
        return ""
    return "" if _read_as(float, point) is _UNREADABLE else f"; write {point}"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
