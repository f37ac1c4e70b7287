"""The web tools reach only addresses of the public internet, in any spelling."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.threaded_byte_server import ThreadedByteServer

from anabranch.commander import ToolError
from anabranch.tools import WebBrowser
from anabranch.tools._web_fetch import Fetcher, is_public

Four = ipaddress.IPv4Address
Six = ipaddress.IPv6Address

# IANA's registries of special-purpose addresses, of October 2025; what they call globally
# reachable inside 192.0.0.0/24 and 2001::/23 is refused as well, since no page is there.
SPECIAL_4 = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32"),
    *("192.0.0.10/32", "192.0.0.170/32", "192.0.0.171/32", "192.0.2.0/24", "192.88.99.0/24"),
    *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4"),
    *("240.0.0.0/4", "255.255.255.255/32"),
]
SPECIAL_6 = [
    *("::1/128", "::/128", "::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23"),
    *("2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32"),
    *("2001:4:112::/48", "2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32"),
    *("3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
]
# Where clouds tell their machines who they are, keys included.
METADATA = ["169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192",
            "fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe"]  # fmt: skip
# Special, but reachable by all (AS112), and some that everybody knows.
GLOBAL = ["192.31.196.1", "192.52.193.1", "192.175.48.1", "8.8.8.8", "1.1.1.1", "93.184.216.34",
          "100.63.255.255", "100.128.0.0", "168.63.129.15", "168.63.129.17", "172.15.255.255",
          "172.32.0.0", "192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
          "2620:4f:8000::1", "2001:200::1", "2001:4860:4860::8888", "2606:4700::1111"]  # fmt: skip


def inside(networks: list[str]) -> st.SearchStrategy[Any]:
    return st.sampled_from(networks).flatmap(lambda each: st.ip_addresses(network=each))


special = inside(SPECIAL_4) | st.sampled_from([Four(each) for each in METADATA if "." in each])
ordinary = st.ip_addresses(v=4).filter(
    lambda it: (
        it != Four("168.63.129.16")
        and not any(it in ipaddress.ip_network(each) for each in SPECIAL_4)
    )
)


def carriers(inner: Four, around: int) -> list[Six]:
    """Return IPv6 addresses that embed an IPv4 one; `around` has the free bits."""
    number = int(inner)
    network = 0x2606 << 112 | around & (1 << 112) - (1 << 64)
    return [
        Six(0xFFFF << 32 | number),
        Six(0x64FF9B << 96 | number),
        Six(0x2002 << 112 | number << 80 | around & 0xFFFF << 64),
        Six(network | 0x5EFE << 32 | number),
        Six(network | 0x02005EFE << 32 | number),
    ]


@given(special, st.integers(0, 2**128 - 1))
def test_no_special_address_passes_nor_what_leads_to_one(inner: Four, around: int):
    """All of IANA's, and the metadata services of clouds."""
    assert not is_public(inner)
    for carrier in carriers(inner, around):
        assert not is_public(carrier), carrier


@given(inside(SPECIAL_6) | st.sampled_from([Six(each) for each in METADATA if ":" in each]))
def test_no_special_address_of_ipv6_passes(address: Six):
    """Including Teredo and the local NAT64, whose targets are unknown here."""
    assert not is_public(address)


@given(ordinary | st.sampled_from([Four(each) for each in GLOBAL if "." in each]))
def test_every_other_address_passes_and_what_leads_to_it(inner: Four):
    """No public address is refused."""
    assert is_public(inner)
    for carrier in carriers(inner, 0):
        assert is_public(carrier), carrier


@given(inside(["2003::/18", "2400::/12", "2600::/12", "2800::/12", "2a00::/12", "2c00::/12"]))
def test_every_address_of_a_registry_passes(address: Six):
    """Those that hold no IPv4 address."""
    if int(address) >> 32 & 0xFDFFFFFF != 0x5EFE:
        assert is_public(address)


@pytest.mark.parametrize("address", GLOBAL)
def test_what_lies_beside_the_special_passes(address: str):
    """Up to the last number."""
    assert is_public(ipaddress.ip_address(address))


def _quad(write: Callable[[int], str]) -> Callable[[int], str]:
    return lambda number: ".".join(map(write, number.to_bytes(4, "big")))


