"""The OpenAPI document of the proxy, made from its models."""
