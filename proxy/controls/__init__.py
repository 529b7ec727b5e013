"""What a request may say about its thinking: the fields, what their values mean, and which of them holds.

`aliases` is the one table of fields, `values` the one set of rules for values, `misplaced` says where a key
without effect belongs, `asked` reads a request, `budget` chooses, `onward` says what goes to the server
behind.
"""
