"""desist and vLLM: a plugin `inside`, the proxy's engine `beside`, and `offline` use in one process.

The sides share `wire`, `config`, `params`, `identity` and `sockets`. `processor` is the class that stands on
vLLM's command line; nothing but it imports vLLM at import time.
"""
