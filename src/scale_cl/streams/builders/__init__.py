"""Builders: from arrays in memory, or folders on disk, to a stream."""
