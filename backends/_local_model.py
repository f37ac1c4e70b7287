"""A GGUF model on mistralrs. Its calls block, and only one thread may make them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..commander.errors import (
    BackendError,
    ConfigurationError,
    ContextTooLong,
    MissingExtra,
)
from ..messages import ProgressEvent, Usage
from ..messages.text import quote
from ._local_options import Sampling
from ._request_fit import Chat
from ._weights import Progress, ensure_weights

__all__ = ["Model", "ModelFile"]

# Enough likely tokens to include the headings of some tens of tools, see `Model.first_tokens`.
_TOP_LOGPROBS = 3000
# A prompt is read in pieces of at least this size, and in at most this number of pieces, because
# the engine stores a copy of its state after each.
_MIN_PIECE_TOKENS: Final = 128
_MAX_PIECES: Final = 6
# The tokens that a template adds to each message, approximately.
_FRAME_TOKENS: Final = 5
# The engine stores the state of each prompt and never frees one, whatever `prefix_cache_n` is
# (measured with 0.9.5: 11 MB for each block of 512 tokens). At this many tokens it is loaded again.
_BLOCK_TOKENS: Final = 512
_MAX_CACHED_TOKENS: Final = 2**16


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's file, in a folder or in a repository of a hub.

    The default is the small model, fetched when it is first needed. Its Q4_1 weights are slow on a
    CPU (16 tokens a second, 50 as q8_0), hence `in_situ_quant`.
    """

    folder: str | None = None
    file: str = ""
    in_situ_quant: str | None = "q8_0"

    @classmethod
    def parse(cls, spec: str | None, in_situ_quant: str | None) -> ModelFile:
        """Return the file for `PATH.gguf` or `ORG/REPO/FILE.gguf`; None is the small model."""
        if spec is None:
            return cls(in_situ_quant=in_situ_quant or "q8_0")
        try:
            path = Path(spec).expanduser()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError):  # an impossible file name, or an unknown user
            path, is_file = Path(spec), False
        if is_file:
            return cls(str(path.resolve().parent), path.name, in_situ_quant)
        parts = spec.split("/")
        if path.suffix == ".gguf" and len(parts) >= 3 and parts[0] not in {"", ".", "..", "~"}:
            return cls("/".join(parts[:2]), "/".join(parts[2:]), in_situ_quant)
        raise ConfigurationError(
            f"no local model {quote(spec)}: it must be an existing GGUF file, or"
            " ORG/REPO/FILE.gguf on a hub"
        )


class TextChunk(NamedTuple):
    """Some text of a reply; the last one has the finish reason and the usage."""

    text: str
    finish_reason: str | None
    usage: Usage | None


