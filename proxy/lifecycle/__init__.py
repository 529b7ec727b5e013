"""How the process and its requests live: serving, workers, places, time limits, disconnects, drain."""
