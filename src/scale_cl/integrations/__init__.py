"""Doors into other people's frameworks; each module needs the extra of its name and is imported by its own name."""
