"""Ports of this machine."""

from __future__ import annotations

import errno
import random
import socket

from common.errors import SettingsError

#: Below the range from which Linux takes the ports of outgoing connections (32768 and up): a client that
#: keeps dialling a server that is down can be given the server's own port, and then the server cannot return.
PORTS = range(20_000, 32_000)
TRIES = 200


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Raises SettingsError for a host or a port that can never be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return False
        raise SettingsError(_why_never(error, host, port)) from None
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port that stays free to its owner over a restart. Raises SettingsError as `is_free` does."""
    for port in random.sample(PORTS, TRIES):
        if is_free(port, host):
            return port
    raise OSError(f"none of {TRIES} ports tried on {host} is free")


def _why_never(error: OSError | UnicodeError, host: str, port: int) -> str:
    match error:
        case OSError(errno=errno.EACCES):
            return f"Port {port} is not yours to use: choose another with --port (0 picks a free one)."
        case OSError(errno=errno.EADDRNOTAVAIL):
            return f"IWL_HOST: {host} is not an address of this machine"
        case socket.gaierror() | UnicodeError():
            return f"IWL_HOST: {host} cannot be resolved"
        case _:
            return f"IWL_HOST: cannot listen on {host}: {error.strerror}"
