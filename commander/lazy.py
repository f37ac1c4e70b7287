"""Names of a package that are imported when they are first used (PEP 562).

So a program pays for what it enters: `Job` stands beside `ChatJob`, which needs every room below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`.

    `modules` has, for each module of the package, the names that are found there, separated by
    blanks. A type checker does not look behind a `__getattr__`: the package imports the same names
    under `TYPE_CHECKING`, and calls this only where that is false.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next look finds it
        return value

    return load
