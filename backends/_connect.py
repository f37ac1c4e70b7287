"""From a name to a backend."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from ..commander.errors import ConfigurationError
from ._address import is_address, shown
from ._backend import Backend
from ._recipe import Recipe

__all__ = ["connect"]


def connect(
    spec: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | SecretStr | None = None,
    **settings: Any,
) -> Backend:
    """Return the backend that `spec` names; nothing is opened before it is entered or used.

    - `"local"`, `"local:NAME"`: a small model in this process
    - `"openai:MODEL"`, `"mistral:MODEL"`, `"groq:MODEL"`: hosted, with a key
    - `"http://HOST/v1"` or https, with `model=`: any server with the same wire
    - `"vllm:MODEL"`: the vLLM engine in this process
    - `"cassette:FILE"`: what was recorded there; with `record=backend`, records it
    - `"ray:NAME"`: an engine that `anabranch.cluster.serve` has put on a Ray cluster

    `settings` are the model's default options in the wire's terms (`temperature`, `top_p`,
    `top_k`, `stop`, `max_tokens`, `seed`, and whatever the server knows) and, for every model,
    `timeouts`, `retries`, `limits`, `breaker`, `resume`, and `formats`, the ways in which it writes
    calls into its text.

    A backend can be sent to another process, where it is made again and finds its key in the
    environment; one whose key was given here cannot.

    Raises `ConfigurationError`, which says what to do, and `MissingExtra`.
    """
    for name, given in ("spec", spec), ("model", model or ""), ("base_url", base_url or ""):
        if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise ConfigurationError(f"{name} is text, not {type(given).__name__}")
    backend = _made(spec, model, base_url, api_key, settings)
    arguments = {"model": model, "base_url": base_url, **settings}
    backend._recipe = Recipe(spec, arguments, key_was_given=api_key is not None)
    return backend


_Settings = dict[str, Any]
_Key = str | SecretStr | None


def _made(
    spec: str, model: str | None, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    if is_address(spec):
        return _server(spec, model, base_url, api_key, settings)
    scheme, _, name = spec.partition(":")
    make = _SCHEMES.get(scheme)
    if make is None:
        raise ConfigurationError(_unknown(spec, scheme))
    return make(scheme, name or model or "", base_url, api_key, settings)


def _server(
    spec: str, model: str | None, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    from ._http import HttpBackend

    if base_url is not None:
        raise ConfigurationError("give the server's address once: as the spec or as base_url")
    if not model:
        raise ConfigurationError(f"which model? connect({shown(spec)!r}, model='...')")
    return HttpBackend(model, spec, api_key, **settings)


def _hosted(
    scheme: str, name: str, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    from ._openai import OpenAIBackend

    _need_name(scheme, name)
    return OpenAIBackend(name, base_url, api_key, provider=scheme, **settings)


def _local(
    scheme: str, name: str, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    from ._local import LocalBackend

    _need_no_server(scheme, base_url, api_key)
    return LocalBackend(name or None, **settings)


def _vllm(
    scheme: str, name: str, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    from ._vllm import VLLMBackend

    _need_name(scheme, name)
    _need_no_server(scheme, base_url, api_key)
    return VLLMBackend(name, **settings)


def _cassette(
    scheme: str, name: str, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    from ._cassette import CassetteBackend

    if not name:
        raise ConfigurationError("which file? 'cassette:FILE'")
    _need_no_server(scheme, base_url, api_key)
    return CassetteBackend(name, **settings)


def _ray(
    scheme: str, name: str, base_url: str | None, api_key: _Key, settings: _Settings
) -> Backend:
    if not name:
        raise ConfigurationError("which engine? 'ray:NAME', as it was given to cluster.serve")
    if base_url is not None or api_key is not None:
        raise ConfigurationError("an engine on Ray is reached by its name: no base_url, no api_key")
    # By its name, since `cluster` stands above this room and imports it.
    return import_module("..cluster", __package__).RayBackend(name, **settings)


_SCHEMES: dict[str, Callable[[str, str, str | None, _Key, _Settings], Backend]] = {
    "local": _local,
    "openai": _hosted,
    "mistral": _hosted,
    "groq": _hosted,
    "vllm": _vllm,
    "cassette": _cassette,
    "ray": _ray,
}


def _need_name(scheme: str, name: str) -> None:
    if not name:
        raise ConfigurationError(f"which model? '{scheme}:MODEL'")
    if is_address(name):
        raise ConfigurationError(
            f"{shown(name)!r} is an address, not a model: give it as base_url=, or as the spec"
        )


def _need_no_server(scheme: str, base_url: str | None, api_key: _Key) -> None:
    if base_url is not None or api_key is not None:
        raise ConfigurationError(f"{scheme!r} runs in this process: it has no base_url or api_key")


def _unknown(spec: str, scheme: str) -> str:
    told = shown(spec)
    close = get_close_matches(scheme, (*_SCHEMES, "http", "https"), n=1)
    hint = f"; did you mean {told.replace(scheme, close[0], 1)!r}?" if close else ""
    known = ", ".join(_SCHEMES)
    return f"nothing is known as {told!r}{hint} There are: {known}, and http(s) addresses"
