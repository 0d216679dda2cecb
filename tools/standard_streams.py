"""Standard input, output and error if some are closed or cannot be written."""

import os
import sys


def open_standard_descriptors():
    """Opens the null device for each of the descriptors 0, 1 and 2 that is closed, as in a daemon. Otherwise the next
    opened file would get that number, and Python would have no sys.stdout and sys.stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))


def discard(stream):
    """Points a standard stream that can no longer be written at the null device; otherwise Python fails a second time
    at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(text, end="\n"):
    """Writes to standard error. A job continues even if nobody can read it."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)
