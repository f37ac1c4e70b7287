"""Which addresses are of the open internet, also where one wraps another."""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

__all__ = ["Address", "is_public"]

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# A table of our own, because the one of `ipaddress` is as old as the Python that runs. It is that
# of IANA's special-purpose registries, without their exceptions where no page can be (inside
# 192.0.0.0/24 and 2001::/23), and the one address of a cloud's that looks like any other.
CLOSED = [
    ipaddress.IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers; 100.100.100.200 is Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's own services, seen from its machines
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",  # 192.0.0.192 is Oracle's metadata
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
CLOSED_6 = [
    ipaddress.IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "3fff::/20")
]  # the first holds Teredo, ORCHID and benchmarking
MAPPED = 0xFFFF  # the first 96 bits of ::ffff:0:0/96
NAT64 = 0x64FF9B << 64  # those of 64:ff9b::/96
SIX_TO_FOUR = 0x2002  # the first 16 bits
ISATAP = 0x5EFE  # the 32 bits before the IPv4 address, but for the one that says "unique"


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the open internet.

    One that carries an IPv4 address (mapped, NAT64, 6to4, ISATAP) is so only if that one is.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in CLOSED)
    bits = int(address)
    head = bits >> 32
    carried = [bits] if head in (MAPPED, NAT64) or head & 0xFDFFFFFF == ISATAP else []
    if bits >> 112 == SIX_TO_FOUR:
        carried.append(bits >> 80)
    if not all(is_public(ipaddress.IPv4Address(each & 0xFFFFFFFF)) for each in carried):
        return False
    if head in (MAPPED, NAT64):
        return True
    return address in GLOBAL_UNICAST and not any(address in network for network in CLOSED_6)
