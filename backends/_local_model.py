"""A GGUF model in this process: mistralrs in our terms, blocking, for one thread alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..commander.errors import (
    BackendError,
    ConfigurationError,
    ContextTooLong,
    MissingExtra,
)
from ..messages import Usage
from ._local_options import Sampling
from ._prompt import Chat
from ._weights import Progress, ensure_weights

__all__ = ["Model", "Source"]

# Enough of the distribution to hold the labels of some tens of tools, see `Model.first_tokens`.
_TOP = 3000


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's file is: a folder or a hub's repository, and the file in it.

    The default source is the small model, fetched when it is first needed. Its own Q4_1 weights
    are slow on a CPU (16 tokens a second against 50), hence `in_situ_quant`.
    """

    folder: str | None = None
    file: str = ""
    in_situ_quant: str | None = "q8_0"

    @classmethod
    def parse(cls, spec: str | None, in_situ_quant: str | None) -> Source:
        """Read `PATH.gguf` or `ORG/REPO/FILE.gguf`; None is the small model."""
        if spec is None:
            return cls(in_situ_quant=in_situ_quant or "q8_0")
        path = Path(spec).expanduser()
        if path.is_file():
            return cls(str(path.resolve().parent), path.name, in_situ_quant)
        parts = spec.split("/")
        if path.suffix == ".gguf" and len(parts) >= 3 and parts[0] not in {"", ".", "..", "~"}:
            return cls("/".join(parts[:2]), "/".join(parts[2:]), in_situ_quant)
        raise ConfigurationError(
            f"no local model {spec!r}: name an existing GGUF file, or ORG/REPO/FILE.gguf on a hub"
        )


class Piece(NamedTuple):
    """Some text of a reply; the last piece has the reason for the end and the usage."""

    text: str
    finish_reason: str | None
    usage: Usage | None


class Model:
    """A loaded model. It must be called from one thread, one request at a time.

    Two calls at once make mistralrs fail; the interpreter is held while the weights load (1.5 s
    for the small model), and free while tokens are made.
    """

    def __init__(self, source: Source, progress: Callable[[Progress], None]) -> None:
        if source.folder is None:
            path = ensure_weights(progress)
            source = Source(str(path.parent), path.name, source.in_situ_quant)
        self._source = source
        self._runner = _load(source)
        # What has been found out about this model, for all that share it: see `_local_choice`.
        self.memory: dict[Any, Any] = {}

    def generate(self, messages: Chat, sampling: Sampling) -> Generator[Piece, None, None]:
        """Answer `messages`. Closing the iterator stops the model at the next token."""
        if sampling.seed is not None and sampling.temperature > 0:
            # mistralrs starts each runner from one fixed random state and takes no seed for a
            # request: a new runner and some tokens drawn in vain give each seed (modulo 32) a state
            # of its own.
            del self._runner
            self._runner = _load(self._source)
            waste = Sampling(max_tokens=1 + sampling.seed % 32, temperature=1.0)
            request = _request([{"role": "user", "content": "."}], waste, ignore_eos=True)
            for _ in self._runner.send_chat_completion_request(request):
                pass
        with _mapped_errors():
            chunks = self._runner.send_chat_completion_request(_request(messages, sampling))
            for chunk in chunks:
                choice, usage = chunk.choices[0], chunk.usage
                text = choice.delta.content or ""
                yield Piece(text, choice.finish_reason, None if usage is None else _usage(usage))

    def first_tokens(self, messages: Chat) -> tuple[dict[str, float], Usage]:
        """Return the log probabilities of the likeliest first tokens of a reply."""
        with _mapped_errors():
            request = _request(messages, Sampling(max_tokens=1), stream=False, logprobs=True)
            response = self._runner.send_chat_completion_request(request)
        tokens = response.choices[0].logprobs.content[0].top_logprobs
        return {str(t.bytes): t.logprob for t in tokens}, _usage(response.usage)


def _load(source: Source) -> Any:
    asked = "RUST_LOG" in os.environ  # else mistralrs's log is kept off the standard output
    os.environ.setdefault("RUST_LOG", "off")
    try:
        import mistralrs

        gguf: Any = mistralrs.Which.GGUF  # an enum to checkers, a class of its own in truth
        which = gguf(quantized_model_id=source.folder or "", quantized_filename=source.file)
        return mistralrs.Runner(which=which, in_situ_quant=source.in_situ_quant)
    except ImportError as error:
        raise MissingExtra("a model in this process", "local") from error
    except ValueError as error:
        raise ConfigurationError(f"cannot load {source.file}: {_first_line(error)}") from error
    finally:
        if not asked:
            del os.environ["RUST_LOG"]


@contextmanager
def _mapped_errors() -> Generator[None, None, None]:
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise ConfigurationError(f"the local model refuses these options: {error}") from error
    except (ValueError, RuntimeError) as error:
        text = _first_line(error)
        if "sequence length" in text:
            raise ContextTooLong(f"the conversation is too long for the model: {text}") from error
        raise BackendError(f"the local model failed: {text}") from error


def _first_line(error: Exception) -> str:
    """Return the message without the native backtrace that follows it."""
    return str(error).split("\n", 1)[0].strip()


def _request(
    messages: Chat, sampling: Sampling, *, stream: bool = True, logprobs: bool = False, **more: Any
) -> Any:
    import mistralrs

    return mistralrs.ChatCompletionRequest(
        model="default",
        messages=messages,
        stream=stream,
        logprobs=logprobs,
        top_logprobs=_TOP if logprobs else None,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        stop_seqs=list(sampling.stop) or None,
        grammar=sampling.schema,
        grammar_type="json_schema" if sampling.schema is not None else None,
        **more,
    )


def _usage(usage: Any) -> Usage:
    return Usage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
