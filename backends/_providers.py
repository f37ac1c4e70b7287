"""`connect`: from a name such as `openai:gpt-5` to a backend.

To add a hosted provider with chat completions, add a row to `HOSTED_PROVIDERS`. To add another kind
of backend, add a function beside `_local` and its row to `_PROVIDERS`. Other packages, such as
`ray:` of the cluster, register an entry point in the group `anabranch.providers`: see
docs/backends.md, "A backend of your own".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pydantic import SecretStr

from ..commander.errors import ConfigurationError
from ..commander.plugins import find_plugin, plugin_names
from ..messages import OutputMode
from ._address import (
    header_secrets,
    hide_secrets,
    is_address,
    secrets_of,
    with_scheme,
)
from ._backend import Backend, BackendFactory

__all__ = ["HOSTED_PROVIDERS", "HostedProvider", "connect", "hosted_provider"]


@dataclass(frozen=True, slots=True)
class HostedProvider:
    """A service with chat completions: its address, its variables, its names of options.

    `renamed` maps our options to its own, `omitted` are options that it rejects.
    `continuation_fields` are added to the message that the reply continues; None if it cannot.
    `output_modes` are as in `Backend`; models whose names begin with one of `models_without_schema`
    do not take a JSON schema.
    """

    name: str
    base_url: str
    key_variable: str
    base_url_variable: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    omitted: frozenset[str] = frozenset()
    continuation_fields: Mapping[str, Any] | None = None
    output_modes: tuple[OutputMode, ...] = ("schema", "tool", "text")
    models_without_schema: tuple[str, ...] = ()

    def modes_of(self, model: str) -> tuple[OutputMode, ...]:
        """Return the modes of typed output that `model` knows, the best first."""
        if model == "gpt-4" or model.startswith(self.models_without_schema):
            return tuple(mode for mode in self.output_modes if mode != "schema")
        return self.output_modes


HOSTED_PROVIDERS = (
    HostedProvider(
        "openai",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        renamed={"max_tokens": "max_completion_tokens"},
        models_without_schema=(
            *("gpt-3.5", "gpt-4-", "gpt-4o-2024-05-13", "o1-preview", "o1-mini"),
        ),
    ),
    HostedProvider(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        renamed={"seed": "random_seed"},
        omitted=frozenset({"stream_options"}),  # it always sends the usage
        continuation_fields={"prefix": True},
        models_without_schema=("codestral-mamba",),
    ),
    HostedProvider(
        "groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        continuation_fields={},
        # Only some of its models take a schema, and none while it streams.
        output_modes=("tool", "text"),
    ),
)
_ENTRY_POINT_GROUP = "anabranch.providers"


class Provider(Protocol):
    """Makes a backend from the text after the colon, "" for none. A `Backend` class is one.

    `settings` are those of `connect`, with `base_url` and `api_key` if given.
    """

    def __call__(self, name: str, /, **settings: Any) -> Backend:
        """Raise `ConfigurationError` for a wrong name or setting."""
        ...


def connect(
    spec: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | SecretStr | None = None,
    **settings: Any,
) -> Backend:
    """Return the backend for `spec`. It opens nothing before it is entered or used.

        backend = connect("openai:gpt-5", temperature=0, limits=Limits(concurrency=4))

    - `"local"`, `"local:NAME"`: a small model in this process
    - `"openai:MODEL"`, `"mistral:MODEL"`, `"groq:MODEL"`: hosted, with a key
    - `"http://HOST/v1"` or https, with `model=`: any server with chat completions
    - `"vllm:MODEL"`: the vLLM engine in this process
    - `"cassette:FILE"`: recorded replies; with `record=backend`, records them
    - `"ray:NAME"`: an engine that `anabranch.cluster.serve` has put on a Ray cluster
    - prefixes that installed packages register

    `settings` are default options with the names of chat completions (`temperature`, `top_p`,
    `top_k`, `stop`, `max_tokens`, `seed`; in `extra` those that only the server knows). Every model
    takes `timeouts`, `retries`, `limits`, `breaker`, `resume`, `count_tokens` (its tokenizer, for
    estimates) and `formats` (of calls in its text). A server's address also takes `headers`,
    `proxy`, `ssl`, `unix_socket` and `session`: see docs/backends-servers.md. The backend can be
    sent to another process, where it is made again and finds its key in the environment, unless its
    key was passed here. Raises `ConfigurationError` and `MissingExtra`, which say what to do.
    """
    for argument, value in ("spec", spec), ("model", model or ""), ("base_url", base_url or ""):
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise ConfigurationError(f"{argument} must be text, not {type(value).__name__}")
    spec = spec.strip()
    server = {"base_url": base_url, "api_key": api_key}
    given = settings | {name: value for name, value in server.items() if value is not None}
    prefix, _, name = spec.partition(":")
    provider: Provider | None
    if is_address(spec):
        from ._http import HttpBackend

        if base_url is not None:
            raise ConfigurationError("pass the server's address once: as the spec or as base_url")
        if not model:
            raise ConfigurationError(
                f"no model: pass one, as connect({hide_secrets(spec)!r}, model='...')"
            )
        backend: Backend = HttpBackend(model, spec, api_key, **settings)
    elif (
        provider := _PROVIDERS.get(prefix) or find_plugin(_ENTRY_POINT_GROUP, prefix)
    ) is not None:
        if not callable(provider):
            kind = type(provider).__name__
            raise ConfigurationError(f"the provider {prefix!r} is {kind}, which cannot be called")
        backend = provider(name or model or "", **given)
        if not isinstance(backend, Backend):  # pyright: ignore[reportUnnecessaryIsInstance] - others' own
            made = type(backend).__name__
            raise ConfigurationError(f"the provider {prefix!r} returned {made}, not a Backend")
    else:
        from difflib import get_close_matches

        asked, known = hide_secrets(spec), [*_PROVIDERS, *plugin_names(_ENTRY_POINT_GROUP)]
        close = get_close_matches(prefix, (*known, "http", "https"), n=1)
        meant = with_scheme(asked) or (asked.replace(prefix, close[0], 1) if close else None)
        if meant is not None:
            hint = f": did you mean {meant!r}?"
        elif "/" in asked and ":" not in asked:
            vendor, _, rest = asked.partition("/")
            example = (
                f"did you mean '{vendor}:{rest}'?" if vendor in known else "use PROVIDER:MODEL."
            )
            hint = f": {example}"
        elif asked and ":" not in asked:
            example = f"{'local' if asked.endswith('.gguf') else 'openai'}:{asked}"
            hint = f": put the provider before it, such as {example!r}."
        else:
            hint = "."
        prefixes = f"Known are {', '.join(known)}, and http(s) addresses"
        raise ConfigurationError(f"unknown model {asked!r}{hint} {prefixes}")
    address = base_url or (spec if is_address(spec) else "")
    secrets = [
        *secrets_of(address),
        *secrets_of(str(settings.get("proxy") or "")),
        *header_secrets(settings.get("headers") or {}),
    ]
    backend.factory = BackendFactory(
        partial(connect, spec, model=model, base_url=base_url, **settings),
        has_key=api_key is not None or bool(secrets),
    )
    return backend


def hosted_provider(spec: str) -> HostedProvider | None:
    """Return the service of a spec such as `openai:gpt-5`; None for any other spec.

    Raises `ConfigurationError` if the model is missing.
    """
    prefix, _, name = spec.partition(":")
    for host in HOSTED_PROVIDERS:
        if host.name == prefix:
            _need_model(prefix, name)
            return host
    return None


def _hosted(host: HostedProvider, name: str, /, **settings: Any) -> Backend:
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
        raise ConfigurationError("no file: use 'cassette:FILE'")
    _refuse_server("cassette", settings)
    return CassetteBackend(name, **settings)


_PROVIDERS: dict[str, Provider] = {
    "local": _local,
    **{host.name: partial(_hosted, host) for host in HOSTED_PROVIDERS},
    "vllm": _vllm,
    "cassette": _cassette,
}


def _need_model(prefix: str, name: str) -> None:
    if not name:
        raise ConfigurationError(f"no model: use '{prefix}:MODEL'")
    if is_address(name):
        raise ConfigurationError(
            f"{hide_secrets(name)!r} is an address, not a model:"
            " pass it as base_url=, or as the spec"
        )


def _refuse_server(prefix: str, settings: dict[str, Any]) -> None:
    if settings.keys() & {"base_url", "api_key"}:
        raise ConfigurationError(
            f"{prefix!r} runs in this process and takes no base_url or api_key"
        )
