"""One-machine lab: the whole system as child processes, and clients of its API."""
