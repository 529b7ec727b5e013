"""desist and vLLM: a plugin that scores and stops inside the running batch, and the engine beside it.

Two sides share `wire`, `config`, `params` and `identity` and nothing else. Inside vLLM's processes: `plugin`
(the entry point), `hooks` with `rows_v1` and `rows_v2`, `assembly`, `runtime`, `tracked`, `scoring`,
`forcing`, `processor`, `admission`, `checks`, `publisher`, `commands`. In the proxy: `engine`, `run`,
`child`, `subscriber`, `commander`, `remote`. Nothing imports vLLM at import time but `processor`.
"""
