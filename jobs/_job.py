"""`Job`, the base class of users' jobs."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from ..commander import Node

__all__ = ["Job"]

T_co = TypeVar("T_co", covariant=True)


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class Job(Node[T_co], internal=True, queued=True):
    """A node with declared inputs, which `put_job` puts into the commander's queue.

        class Shout(Job[str]):
            text: str

            async def task(self) -> str:
                return self.text.upper()

    Its fields are dataclass fields, with defaults and `field()`, positional or keyword. A class may
    define its own `__init__` instead, which need not call `super().__init__`.

    Class attributes or keywords set defaults for the options of `put_job`:

        class Feed(Job[str], retry=Retry(attempts=3), timeout=10, policy="collect"):
            url: str

    These are `policy`, `on`, `retry` and `timeout`, and as a class keyword also `name`. An option
    given to `put_job` replaces that of the class. An attribute with an annotation is a field, not
    an option.
    """

    # A class that defines `__init__` keeps it, and so do its subclasses.
    _node_own_init = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls._node_own_init = True
        dataclasses.dataclass(eq=False, repr=False, init=not cls._node_own_init)(cls)
