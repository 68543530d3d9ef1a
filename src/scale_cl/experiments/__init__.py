"""Experiments: each table and figure of the paper as data, planned into runs that an engine executes."""
