"""From an engine's events to what the client reads."""
