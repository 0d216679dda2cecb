"""Copus for other trainers: how large a batch still pays, measured in a job that another program trains."""

from ._core import UserError, __version__

__all__ = ["UserError", "__version__"]
