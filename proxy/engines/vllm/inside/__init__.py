"""What runs inside vLLM's processes: hooks, scores, decisions, forced tokens, events out, commands in.

`plugin` is the entry point, `hooks` with `rows_v1` and `rows_v2` the only modules that know vLLM's runners,
`assembly` puts an engine's parts together, `runtime` is the plugin at work, `tracked` one request in it.
"""