SPELLINGS: list[Callable[[int], str]] = [
    str,
    hex,
    lambda number: f"0{number:o}",
    lambda number: f"0x{number:016x}",
    lambda number: f"{number >> 24}.{number & 0xFFFFFF}",
    lambda number: f"{number >> 24}.{number >> 16 & 0xFF}.{number & 0xFFFF}",
    lambda number: f"0x{number >> 24:x}.0{number & 0xFFFFFF:o}",
    _quad(hex),
    _quad(lambda byte: f"0{byte:o}"),
    _quad(lambda byte: f"000000{byte:o}"),
    lambda number: f"{Four(number)}.",
    lambda number: _quad(str)(number).translate({48 + n: 0xFF10 + n for n in range(10)}),
    lambda number: _quad(str)(number).replace(".", "\u3002"),
    lambda number: "".join(f"%{ord(each):02x}" for each in str(Four(number))),
    lambda number: f"[::ffff:{Four(number)}]",
    lambda number: f"[0:0:0:0:0:ffff:{number >> 16:x}:{number & 0xFFFF:X}]",
    lambda number: f"[64:FF9B::{Four(number)}]",
    lambda number: f"[::{Four(number)}]",
    lambda number: f"user:word@{Four(number)}",
    lambda number: f"{Four(number)}#@8.8.8.8",
    lambda number: f"{Four(number)}?@8.8.8.8",
]


async def test_no_spelling_of_a_special_address_leads_to_it(monkeypatch: pytest.MonkeyPatch):
    """No socket is created: each spelling is refused, or is not an address."""
    seed = random.randrange(2**32)
    print("seed", seed)
    draw = random.Random(seed)

    async def numbers(self: Any, host: str, port: int, **_: Any) -> Any:
        """Parse numeric addresses as the system does; do not resolve names."""
        try:
            address = socket.inet_aton(host)
        except OSError:
            raise socket.gaierror("no such name") from None
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (socket.inet_ntoa(address), port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", numbers)
    networks = [ipaddress.IPv4Network(each) for each in SPECIAL_4]
    refused = 0
    for spelling in SPELLINGS * 4:
        network = draw.choice(networks)
        number = int(network.network_address) + draw.randrange(network.num_addresses)
        with pytest.raises(ToolError) as raised:
            await Fetcher(timeout=5).get(f"http://{spelling(number)}:9/")
        said = str(raised.value)
        refused += "private address" in said
        assert "private address" in said or "no such name" in said or "failed" in said, spelling

    assert refused >= len(SPELLINGS)


@pytest.mark.parametrize("host", ["[fe80::1%25lo]", "[fe80::1%25]", "[::1%25lo]", "[fe80::1%lo]"])
async def test_a_zone_changes_nothing(host: str):
    """The address is refused, or invalid."""
    with pytest.raises(ToolError, match=r"private address|failed|cannot connect"):
        await Fetcher(timeout=5).get(f"http://{host}:9/")


async def test_the_address_that_was_looked_at_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
):
    """A name whose address changes is resolved once."""
    asked: list[str] = []
    with ThreadedByteServer(
        {"": (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nsecret", b"")}
    ) as server:
        port = int(server.url.rpartition(":")[2])

        async def moving(self: Any, host: str, port: int, **_: Any) -> Any:
            asked.append(host)
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            # The first answer is public and leads nowhere, each later one is this machine.
            return [(*kind, ("127.0.0.2" if len(asked) == 1 else "127.0.0.1", port))]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", moving)
        with pytest.raises(ToolError):
            await Fetcher(timeout=5, allow_private=["127.0.0.2"]).get(f"http://moving.test:{port}/")
        assert not server.asked
        assert asked == ["moving.test"]


async def test_a_proxy_of_the_environment_is_no_way_around(monkeypatch: pytest.MonkeyPatch):
    """Neither pages nor engines use it."""
    with ThreadedByteServer({}) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(ToolError, match="private address"):
            await WebBrowser("duckduckgo").read.run({"url": "http://10.0.0.1/"})
        with pytest.raises(ToolError, match="cannot connect"):
            await Fetcher(timeout=5).ask("GET", "http://127.0.0.1:9/")
        assert not proxy.asked
