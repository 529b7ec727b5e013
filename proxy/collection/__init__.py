"""Traces with labels made through an engine, in bulk."""
