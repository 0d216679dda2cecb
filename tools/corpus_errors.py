"""Errors of the tools that make corpora, and how their messages are printed."""

RESUMES = "the same command resumes from what is done"


class CorpusError(Exception):
    """A mistake in the user's input."""


class SetupError(CorpusError):
    """This machine lacks something, such as a Python package. A retry fails again, but finished work stays valid."""


class TransferError(CorpusError):
    """A file behind a URL was not read to its end. The same command may succeed later, so finished work is kept."""


def printable(text):
    """Returns the text with control characters as escapes, because a terminal would execute those of a file."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(text))
