"""Finds a folder for an adviser's logs that no other job has, safely if several processes start at once."""

from __future__ import annotations

import itertools
import os
import pathlib
import time

DEFAULT_FOLDER = "runs/adviser-{time}"


def folder_for(wanted: str | None) -> str | None:
    """Makes `wanted`, or a numbered folder next to it if `wanted` already has a job's logs, and returns it.

    Raises OSError if no folder can be made.
    """
    if wanted is None:
        return None
    is_new = wanted == DEFAULT_FOLDER
    name = DEFAULT_FOLDER.format(time=time.strftime("%Y%m%d-%H%M%S")) if is_new else wanted
    for number in itertools.count(1):
        folder = pathlib.Path(name if number == 1 else f"{name.rstrip(os.sep)}-{number}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
            return str(folder)
        except FileExistsError:
            # A folder that exists without a job's logs may be used if the user named it: it may be the trainer's own.
            # An existing default folder belongs to another job.
            if not is_new and folder.is_dir() and not (folder / "run.jsonl").exists():
                return str(folder)
            if not folder.is_dir():
                raise
    raise AssertionError
