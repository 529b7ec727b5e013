"""Paths and requests that are handed on untouched, byte for byte."""
