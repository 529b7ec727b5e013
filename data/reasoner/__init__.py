"""The built-in reasoner: a tiny language model, trained here, that thinks, errs, re-checks and over-checks.

It is a test bed, not a product. This package imports no torch; only `model` and `train` do.
"""
