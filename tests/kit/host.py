"""``python -m tests.kit.host NAME COMMAND…``: become a command on a host of that name, in a namespace.

If there is a network namespace of that name (see network.py), the host's network is that one.
"""

import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000


def main(name: str, *command: str) -> None:
    flags = CLONE_NEWUTS if os.geteuid() == 0 else CLONE_NEWUTS | CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        sys.exit(f"This system lets nobody have a host name of their own: {os.strerror(ctypes.get_errno())}.")
    socket.sethostname(name)
    network = Path("/run/netns") / name
    if network.exists():
        with network.open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                sys.exit(f"The network of {name} cannot be entered: {os.strerror(ctypes.get_errno())}.")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
