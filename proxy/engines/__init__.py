"""Engines: what generates the tokens. One protocol (`base`), one folder or module per engine."""
