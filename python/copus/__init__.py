"""Copus for other trainers: measures in a job that another program trains how large a batch still saves time.

The adviser and DualNoise need PyTorch, which is imported at their first use. The rest of the package does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._core import UserError, __version__

if TYPE_CHECKING:
    from .advice import Advice
    from .adviser import Adviser
    from .dual_noise import DualNoise
    from .health import AdviserWarning
    from .integrations.calibrate import calibrate

__all__ = ["Advice", "Adviser", "AdviserWarning", "DualNoise", "UserError", "__version__", "calibrate"]

_MODULES = {
    "Advice": "advice",
    "Adviser": "adviser",
    "AdviserWarning": "health",
    "DualNoise": "dual_noise",
    "calibrate": "integrations.calibrate",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'copus' has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{_MODULES[name]}", __name__)
    except (ImportError, OSError) as error:  # OSError: one of PyTorch's libraries cannot be loaded
        if (getattr(error, "name", None) or "").split(".")[0] != "torch" and _torch_loads():
            raise
        raise ImportError(f"copus.{name} needs PyTorch, which cannot be imported ({error}); to install it: "
                          "pip install torch", name="torch") from None
    return getattr(module, name)


def _torch_loads() -> bool:
    try:
        importlib.import_module("torch")
    except (ImportError, OSError):
        return False
    return True
