"""Data sets, one file each: how to read, check and fetch them."""
