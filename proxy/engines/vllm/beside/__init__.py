"""What runs in the proxy, beside vLLM: requests go through, events come back, decisions may go out.

`engine` is the door; `connection` starts or reaches the server, `run` reads an answer, `subscriber` joins
events by request, `remote` decides here where that is asked for.
"""
