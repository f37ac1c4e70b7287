"""Fetch over HTTP within limits: time, size, redirects, and no private address unless allowed."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urljoin, urlsplit

from ..commander._errors import ToolError
from ._extra import import_extra

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Fetched", "Fetcher", "is_public"]

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

USER_AGENT = "Mozilla/5.0 (compatible; anabranch)"
REDIRECTS = 5
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came: `url` is where it came from in the end, `cut` says that there was more."""

    url: str
    content_type: str
    charset: str | None
    body: bytes
    cut: bool = False

    @property
    def text(self) -> str:
        """The body as text; what cannot be decoded is replaced."""
        try:
            return self.body.decode(self.charset or "utf-8", "replace")
        except LookupError:  # a charset that nobody knows
            return self.body.decode("utf-8", "replace")


class Fetcher:
    """Makes requests, each with a connection of its own, so nothing stays open.

    `timeout` is in seconds for a whole request, redirects included; a body is read up to
    `max_bytes` after decompression. Every address is looked at when the connection to it is made,
    so neither a name that resolves differently the second time nor a redirect gets around it.
    `allow_private` is True, or the networks that are allowed ("127.0.0.1", "10.0.0.0/8").
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
        self._anywhere = allow_private is True
        allowed = () if isinstance(allow_private, bool) else allow_private
        self._allowed: Networks = [ipaddress.ip_network(each) for each in allowed]

    async def get(self, url: str, *, accept: Callable[[str], bool] = lambda _: True) -> Fetched:
        """Fetch a page that somebody else named, redirects followed.

        `accept` is asked about the content type before the body is read. Raises `ToolError`.
        """
        return await self._fetch("GET", url, accept=accept, guarded=not self._anywhere)

    async def ask(self, method: str, url: str, **options: Any) -> Fetched:
        """Make a request to a server that the application has named; no redirects are followed.

        `options` are aiohttp's (`params`, `headers`, `json`, `data`). Raises `ToolError`.
        """
        return await self._fetch(method, url, guarded=False, redirects=0, **options)

    async def _fetch(self, method: str, url: str, *, guarded: bool, **options: Any) -> Fetched:
        http: Any = await import_extra("aiohttp", "the web tools", "web")
        connector = http.TCPConnector(
            socket_factory=self._guarded_socket if guarded else None,
            use_dns_cache=False,
            limit=0,
            force_close=True,
        )
        session = http.ClientSession(
            connector=connector,
            cookie_jar=http.DummyCookieJar(),
            headers={"User-Agent": self.user_agent},
            timeout=http.ClientTimeout(total=None),  # ours holds for all redirects together
        )
        try:
            async with session, asyncio.timeout(self.timeout):
                return await self._follow(session, method, url, **options)
        except TimeoutError:
            raise ToolError(f"{_host(url)} did not answer within {self.timeout:g} s") from None
        except http.ClientConnectorError as error:
            raise ToolError(f"cannot connect to {error.host}: {error.os_error}") from None
        except (http.ClientError, ValueError, OSError) as error:
            raise ToolError(f"fetching from {_host(url)} failed: {_said(error)}") from None

    async def _follow(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        *,
        accept: Callable[[str], bool] = lambda _: True,
        redirects: int = REDIRECTS,
        **options: Any,
    ) -> Fetched:
        for _ in range(redirects + 1):
            _check_url(url)
            async with session.request(method, url, allow_redirects=False, **options) as response:
                location = response.headers.get("Location")
                if (
                    not redirects
                    or response.status not in (301, 302, 303, 307, 308)
                    or not location
                ):
                    return await self._read(response, accept)
                url = urljoin(str(response.url), location)
        raise ToolError(f"{_host(url)} redirects more than {redirects} times")

    async def _read(
        self, response: aiohttp.ClientResponse, accept: Callable[[str], bool]
    ) -> Fetched:
        if response.status != 200:
            raise ToolError(f"{_host(str(response.url))} answered {_status(response)}")
        if not accept(response.content_type):
            raise ToolError(f"this is {response.content_type}, which cannot be read as text")
        body = bytearray()
        async for piece in response.content.iter_chunked(2**16):
            body += piece
            if len(body) > self.max_bytes:
                break
        return Fetched(
            str(response.url),
            response.content_type,
            response.charset,
            bytes(body[: self.max_bytes]),
            len(body) > self.max_bytes,
        )

    def _guarded_socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = info
        host = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if not is_public(host) and not any(host in network for network in self._allowed):
            raise PermissionError(f"{host} is a private address, which is not allowed")
        return socket.socket(family, kind, protocol)


def is_public(address: Address) -> bool:
    """Tell whether an address is one of the open internet, also where it wraps another."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError(f"an http or https address was expected, not {url!r:.200}")


def _host(url: str) -> str:
    """Return what may be shown of an address: it may hold a key."""
    try:
        return urlsplit(url).hostname or "the address"
    except ValueError:
        return "the address"


def _status(response: aiohttp.ClientResponse) -> str:
    what = " (too many requests: wait)" if response.status == 429 else ""
    return f"{response.status} {response.reason or ''}".rstrip() + what


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
