"""A learner is compared with the tensors of its file, before it is made: its own fit, others do not."""

from __future__ import annotations

from typing import Any

import pytest

from scale_cl.engine.weightless import check_before_making
from scale_cl.errors import CheckpointError
from scale_cl.learners import registry
from tests.learners.tiny import SPLIT, new, teach


@pytest.mark.parametrize("name", registry.names())
def test_the_state_of_every_learner_fits_its_settings_also_where_units_or_layers_were_dropped(name: str) -> None:
    learner = teach(new(name, SPLIT), tasks=3, steps=2)
    check_before_making(
        lambda: new(name, SPLIT), learner.state_dict(), kind=type(learner), backbone=learner.config.backbone
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("den", {"backbone": "mlp-99999-99999"}),
        ("den", {"expansion": 10**8}),
        ("bocl", {"units": 10**8}),
        ("learn-to-grow", {"backbone": "mlp-99999-99999-256"}),
        ("learn-to-grow", {"adapter": 10**8}),
    ],
)
def test_settings_that_make_much_more_than_a_growing_network_holds_are_refused(name: str, settings: Any) -> None:
    learner = teach(new(name, SPLIT), tasks=3, steps=2)
    wanted = r"^state does not fit its settings: they make networks that are .* MiB larger$"
    with pytest.raises(CheckpointError, match=wanted):
        check_before_making(
            lambda: new(name, SPLIT, **settings), learner.state_dict(), kind=type(learner), backbone="mlp"
        )
