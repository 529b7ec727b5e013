"""vLLM in this process, in bulk: collections and measurements without a server."""
