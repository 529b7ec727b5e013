"""From an HTTP request to generation requests."""
