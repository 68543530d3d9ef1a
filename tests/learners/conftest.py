"""Stored logits outgrow their room within a few tasks here, as elsewhere within hundreds."""

from tests.memory.numbered_memory import little_room  # noqa: F401
