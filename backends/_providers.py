"""From a name to a backend: `connect`, and the provider that stands before the colon.

A further hosted provider is a row of `HOSTS`; another kind of model is a function beside `_local`
and its row of `_PROVIDERS`. The cluster's `ray:` and those of other people's packages are entry
points in the group `anabranch.providers`: docs/backends.md, "A backend of your own".
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from pydantic import SecretStr

from ..commander.errors import ConfigurationError
from ..commander.plugins import find_plugin, plugin_names
from ._address import Host, header_secrets, hide_secrets, is_address, secrets_of, with_scheme
from ._backend import Backend, Recipe

__all__ = ["HOSTS", "connect"]

HOSTS = (
    Host(
        "openai",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        renamed={"max_tokens": "max_completion_tokens"},
    ),
    Host(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        renamed={"seed": "random_seed"},
        left_out=frozenset({"stream_options"}),  # it sends the usage anyway
        go_on={"prefix": True},
    ),
    Host("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", go_on={}),
)
_GROUP = "anabranch.providers"


class Provider(Protocol):
    """Makes a backend of what follows the colon, "" for nothing; a `Backend` class is one.

    `settings` are those of `connect`, among them `base_url` and `api_key` if they were given.
    """

    def __call__(self, name: str, /, **settings: Any) -> Backend:
        """Raise `ConfigurationError` for a name or settings of which no backend can be made."""
        ...


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
    - whatever installed packages register

    `settings` are the model's default options in the wire's terms (`temperature`, `top_p`,
    `top_k`, `stop`, `max_tokens`, `seed`; in `extra` what only the server knows) and, for every
    model, `timeouts`, `retries`, `limits`, `breaker`, `resume`, `count_tokens`, its tokenizer where
    tokens are estimated, and `formats`, the ways in which it writes calls into its text. A server's
    address also takes `headers`, `proxy`, `ssl`, `unix_socket` and `session`: see
    docs/backends-servers.md. A backend can be sent to another process, where it is made again and
    finds its key in the environment; one whose key was given here cannot. Raises
    `ConfigurationError`, which says what to do, and `MissingExtra`.
    """
    for argument, value in ("spec", spec), ("model", model or ""), ("base_url", base_url or ""):
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise ConfigurationError(f"{argument} is text, not {type(value).__name__}")
    server = {"base_url": base_url, "api_key": api_key}
    given = settings | {name: value for name, value in server.items() if value is not None}
    prefix, _, name = spec.partition(":")
    provider: Provider | None
    if is_address(spec):
        from ._http import HttpBackend

        if base_url is not None:
            raise ConfigurationError("give the server's address once: as the spec or as base_url")
        if not model:
            raise ConfigurationError(f"which model? connect({hide_secrets(spec)!r}, model='...')")
        backend: Backend = HttpBackend(model, spec, api_key, **settings)
    elif (provider := _PROVIDERS.get(prefix) or find_plugin(_GROUP, prefix)) is not None:
        if not callable(provider):
            kind = type(provider).__name__
            raise ConfigurationError(f"the provider {prefix!r} is {kind}, and cannot be called")
        backend = provider(name or model or "", **given)
        if not isinstance(backend, Backend):  # pyright: ignore[reportUnnecessaryIsInstance] - others' own
            made = type(backend).__name__
            raise ConfigurationError(f"the provider {prefix!r} made {made}, not a Backend")
    else:
        from difflib import get_close_matches

        asked, known = hide_secrets(spec), [*_PROVIDERS, *plugin_names(_GROUP)]
        close = get_close_matches(prefix, (*known, "http", "https"), n=1)
        meant = with_scheme(asked) or (asked.replace(prefix, close[0], 1) if close else None)
        hint = "." if meant is None else f": did you mean {meant!r}?"
        there = f"There are: {', '.join(known)}, and http(s) addresses"
        raise ConfigurationError(f"unknown model {asked!r}{hint} {there}")
    address = base_url or (spec if is_address(spec) else "")
    secrets = [
        *secrets_of(address),
        *secrets_of(str(settings.get("proxy") or "")),
        *header_secrets(settings.get("headers") or {}),
    ]
    backend.recipe = Recipe(
        partial(connect, spec, model=model, base_url=base_url, **settings),
        has_key=api_key is not None or bool(secrets),
    )
    return backend


def _hosted(host: Host, name: str, /, **settings: Any) -> Backend:
    from ._openai import OpenAIBackend

    _need_model(host.name, name)
    return OpenAIBackend(name, host, **settings)


def _local(name: str, /, **settings: Any) -> Backend:
    from ._local import LocalBackend

    _refuse_server("local", settings)
    return LocalBackend(name or None, **settings)


def _vllm(name: str, /, **settings: Any) -> Backend:
    from ._vllm import VLLMBackend

    _need_model("vllm", name)
    _refuse_server("vllm", settings)
    return VLLMBackend(name, **settings)


def _cassette(name: str, /, **settings: Any) -> Backend:
    from ._cassette import CassetteBackend

    if not name:
        raise ConfigurationError("which file? 'cassette:FILE'")
    _refuse_server("cassette", settings)
    return CassetteBackend(name, **settings)


_PROVIDERS: dict[str, Provider] = {
    "local": _local,
    **{host.name: partial(_hosted, host) for host in HOSTS},
    "vllm": _vllm,
    "cassette": _cassette,
}


def _need_model(prefix: str, name: str) -> None:
    if not name:
        raise ConfigurationError(f"which model? '{prefix}:MODEL'")
    if is_address(name):
        raise ConfigurationError(
            f"{hide_secrets(name)!r} is an address, not a model:"
            " give it as base_url=, or as the spec"
        )


def _refuse_server(prefix: str, settings: dict[str, Any]) -> None:
    if settings.keys() & {"base_url", "api_key"}:
        raise ConfigurationError(f"{prefix!r} runs in this process: it has no base_url or api_key")
