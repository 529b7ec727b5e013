"""HTTP routes: one module per resource, each with a `router`."""
