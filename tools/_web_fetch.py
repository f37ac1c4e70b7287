"""Fetch web pages within limits of time, size and addresses, and read them in a process."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import socket
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urljoin, urlsplit

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from ..commander.errors import MissingExtra, ToolError
from ..commander.process import end_process, start_process
from ._web_charset import page_codec
from .toolkits import import_extra

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Address", "Fetched", "Fetcher", "is_public", "read_page"]

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

USER_AGENT = "Mozilla/5.0 (compatible; anabranch)"
MAX_REDIRECTS = 5
MAX_URL_CHARS = 8000
CHUNK_BYTES = 2**16
CHARSET_PARAMETER = re.compile(r""";\s{0,9}charset\s{0,9}=\s{0,9}["']?([^\s;"']+)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A response: `url` is the final address, and `cut` is True if the body was longer.

    `charset` is the label in the header, even if no such encoding exists.
    """

    url: str
    content_type: str
    charset: str | None
    body: bytes
    cut: bool = False

    @property
    def codec(self) -> str:
        """The codec to decode the body with, by the web's standard."""
        return page_codec(self.body, self.charset)

    @property
    def text(self) -> str:
        """The body as text; invalid bytes are replaced."""
        return self.body.decode(self.codec, "replace").removeprefix("\ufeff")


class Fetcher:
    """Makes requests, each on a new connection that is closed after it.

    `timeout` is in seconds for a request with its redirects. A body is read up to `max_bytes` after
    decompression. Addresses are checked when the socket is created, so neither a changed DNS answer
    nor a redirect avoids the check. `allow_private` is True, or lists the allowed networks
    ("127.0.0.1", "10.0.0.0/8").
    """

    def __init__(
        self,
        *,
        timeout: float = 20,
        max_bytes: int = 2 * 2**20,
        allow_private: bool | Sequence[str] = False,
        user_agent: str = USER_AGENT,
    ) -> None:
        self.timeout = timeout
        self.max_bytes = max_bytes
        self.user_agent = user_agent
        self._allow_all = allow_private is True
        allowed = () if isinstance(allow_private, bool) else allow_private
        self._allowed: Networks = [ipaddress.ip_network(each) for each in allowed]

    async def get(self, url: str, *, accept: Callable[[str], bool] = lambda _: True) -> Fetched:
        """Fetch a page at an untrusted address, and follow redirects.

        `accept` gets the content type before the body is read. Raises `ToolError`.
        """
        return await self._fetch("GET", url, accept=accept, guarded=not self._allow_all)

    async def ask(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        json: object = None,
    ) -> Fetched:
        """Send a request to a server that the application chose, without redirects.

        Raises `ToolError`.
        """
        more = {"params": params, "headers": headers, "data": data, "json": json}
        return await self._fetch(method, url, guarded=False, redirects=0, **more)

    async def _fetch(self, method: str, url: str, *, guarded: bool, **more: Any) -> Fetched:
        http: Any = await import_extra("aiohttp", "the web tools", "web")

        def open_public(info: tuple[Any, ...]) -> socket.socket:
            family, kind, protocol, _, address = info
            host = ipaddress.ip_address(str(address[0]).partition("%")[0])
            if not is_public(host) and not any(host in network for network in self._allowed):
                raise PermissionError(f"{host} is a private address, which is not allowed")
            return socket.socket(family, kind, protocol)

        connector = http.TCPConnector(
            socket_factory=open_public if guarded else None,
            use_dns_cache=False,
            limit=0,
            force_close=True,
        )
        session = http.ClientSession(
            connector=connector,
            cookie_jar=http.DummyCookieJar(),
            headers={"User-Agent": self.user_agent, "Accept-Encoding": "gzip, deflate"},
            auto_decompress=False,  # `_Inflater` bounds the output instead
            trust_env=False,  # a proxy would skip the check of addresses
            timeout=http.ClientTimeout(total=None),  # `timeout` covers all redirects together
        )
        try:
            async with session, asyncio.timeout(self.timeout):
                return await self._follow(session, method, url, **more)
        except TimeoutError:
            raise ToolError(f"{_host(url)} did not answer within {self.timeout:g} s") from None
        except http.ClientConnectorError as error:
            raise ToolError(f"cannot connect to {error.host}: {error.os_error}") from None
        except (http.ClientError, ValueError, OSError) as error:
            # Omit an error text that contains the complete address: it may have a key.
            message = getattr(error, "message", "" if hasattr(error, "url") else str(error))
            detail = f"{type(error).__name__}: {message:.200}" if message else type(error).__name__
            raise ToolError(f"fetching from {_host(url)} failed: {detail}") from None

    async def _follow(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        *,
        accept: Callable[[str], bool] = lambda _: True,
        redirects: int = MAX_REDIRECTS,
        **more: Any,
    ) -> Fetched:
        for _ in range(redirects + 1):
            if len(url) > MAX_URL_CHARS:
                raise ToolError(
                    f"the address has {len(url)} characters; {MAX_URL_CHARS} are allowed"
                )
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ToolError(f"the address must be http or https, not {url!r:.200}")
            async with session.request(method, url, allow_redirects=False, **more) as response:
                location = response.headers.get("Location")
                if redirects and location and response.status in (301, 302, 303, 307, 308):
                    url = urljoin(str(response.url), location)
                    continue
                if response.status != 200:
                    status = f"{response.status} {response.reason or ''}".rstrip()
                    wait = " (too many requests: wait)" if response.status == 429 else ""
                    raise ToolError(f"{_host(str(response.url))} answered {status}{wait}")
                # aiohttp's own parser takes a second for some headers.
                header = response.headers.get("Content-Type", "")
                kind = header.partition(";")[0].strip().lower() or "application/octet-stream"
                charset = match[1] if (match := CHARSET_PARAMETER.search(header)) else None
                if not accept(kind):
                    raise ToolError(f"this is {kind}, which cannot be read as text")
                body = bytearray()
                inflater = _Inflater(response.headers.get("Content-Encoding", ""))
                async for piece in response.content.iter_chunked(CHUNK_BYTES):
                    body += inflater.feed(piece, self.max_bytes + 1 - len(body))
                    if inflater.ended or len(body) > self.max_bytes:
                        break
                else:
                    inflater.end()
                cut = len(body) > self.max_bytes
                content = bytes(body[: self.max_bytes])
                return Fetched(str(response.url), kind, charset, content, cut)
        raise ToolError(f"{_host(url)} redirects more than {redirects} times")


class _Inflater:
    """Decompresses a body by its header, up to a number of bytes."""

    def __init__(self, coding: str) -> None:
        self._coding = coding.strip().lower()
        if self._coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError(f"the answer is compressed as {coding:.40}, which was not requested")
        self._decompressor: Any = None

    @property
    def ended(self) -> bool:
        """Whether the compressed data is complete; later bytes are ignored."""
        return self._decompressor is not None and self._decompressor.eof

    def feed(self, piece: bytes, max_bytes: int) -> bytes:
        """Return `piece` decompressed to at most `max_bytes` bytes; unchanged if not compressed."""
        if self._coding in ("", "identity"):
            return piece
        if self._decompressor is None:
            # "deflate" means zlib's format, but some servers omit its two header bytes.
            bare = self._coding == "deflate" and piece[0] & 0xF != 8
            self._decompressor = zlib.decompressobj(
                -zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32
            )
        try:
            return self._decompressor.decompress(piece, max_bytes)
        except zlib.error as error:
            raise ToolError(f"the answer is not valid {self._coding}: {error}") from None

    def end(self) -> None:
        """Raise `ToolError` if the body ended before its compressed data."""
        if self._decompressor is not None and not self._decompressor.eof:
            raise ToolError(f"the answer is incomplete: its {self._coding} data has no end")


def _host(url: str) -> str:
    """Return the host of an address, whose other parts may contain a key."""
    try:
        return urlsplit(url).hostname or "the address"
    except ValueError:
        return "the address"


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# IANA's special-purpose registries, because the table of `ipaddress` depends on the version of
# Python. Exceptions inside 192.0.0.0/24 and 2001::/23 are left out, since they have no web pages.
# Azure's 168.63.129.16 is added.
NON_PUBLIC_V4 = [
    ipaddress.IPv4Network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # includes 100.100.100.200, Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's services for its own machines
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",  # includes 192.0.0.192, Oracle's metadata
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
GLOBAL_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
NON_PUBLIC_V6 = [
    ipaddress.IPv6Network(each)
    for each in ("2001::/23", "2001:db8::/32", "3fff::/20")
    # The first one includes Teredo, ORCHID and benchmarking.
]
# Prefixes of addresses that embed an IPv4 address: ::ffff:0:0/96, 64:ff9b::/96, 2002::/16, and the
# 32 bits before it in ISATAP, without the bit for "globally unique".
MAPPED_PREFIX = 0xFFFF
NAT64_PREFIX = 0x64FF9B << 64
SIX_TO_FOUR_PREFIX = 0x2002
ISATAP_ID = 0x5EFE


def is_public(address: Address) -> bool:
    """Return whether an address belongs to the public internet.

    An address that embeds an IPv4 address (mapped, NAT64, 6to4, ISATAP) is public only if that one
    is.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in NON_PUBLIC_V4)
    bits = int(address)
    head = bits >> 32
    embedded = (
        [bits] if head in (MAPPED_PREFIX, NAT64_PREFIX) or head & 0xFDFFFFFF == ISATAP_ID else []
    )
    if bits >> 112 == SIX_TO_FOUR_PREFIX:
        embedded.append(bits >> 80)
    if not all(is_public(ipaddress.IPv4Address(each & 0xFFFFFFFF)) for each in embedded):
        return False
    if head in (MAPPED_PREFIX, NAT64_PREFIX):
        return True
    return address in GLOBAL_UNICAST_V6 and not any(address in network for network in NON_PUBLIC_V6)


# An article also has the page's address and title, so it may be longer than the page.
MAX_ADDED_CHARS = 10_000
READER_SCRIPT = Path(__file__).with_name("_web_main.py")
# Readers of one event loop at once: each may use `_web_main.MEMORY_BYTES`.
MAX_READERS = max(4, os.cpu_count() or 1)
_reader_slots: RunVar[CapacityLimiter] = RunVar("pages_read_at_once")


async def read_page(
    page: Fetched, wanted: Literal["text", "article", "hits"], timeout: float, **options: Any
) -> Any:
    """Return the result of `_web_main` for a page.

    A separate process decodes and parses, because some pages take minutes or all memory. After
    `timeout` seconds, which include waiting for a free reader, this raises `ToolError`. The process
    is killed then, and when this is cancelled.
    """
    request = {"wanted": wanted, "url": page.url, "codec": page.codec, "seconds": timeout}
    head = (
        json.dumps(request | {"max_chars": len(page.body) + MAX_ADDED_CHARS} | options).encode()
        + b"\n"
    )
    try:
        slots = _reader_slots.get()
    except LookupError:
        _reader_slots.set(slots := CapacityLimiter(MAX_READERS))
    try:
        async with asyncio.timeout(timeout), slots:
            process = await start_process(
                *(sys.executable, "-P", str(READER_SCRIPT)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                answer = json.loads((await process.communicate(head + page.body))[0])
            finally:
                await end_process(process)
    except TimeoutError:
        raise ToolError(f"reading the page took more than {timeout:g} s") from None
    except (OSError, ValueError):
        raise ToolError("the page cannot be read: it may be too large or malformed") from None
    if "missing" in answer:
        raise MissingExtra("the web tools", "web") from ImportError(answer["missing"])
    return answer["found"]
