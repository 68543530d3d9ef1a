"""Data sets: how to read, check and download each of them."""
