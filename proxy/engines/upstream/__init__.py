"""The engine over any OpenAI-compatible server."""
