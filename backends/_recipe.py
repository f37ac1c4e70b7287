"""How `connect` made a backend, so that another process can make it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..commander.errors import ConfigurationError
from ._address import is_address, secrets_of
from ._backend import Backend

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True, repr=False)
class Recipe:
    """The arguments of `connect`, all but a key."""

    spec: str
    arguments: Mapping[str, Any]
    key_was_given: bool

    def travelling(self) -> tuple[Any, ...]:
        """Return what pickle needs; raise `ConfigurationError` if a secret would travel."""
        if self.key_was_given or self._address_is_secret():
            raise ConfigurationError(
                "this backend cannot be sent to another process, since its key was given by value:"
                " set the environment variable there (OPENAI_API_KEY, with base_url= for other"
                " servers) and leave out api_key, and what is secret in the address"
            )
        return _connected, (self.spec, self.arguments)

    def _address_is_secret(self) -> bool:
        address = self.arguments.get("base_url") or (self.spec if is_address(self.spec) else "")
        return bool(secrets_of(address))


def _connected(spec: str, arguments: Mapping[str, Any]) -> Backend:
    from ._connect import connect

    return connect(spec, **arguments)
