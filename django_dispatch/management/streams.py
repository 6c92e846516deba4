"""Stand-ins for standard streams that whoever started a process has closed."""

import os
import sys


def hold_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr, so that no socket of ours gets its number and is written to."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # so Python says that it was closed
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115 - for the life of the process
