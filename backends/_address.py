"""Addresses of servers: parse them, find the secrets in them, hide those secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit

from pydantic import SecretStr

from ..commander.errors import ConfigurationError

__all__ = [
    "CHAT_PATH",
    "EMBEDDINGS_PATH",
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

# Paths of the endpoints below a server's address.
CHAT_PATH = "/chat/completions"
EMBEDDINGS_PATH = "/embeddings"

_SCHEMELESS_ADDRESS = re.compile(
    r"(?://)?(?P<host>[a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\])"
    r"(?P<port>(?::[0-9]{2,5})?)(?P<path>(?:/\S*)?)",
    re.IGNORECASE,
)
_NETLOC = re.compile(r"(?:.*@)?(?:\[[^\[\]@]+\]|[^\[\]:@]+)(?::[0-9]*)?")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_SECRET_HEADER = re.compile("auth|cookie|credential|key|password|secret|signature|token", re.I)
_MAX_SHOWN_CHARS = 200


def is_address(spec: str) -> bool:
    """Return whether `spec` is meant as the address of a server, well formed or not."""
    return re.match(r"https?:/", spec.strip(), re.IGNORECASE) is not None


def with_scheme(spec: str) -> str | None:
    """Return the address that `spec` may mean without its `http://`; None if it is not like one."""
    found = _SCHEMELESS_ADDRESS.fullmatch(spec)
    if found is None:
        return None
    host, port, path = found["host"], found["port"], found["path"].rstrip("/")
    if not (port or host.lower() == "localhost" or re.match(r"/v\d", path)):
        return None  # it may be the name of a model
    is_near = port or "." not in host or host.replace(".", "").isdigit()
    return f"{'http' if is_near else 'https'}://{host}{port}{path or '/v1'}"


def server_address(base_url: str) -> str:
    """Return `base_url` without a slash or an endpoint's name at its end.

    Raises `ConfigurationError` if it is not an http or https address.
    """
    url = _parse(base_url)
    if url is None:
        raise ConfigurationError(
            f"{hide_secrets(base_url)!r} is not the address of a server: "
            "it should look like 'http://localhost:8000/v1'"
        )
    path = url.path.rstrip("/").removesuffix(CHAT_PATH).removesuffix(EMBEDDINGS_PATH)
    return urlunsplit((url.scheme, url.netloc, path, url.query, ""))


def endpoint(base_url: str, path: str) -> str:
    """Return the address of the endpoint `path`. A query in `base_url` stays."""
    url = urlsplit(base_url)
    return urlunsplit((url.scheme, url.netloc, url.path + path, url.query, ""))


def proxy_address(proxy: str) -> str:
    """Return the address of a proxy. Its `http://` may be missing.

    Raises `ConfigurationError` if it is not an http or https address.
    """
    url = _parse(proxy if "://" in str(proxy) else f"http://{proxy}")
    if url is None:
        raise ConfigurationError(
            f"{hide_secrets(proxy)!r} is not the address of an http or https proxy;"
            " pass one, or proxy=False"
        )
    return url.geturl()


def environment_proxy(address: str) -> str | None:
    """Return the proxy that the environment sets for an address; None for this machine.

    Raises `ConfigurationError` if it is not an http or https address.
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
    """Return the values of the headers whose names suggest a secret."""
    return [SecretStr(value) for name, value in headers.items() if _SECRET_HEADER.search(name)]


def hide_secrets(address: str) -> str:
    """Return `address` without user, password and query, which may hold a key.

    The address need not be well formed. At most 200 characters of it are returned.
    """
    url = _parse(address)
    if url is not None:
        shown = urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))
    else:
        scheme, colon, rest = str(address).strip().partition(":")
        if "@" in scheme + rest:
            shown = "***" if "@" in scheme else f"{scheme}:***"
        else:
            shown = re.split("[?#]", scheme + colon + rest, maxsplit=1)[0]
    return shown if len(shown) <= _MAX_SHOWN_CHARS else shown[:_MAX_SHOWN_CHARS] + "..."


def host_of(address: str) -> str:
    """Return the host of a well-formed address, with the port if it has one."""
    return urlsplit(address).netloc.rpartition("@")[2].lower()


def has_user(address: str) -> bool:
    """Return whether an address has a user or a password, which is sent in place of a key."""
    return "@" in urlsplit(address).netloc


def secrets_of(address: str) -> list[SecretStr]:
    """Return the secrets of an address: user, password, fragment, and the values of its query.

    Each one is returned as written and decoded.
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
    """Return the parts of a well-formed address; None for one that some library would reject."""
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
        is_http = url.scheme in {"http", "https"} and url.port != 0
    except ValueError:  # from wrong brackets, port, IP address, or host name
        return None
    return url if is_http and _NETLOC.fullmatch(url.netloc) else None
