"""The runs of the paper with the preset `paper`: what it prints for them, and the result files with these settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from scale_cl.experiments.planning import key_of
from scale_cl.experiments.result_index import identity
from scale_cl.reports import paper
from scale_cl.training.config import resolve

RESULTS = Path(__file__).parents[2] / "results"
STREAMS = {
    "pmnist": "PMNIST",
    "scifar100": "Split CIFAR-100",
    "scifar10": "Split CIFAR-10",
    "sminiimagenet": "Split mini-ImageNet",
}
OTHER_IMAGES = "compressed/scifar100-off"  # the settings are the paper's, the images are not


@dataclass(frozen=True)
class Case:
    """A run with the preset `paper`, and what the paper prints for it."""

    stream: str
    learner: str
    settings: Mapping[str, object] = field(default_factory=dict)
    label: str = ""
    printed: paper.Target | None = None

    @property
    def name(self) -> str:
        """Learner, stream and what is special."""
        return ", ".join(part for part in (self.learner, STREAMS[self.stream], self.label) if part)


MAIN = [
    Case(stream, learner, printed=paper.MAIN[stream][learner])
    for stream in STREAMS
    for learner in ("scale", "ctn", "er", "mir", "mer", "gem")
]
_OFF = {  # by the paper's letters: what is left out, and its settings
    "A": ("adversary", ("adversary",)),
    "B": ("DER++ and so replay", ("derpp",)),
    "C": ("generator", ("generator",)),
    "A and C": ("adversary and generator", ("adversary", "generator")),
}
MORE = [
    *(
        Case(stream, "scale", dict.fromkeys(off, False), f"without {part} ({letter})", printed.get(letter))
        for stream, printed in paper.ABLATION_TARGETS.items()
        for letter, (part, off) in _OFF.items()
    ),
    *(
        Case(
            stream, "scale", {"lambda1": a, "lambda2": a, "lambda3": b}, f"lambda1, 2, 3 = {a:g}, {a:g}, {b:g}", printed
        )
        for stream, points in paper.SENSITIVITY.items()
        for (a, b), printed in points.items()
        if (a, b) != (1.0, 0.03)  # which is among MAIN
    ),
    *(
        Case(stream, learner, {"memory": slots}, f"{slots} slots")
        for stream in ("scifar100", "sminiimagenet")
        for learner in ("scale", "ctn", "mer", "mir")
        for slots in (100, 150, 200)  # 50 are among MAIN
    ),
    *(
        Case(stream, learner, {"stream.class_order": "natural"}, "natural class order")
        for stream in ("scifar100", "sminiimagenet")
        for learner in ("scale", "ctn")
    ),
    *(
        Case(stream, learner, {"backbone": backbone}, backbone, paper.MAIN[stream][learner])
        for stream, backbones in {
            "pmnist": ("mlp-128-128-128", "mlp-100-100"),
            **dict.fromkeys(("scifar100", "scifar10", "sminiimagenet"), ("resnet18-relu",)),
        }.items()
        for learner in ("er", "mir", "mer", "gem")
        for backbone in backbones
    ),
]


@cache
def _files_by_settings() -> dict[str, list[tuple[Path, set[int]]]]:
    """Result files and their seeds by the identity of their settings, most seeds first; times measured alone apart."""
    found: dict[str, list[tuple[Path, set[int]]]] = {}
    wanted = {(case.stream, case.learner) for case in MAIN}
    for path in sorted(RESULTS.rglob("result.json")):
        content = json.loads(path.read_bytes())
        alone = content["environment"].get("alone") or path.parent == RESULTS / OTHER_IMAGES
        if (content["stream"], content["learner"]) in wanted and not alone:
            key = identity(content["config"], len(content["tasks"][0]))
            found.setdefault(key, []).append((path, set(content["seeds"])))
    return {key: sorted(files, key=lambda file: -len(file[1])) for key, files in found.items()}


def result_files(case: Case) -> list[Path]:
    """Files with exactly these settings, each with seeds that those before it do not have."""
    options = {name if "." in name else f"learner.{name}": value for name, value in case.settings.items()}
    config = resolve(stream=case.stream, learner=case.learner, options=options, preset="paper")
    files: list[Path] = []
    seeds: set[int] = set()
    for path, own in _files_by_settings().get(key_of(config), []):
        if not own & seeds:
            files.append(path)
            seeds |= own
    return files
