"""The history of benchmarks: one JSON object a line, oldest first, so that a slowdown shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scale_cl import files
from scale_cl.errors import ResultError

SCHEMA = "scale-cl/bench/1"
Entry = dict[str, Any]


def read(path: Path) -> list[Entry]:
    """All entries; none if there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"history {path} cannot be read: {error}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise ResultError(f"{path}, line {number}: not an entry of {SCHEMA}")
        entries.append(entry)
    return entries


def append(path: Path, entry: Entry) -> None:
    """Add an entry, the file whole or not at all."""
    lines = [json.dumps(each, allow_nan=False, sort_keys=True) for each in [*read(path), entry]]
    files.write_text(path, "\n".join(lines) + "\n")


def comparison(entry: Entry, earlier: list[Entry]) -> list[str]:
    """A line for each figure that a machine of the same kind, with as many threads, gave before.

    What it is, what it was when it was last measured, and the ratio; above 1 is slower or larger.
    """
    then: dict[str, tuple[float, str]] = {}
    for each in earlier:
        if _kind(each) == _kind(entry):
            then |= {name: (value, each["when"][:10]) for name, value in figures(each).items() if value > 0}
    now = {name: value for name, value in figures(entry).items() if name in then}
    width = max(map(len, now), default=0)
    lines = []
    for name, value in now.items():
        old, when = then[name]
        lines.append(f"{name:{width}}  {value:10.4g}  was {old:10.4g} on {when}  ratio {value / old:.2f}")
    return lines


def figures(entry: Entry) -> dict[str, float]:
    """The figures that tell a slowdown, by name: less is better in all of them."""
    found: dict[str, float] = {}
    for row in entry.get("steps", []):
        found[f"step of {_who(row)}, floors"] = row["ratio"]
        found[f"step of {_who(row)}, ms"] = row["step_ms"]
    for row in entry.get("streams", []):
        found[f"{_who(row)}, {row['tasks']} tasks, seconds"] = row["seconds"]
        if row["peak_bytes"] is not None:
            found[f"{_who(row)}, {row['tasks']} tasks, peak MiB"] = row["peak_bytes"] / 2**20
    for row in entry.get("seeds", []):
        found[f"{_who(row)}, {row['seeds']} seeds, ms a step of one"] = 1e3 / row["steps_per_second"]
    for row in entry.get("growth", []):
        found[f"step of {_who(row)} after {row['tasks']} tasks, ms"] = row["step_ms"]
        found[f"state of {_who(row)} after {row['tasks']} tasks, MiB"] = row["state_bytes"] / 2**20
    return found


def _who(row: Entry) -> str:
    return f"{row['learner']} on {row['stream']}"


def _kind(entry: Entry) -> tuple[object, ...]:
    made_with = entry["environment"]
    return made_with["device"].partition(":")[0], made_with["device_name"], made_with["threads"]
