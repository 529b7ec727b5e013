"""OpenAI's Responses API on top of the chat pipeline.

`schema` reads a request, `items` turns its input into messages, `request` makes a chat request of it,
`output` makes typed items and events of what is generated, `shape` the response around them, `store` keeps
responses.
"""
