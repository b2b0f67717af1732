"""`tether.py PARENT_PID PROGRAM ARG...` becomes PROGRAM, which then dies with its parent.

Run as a file by a bare interpreter, so it imports the standard library only. Elsewhere than on Linux the
kernel offers no such tie: there a killed `iwl up` leaves its children behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before the call above will never send the signal.
    if os.getppid() == parent:
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