class Model:
    """A loaded model, for calls from one thread, one request at a time.

    Two calls at once make mistralrs fail. It holds the interpreter while the weights load (1.5 s
    for the small model), and releases it while it makes tokens.
    """

    def __init__(self, source: ModelFile, progress: Callable[[Progress], None]) -> None:
        if source.folder is None:
            path = ensure_weights(progress)
            source = ModelFile(str(path.parent), path.name, source.in_situ_quant)
        self._file = source
        self._begin()
        # Measurements of this model, for all that share it: see `_local_choice`.
        self.memory: dict[Any, Any] = {}

    def _begin(self) -> None:
        self._runner: Any = None  # frees the old one before a second is loaded
        self._runner = _load(self._file)
        # The last prompts and replies that the engine has read. It can continue from their states.
        self._read: deque[Chat] = deque(maxlen=16)
        self._cached_tokens = 0  # a multiple of `_BLOCK_TOKENS`

    def _remember(self, messages: Chat, reply: str, usage: Usage) -> None:
        self._read.append(
            [*messages, {"role": "assistant", "content": reply}] if reply else messages
        )
        self._cached_tokens += -(-usage.total_tokens // _BLOCK_TOKENS) * _BLOCK_TOKENS

    def read(self, messages: Chat, *, whole: bool = False) -> Generator[ProgressEvent, None, None]:
        """Let the engine read a prompt in pieces, without the part that it has read already.

        Yields progress before each piece. If closed there, the engine keeps the pieces read so far,
        and the next prompt with the same beginning continues from them. Without `whole`, the last
        piece is left to the request itself. So is a prompt that the engine refuses.
        """
        if self._cached_tokens > _MAX_CACHED_TOKENS:
            self._begin()
        sizes = [_FRAME_TOKENS + len(self._tokens(message["content"])) for message in messages]
        total = sum(sizes)
        if total > (self._runner.max_sequence_length() or total):
            return  # the request itself raises
        if any(messages == known[: len(messages)] for known in self._read):
            return  # the engine reads an identical prompt from the start again
        done = max((_shared_tokens(messages, sizes, known) for known in self._read), default=0)
        piece = max(_MIN_PIECE_TOKENS, -(-total // _MAX_PIECES))
        while (left := total - done) > (0 if whole else piece):
            yield ProgressEvent("reading", done, total)
            done = total if left <= piece else done + piece
            beginning = messages if done == total else _first_messages(messages, sizes, done)
            try:
                request = _request(beginning, Sampling(max_tokens=1), stream=False)
                response = self._runner.send_chat_completion_request(request)
            except (TypeError, ValueError, RuntimeError):
                return
            self._remember(beginning, "", _usage(response.usage))
        if not whole:
            yield ProgressEvent("reading", done, total)

    def _tokens(self, text: str) -> Sequence[int]:
        return self._runner.tokenize_text(text, False, None)

    def generate(self, messages: Chat, sampling: Sampling) -> Generator[TextChunk, None, None]:
        """Answer `messages`. Closing the iterator stops the model at the next token."""
        if sampling.seed is not None and sampling.temperature > 0:
            # mistralrs starts each runner from one fixed random state and takes no seed for a
            # request. So a new runner draws and discards some tokens, which gives each seed (modulo
            # 32) a different state.
            self._begin()
            waste = Sampling(max_tokens=1 + sampling.seed % 32, temperature=1.0)
            request = _request([{"role": "user", "content": "."}], waste, ignore_eos=True)
            for _ in self._runner.send_chat_completion_request(request):
                pass
        with _mapped_errors():
            chunks = self._runner.send_chat_completion_request(_request(messages, sampling))
            reply = ""
            for chunk in chunks:
                choice, usage = chunk.choices[0], chunk.usage and _usage(chunk.usage)
                text = choice.delta.content or ""
                reply += text
                if usage is not None:
                    self._remember(messages, reply, usage)
                yield TextChunk(text, choice.finish_reason, usage)

    def first_tokens(self, messages: Chat) -> tuple[dict[str, float], Usage]:
        """Return the log probabilities of the likeliest first tokens of a reply."""
        with _mapped_errors():
            request = _request(messages, Sampling(max_tokens=1), stream=False, logprobs=True)
            response = self._runner.send_chat_completion_request(request)
        tokens, usage = response.choices[0].logprobs.content[0].top_logprobs, _usage(response.usage)
        self._remember(messages, "", usage)
        return {str(t.bytes): t.logprob for t in tokens}, usage


def _shared_tokens(messages: Chat, sizes: Sequence[int], known: Chat) -> int:
    """Return about how many tokens at the beginning `messages` and `known` have in common."""
    shared = 0
    for message, size, other in zip(messages, sizes, known, strict=False):
        if message != other:
            content = message["content"]
            pairs = enumerate(zip(content, other["content"], strict=False))
            alike = next((at for at, (one, two) in pairs if one != two), None)
            if alike is None:
                alike = min(len(content), len(other["content"]))
            same = message["role"] == other["role"]
            return shared + (
                alike * (size - _FRAME_TOKENS) // len(content) if same and content else 0
            )
        shared += size
    return shared


def _first_messages(messages: Chat, sizes: Sequence[int], tokens: int) -> Chat:
    """Return about the first `tokens` tokens of `messages`."""
    beginning: Chat = []
    for message, size in zip(messages, sizes, strict=True):
        if tokens <= _FRAME_TOKENS and beginning:
            break
        content, share = message["content"], min(tokens / size, 1.0)
        beginning.append({**message, "content": content[: int(len(content) * share)]})
        tokens -= size
    return beginning


def _load(source: ModelFile) -> Any:
    # Keep mistralrs's log off the standard output. Its threads are started once per process and
    # wait for each other in a busy loop. If another program uses a thread's core, all of them
    # become many times slower (two threads on two busy cores took 19 s, one thread took 2 s).
    settings = {"RUST_LOG": "off", "RAYON_NUM_THREADS": str(_free_cores())}
    unset = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in unset})
    try:
        import mistralrs

        gguf: Any = mistralrs.Which.GGUF  # the stubs declare an enum, but it is a class
        which = gguf(quantized_model_id=source.folder or "", quantized_filename=source.file)
        return mistralrs.Runner(which=which, in_situ_quant=source.in_situ_quant)
    except ImportError as error:
        raise MissingExtra("a model in this process", "local") from error
    except ValueError as error:
        raise ConfigurationError(f"cannot load {source.file}: {_first_line(error)}") from error
    finally:
        for name in unset:
            os.environ.pop(name, None)


def _free_cores() -> int:
    """Return how many of the cores that this process may use were free recently, at least 1."""
    cores = os.cpu_count() or 1
    try:
        usable, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has neither, macOS has only the second
        return cores
    return max(1, round(usable * (1 - busy / cores)))


@contextmanager
def _mapped_errors() -> Generator[None, None, None]:
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise ConfigurationError(f"the local model rejects these options: {error}") from error
    except (ValueError, RuntimeError) as error:
        text = _first_line(error)
        if "sequence length" in text:
            raise ContextTooLong(f"the conversation is too long for the model: {text}") from error
        raise BackendError(f"the local model failed: {text}") from error


def _first_line(error: Exception) -> str:
    """Return the message without the native backtrace after it."""
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
        top_logprobs=_TOP_LOGPROBS if logprobs else None,
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
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_input_tokens=0 if details is None else details.cached_tokens or 0,
    )
