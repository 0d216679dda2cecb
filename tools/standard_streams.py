"""Standard input, output and error where some are closed or cannot be written."""

import os
import sys


def open_standard_descriptors():
    """Opens the null device at each of 0, 1 and 2 that is closed, as daemons leave them. The next file to be opened would
    get that number otherwise, and Python has no sys.stdout and sys.stderr then."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))


def discard(stream):
    """Lets a standard stream that cannot be written go nowhere: Python would fail anew as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(text, end="\n"):
    """Writes to standard error. A job goes on where nobody can hear of it."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)
