"""Tries out a server and tells what is on and what is not."""
