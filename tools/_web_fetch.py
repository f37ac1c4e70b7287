"""Fetch over HTTP within limits: time, size, redirects, and no private address unless allowed."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urljoin, urlsplit

from ..commander.errors import ToolError
from ._extra import import_extra
from ._web_address import is_public
from ._web_charset import page_codec

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Fetched", "Fetcher"]

Networks: TypeAlias = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

USER_AGENT = "Mozilla/5.0 (compatible; anabranch)"
REDIRECTS = 5
LONGEST_URL = 8000
PIECE = 2**16
CHARSET = re.compile(r""";\s{0,9}charset\s{0,9}=\s{0,9}["']?([^\s;"']+)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came: `url` is where it came from in the end, `cut` says that there was more.

    `charset` is what the header calls it, whether or not there is such a thing.
    """

    url: str
    content_type: str
    charset: str | None
    body: bytes
    cut: bool = False

    @property
    def codec(self) -> str:
        """The codec of the web's standard to decode the body with."""
        return page_codec(self.body, self.charset)

    @property
    def text(self) -> str:
        """The body as text; what cannot be decoded is replaced."""
        return self.body.decode(self.codec, "replace").removeprefix("\ufeff")


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
        """Make a request to a server that the application has named; no redirects are followed.

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
            auto_decompress=False,  # `_Inflater` never makes more of a piece than it is asked for
            trust_env=False,  # a proxy would connect to addresses that nobody looked at
            timeout=http.ClientTimeout(total=None),  # ours holds for all redirects together
        )
        try:
            async with session, asyncio.timeout(self.timeout):
                return await self._follow(session, method, url, **more)
        except TimeoutError:
            raise ToolError(f"{_host(url)} did not answer within {self.timeout:g} s") from None
        except http.ClientConnectorError as error:
            raise ToolError(f"cannot connect to {error.host}: {error.os_error}") from None
        except (http.ClientError, ValueError, OSError) as error:
            # What it says, unless that is the whole address, which may hold a key.
            said = getattr(error, "message", "" if hasattr(error, "url") else str(error))
            what = f"{type(error).__name__}: {said:.200}" if said else type(error).__name__
            raise ToolError(f"fetching from {_host(url)} failed: {what}") from None

    async def _follow(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        *,
        accept: Callable[[str], bool] = lambda _: True,
        redirects: int = REDIRECTS,
        **more: Any,
    ) -> Fetched:
        for _ in range(redirects + 1):
            if len(url) > LONGEST_URL:
                raise ToolError(f"the address has {len(url)} characters; {LONGEST_URL} are allowed")
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ToolError(f"an http or https address was expected, not {url!r:.200}")
            async with session.request(method, url, allow_redirects=False, **more) as response:
                location = response.headers.get("Location")
                if redirects and location and response.status in (301, 302, 303, 307, 308):
                    url = urljoin(str(response.url), location)
                    continue
                if response.status != 200:
                    status = f"{response.status} {response.reason or ''}".rstrip()
                    wait = " (too many requests: wait)" if response.status == 429 else ""
                    raise ToolError(f"{_host(str(response.url))} answered {status}{wait}")
                # aiohttp's own reading takes a second for some headers.
                header = response.headers.get("Content-Type", "")
                kind = header.partition(";")[0].strip().lower() or "application/octet-stream"
                charset = named[1] if (named := CHARSET.search(header)) else None
                if not accept(kind):
                    raise ToolError(f"this is {kind}, which cannot be read as text")
                body = bytearray()
                inflater = _Inflater(response.headers.get("Content-Encoding", ""))
                async for piece in response.content.iter_chunked(PIECE):
                    body += inflater.feed(piece, self.max_bytes + 1 - len(body))
                    if inflater.ended or len(body) > self.max_bytes:
                        break
                else:
                    inflater.end()
                cut = len(body) > self.max_bytes
                whole = bytes(body[: self.max_bytes])
                return Fetched(str(response.url), kind, charset, whole, cut)
        raise ToolError(f"{_host(url)} redirects more than {redirects} times")


class _Inflater:
    """Undoes the compression that a header names, never beyond what is asked for."""

    def __init__(self, coding: str) -> None:
        self._coding = coding.strip().lower()
        if self._coding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError(f"the answer came compressed as {coding:.40}, which was not asked for")
        self._inside: Any = None

    @property
    def ended(self) -> bool:
        """Whether the compressed data has ended; what follows is of no use."""
        return self._inside is not None and self._inside.eof

    def feed(self, piece: bytes, most: int) -> bytes:
        """Return what `piece` stands for, up to `most` bytes if it is compressed."""
        if self._coding in ("", "identity"):
            return piece
        if self._inside is None:
            # "deflate" is zlib's format, but some servers leave its two first bytes out.
            bare = self._coding == "deflate" and piece[0] & 0xF != 8
            self._inside = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)
        try:
            return self._inside.decompress(piece, most)
        except zlib.error as error:
            raise ToolError(f"the answer is not the {self._coding} that it says: {error}") from None

    def end(self) -> None:
        """Raise `ToolError` if the answer stopped before its compressed data did."""
        if self._inside is not None and not self._inside.eof:
            raise ToolError(f"the answer broke off: its {self._coding} data has no end")


def _host(url: str) -> str:
    """Return what may be shown of an address: it may hold a key."""
    try:
        return urlsplit(url).hostname or "the address"
    except ValueError:
        return "the address"
