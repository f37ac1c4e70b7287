"""Addresses of servers: which are none, what in them is a secret, and what of them may be shown.

Also what is peculiar to a hosted provider's own address; the providers are in `_providers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit

from pydantic import SecretStr

from ..commander.errors import ConfigurationError

__all__ = [
    "CHAT",
    "EMBEDDINGS",
    "Host",
    "endpoint",
    "environment_proxy",
    "has_user",
    "header_secrets",
    "hide_secrets",
    "host_of",
    "is_address",
    "proxy_address",
    "secrets_of",
    "server_address",
    "with_scheme",
]

# Where a server answers, below its address.
CHAT = "/chat/completions"
EMBEDDINGS = "/embeddings"

_NO_SCHEME = re.compile(
    r"(?://)?(?P<host>[a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\])"
    r"(?P<port>(?::[0-9]{2,5})?)(?P<path>(?:/\S*)?)",
    re.IGNORECASE,
)
_NETLOC = re.compile(r"(?:.*@)?(?:\[[^\[\]@]+\]|[^\[\]:@]+)(?::[0-9]*)?")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_SECRET_HEADER = re.compile("auth|cookie|credential|key|password|secret|signature|token", re.I)
_LONGEST = 200  # characters of one that are shown


@dataclass(frozen=True, slots=True)
class Host:
    """Where a hosted provider's models are, where its key is found, how its options are named."""

    name: str
    base_url: str
    key_variable: str
    base_url_variable: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: frozenset[str] = frozenset()
    go_on: Mapping[str, Any] | None = None  # put into the message to go on after; None: it cannot


def is_address(spec: str) -> bool:
    """Say whether `spec` is meant as the address of a server, well formed or not."""
    return re.match(r"https?:/", spec.strip(), re.IGNORECASE) is not None


def with_scheme(spec: str) -> str | None:
    """Return the address that `spec` may mean without its `http://`; None if it is like none."""
    found = _NO_SCHEME.fullmatch(spec)
    if found is None:
        return None
    host, port, path = found["host"], found["port"], found["path"].rstrip("/")
    if not (port or host.lower() == "localhost" or re.match(r"/v\d", path)):
        return None  # the name of a model, perhaps
    is_near = port or "." not in host or host.replace(".", "").isdigit()
    return f"{'http' if is_near else 'https'}://{host}{port}{path or '/v1'}"


def server_address(base_url: str) -> str:
    """Return `base_url` without a slash or the name of an endpoint at its end.

    Raises `ConfigurationError` if it is not an http or https address.
    """
    url = _parse(base_url)
    if url is None:
        raise ConfigurationError(
            f"{hide_secrets(base_url)!r} is not an address of a server: "
            "it should look like 'http://localhost:8000/v1'"
        )
    path = url.path.rstrip("/").removesuffix(CHAT).removesuffix(EMBEDDINGS)
    return urlunsplit((url.scheme, url.netloc, path, url.query, ""))


def endpoint(base_url: str, path: str) -> str:
    """Return the address that requests to `path` are posted to; a query in `base_url` is kept."""
    url = urlsplit(base_url)
    return urlunsplit((url.scheme, url.netloc, url.path + path, url.query, ""))


def proxy_address(proxy: str) -> str:
    """Return the address of a proxy, which may be written without `http://`.

    Raises `ConfigurationError` if it is not an http or https one.
    """
    url = _parse(proxy if "://" in str(proxy) else f"http://{proxy}")
    if url is None:
        raise ConfigurationError(
            f"{hide_secrets(proxy)!r} is not an http or https proxy: name one, or pass proxy=False"
        )
    return url.geturl()


def environment_proxy(address: str) -> str | None:
    """Return the proxy that the environment names for an address; None for this machine's own.

    Raises `ConfigurationError` if it is not an http or https one.
    """
    url = urlsplit(address)
    host = url.hostname or ""
    with suppress(ValueError):
        if ip_address(host).is_loopback:
            return None
    if host == "localhost" or host.endswith(".localhost"):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow to import

    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    return proxy_address(proxy)


def header_secrets(headers: Mapping[str, str]) -> list[SecretStr]:
    """Return the values of the headers whose names say that they hold a secret."""
    return [SecretStr(value) for name, value in headers.items() if _SECRET_HEADER.search(name)]


def hide_secrets(address: str) -> str:
    """Return `address`, well formed or not, without what may be a key: user, password, query."""
    url = _parse(address)
    if url is not None:
        whole = urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
    else:
        scheme, colon, rest = str(address).strip().partition(":")
        if "@" in scheme + rest:
            whole = "***" if "@" in scheme else f"{scheme}:***"
        else:
            whole = re.split("[?#]", scheme + colon + rest, maxsplit=1)[0]
    return whole if len(whole) <= _LONGEST else whole[:_LONGEST] + "..."


def host_of(address: str) -> str:
    """Return the host of a well-formed address, with the port if it has one."""
    return urlsplit(address).netloc.rpartition("@")[2].lower()


def has_user(address: str) -> bool:
    """Say whether a user or a password stands in an address: it is sent in the key's place."""
    return "@" in urlsplit(address).netloc


def secrets_of(address: str) -> list[SecretStr]:
    """Return what in an address is a secret: user, password, and what its query holds.

    Each as it is written and as it is meant; what follows a `#`, which nobody is sent, too.
    """
    try:
        url = urlsplit(address)
    except ValueError:
        return []
    user = url.netloc.rpartition("@")[0]
    values = {user, unquote(user), *map(unquote, user.split(":", 1)), url.fragment}
    for pair in url.query.split("&"):
        name, equals, written = pair.partition("=")
        if "version" not in name:
            value = written if equals else name
            values |= {value, unquote(value), unquote_plus(value)}
    return [SecretStr(value) for value in sorted(values) if value]


def _parse(address: str) -> SplitResult | None:
    """Return the parts of a well-formed address; None for what some library would stumble over."""
    text = str(address).strip()
    if not text.isprintable() or " " in text:
        return None
    try:
        url = urlsplit(text)
        host = url.hostname or ""
        if ":" in host:
            ip_address(host)
        elif not _HOST.fullmatch(host.encode("idna").decode()):
            return None
        named = url.scheme in {"http", "https"} and url.port != 0
    except ValueError:  # brackets, a port, an address, a name in letters that no name can have
        return None
    return url if named and _NETLOC.fullmatch(url.netloc) else None
