"""Which names and addresses are this machine's: the only ones that need no `auth`."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["host_name", "is_local", "is_remote_address"]

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


def host_name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None for what is no host at all."""
    found = HOST.fullmatch(host)
    return None if found is None else found[1].strip("[]").lower()


def is_local(name: str) -> bool:
    """Whether a name leads to this machine and nowhere else, whoever answers for names."""
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def is_remote_address(address: str) -> bool:
    """Whether this is the address of another machine; what is no address at all is none."""
    found = _address(address)
    return found is not None and not found.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # ::ffff:127.0.0.1 is 127.0.0.1, as a socket for both kinds has it.
    return getattr(address, "ipv4_mapped", None) or address
