"""Imports a trainer's module, with stubs for packages that are not installed and do not belong to the trainer."""

import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
import types
import typing
import warnings
from unittest import mock


class Stub(types.ModuleType):
    __path__ = []
    __version__ = "99.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.root:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def stubbed_import(folder, name, missing=(), needed=()):
    """Stubs every package that is not installed and is not part of the trainer. `missing` are packages whose absence
    the trainer itself handles. Packages in `needed` must be installed; otherwise this raises ModuleNotFoundError."""
    sys.meta_path[:0] = [Stubs(root) for root in missing]
    sys.path.insert(0, folder)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    typing.override = getattr(typing, "override", lambda function: function)
    own = name.split(".")[0]
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            root = error.name.split(".")[0]
            if root == own or root in needed:
                raise
            sys.meta_path.insert(0, Stubs(root))
            for loaded in [each for each in sys.modules if each.split(".")[0] == own]:
                del sys.modules[loaded]
