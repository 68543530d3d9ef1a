"""Tests mirror the package. A package of its own name, because others install one called `tests` too."""
