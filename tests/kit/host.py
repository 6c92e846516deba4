"""``python -m tests.kit.host NAME COMMAND…``: become a command on a host of that name, in a namespace."""

import ctypes
import os
import socket
import sys

CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000


def main(name: str, *command: str) -> None:
    flags = CLONE_NEWUTS if os.geteuid() == 0 else CLONE_NEWUTS | CLONE_NEWUSER
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        sys.exit(f"This system lets nobody have a host name of their own: {os.strerror(ctypes.get_errno())}.")
    socket.sethostname(name)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
