"""Ports of this machine."""

from __future__ import annotations

import random
import socket

#: Below the range from which Linux takes the ports of outgoing connections (32768 and up): a client that
#: keeps dialling a server that is down can be given the server's own port, and then the server cannot return.
PORTS = range(20_000, 32_000)
TRIES = 200


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port that stays free to its owner over a restart."""
    for port in random.sample(PORTS, TRIES):
        if is_free(port, host):
            return port
    raise OSError(f"none of {TRIES} ports tried on {host} is free")
