"""A GGUF model in this process: mistralrs in our terms, blocking, for one thread alone."""

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
from ..messages import Usage, Working
from ..messages.text import quote
from ._local_options import Sampling
from ._prompt import Chat
from ._weights import Progress, ensure_weights

__all__ = ["Model", "Source"]

# Enough of the distribution to hold the labels of some tens of tools, see `Model.first_tokens`.
_TOP = 3000
# A prompt is read in pieces of at least so many tokens, and in at most so many pieces: the engine
# keeps a copy of its state after each.
_PIECE: Final = 128
_PIECES: Final = 6
# The tokens that a template adds to each message, about.
_FRAME: Final = 5
# The engine keeps the state of each prompt and never lets one go, whatever `prefix_cache_n` says
# (measured with 0.9.5: 11 MB for each block of 512 tokens). At so many tokens it is begun anew.
_BLOCK: Final = 512
_MOST_KEPT: Final = 2**16


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
        try:
            path = Path(spec).expanduser()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError):  # a name no file can have, an unknown user
            path, is_file = Path(spec), False
        if is_file:
            return cls(str(path.resolve().parent), path.name, in_situ_quant)
        parts = spec.split("/")
        if path.suffix == ".gguf" and len(parts) >= 3 and parts[0] not in {"", ".", "..", "~"}:
            return cls("/".join(parts[:2]), "/".join(parts[2:]), in_situ_quant)
        raise ConfigurationError(
            f"no local model {quote(spec)}: name an existing GGUF file, or ORG/REPO/FILE.gguf on a"
            " hub"
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
        self._begin()
        # What has been found out about this model, for all that share it: see `_local_choice`.
        self.memory: dict[Any, Any] = {}

    def _begin(self) -> None:
        self._runner: Any = None  # the old one goes first
        self._runner = _load(self._source)
        # The last prompts that the engine has read, with their replies: it goes on from there.
        self._read: deque[Chat] = deque(maxlen=16)
        self._kept = 0  # tokens, in whole blocks

    def _note(self, messages: Chat, reply: str, usage: Usage) -> None:
        self._read.append(
            [*messages, {"role": "assistant", "content": reply}] if reply else messages
        )
        self._kept += -(-usage.total_tokens // _BLOCK) * _BLOCK

    def read(self, messages: Chat, *, whole: bool = False) -> Generator[Working, None, None]:
        """Let the engine read a prompt piece by piece; what it has read already is passed over.

        Yields before each piece how far it has come: closed there, it keeps what was read, and
        the next prompt that begins alike goes on from it. Without `whole`, what is left for the
        request itself is less than a piece. What the engine refuses is left to the request, too.
        """
        if self._kept > _MOST_KEPT:
            self._begin()
        sizes = [_FRAME + len(self._tokens(message["content"])) for message in messages]
        total = sum(sizes)
        if total > (self._runner.max_sequence_length() or total):
            return  # the request is refused at once
        if any(messages == known[: len(messages)] for known in self._read):
            return  # the engine cannot go on from all of a prompt: it reads one that recurs anew
        done = max((_shared(messages, sizes, known) for known in self._read), default=0)
        piece = max(_PIECE, -(-total // _PIECES))
        while (left := total - done) > (0 if whole else piece):
            yield Working("reading", done, total)
            done = total if left <= piece else done + piece
            beginning = messages if done == total else _beginning(messages, sizes, done)
            try:
                request = _request(beginning, Sampling(max_tokens=1), stream=False)
                response = self._runner.send_chat_completion_request(request)
            except (TypeError, ValueError, RuntimeError):
                return
            self._note(beginning, "", _usage(response.usage))
        if not whole:
            yield Working("reading", done, total)

    def _tokens(self, text: str) -> Sequence[int]:
        return self._runner.tokenize_text(text, False, None)

    def generate(self, messages: Chat, sampling: Sampling) -> Generator[Piece, None, None]:
        """Answer `messages`. Closing the iterator stops the model at the next token."""
        if sampling.seed is not None and sampling.temperature > 0:
            # mistralrs starts each runner from one fixed random state and takes no seed for a
            # request: a new runner and some tokens drawn in vain give each seed (modulo 32) a state
            # of its own.
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
                    self._note(messages, reply, usage)
                yield Piece(text, choice.finish_reason, usage)

    def first_tokens(self, messages: Chat) -> tuple[dict[str, float], Usage]:
        """Return the log probabilities of the likeliest first tokens of a reply."""
        with _mapped_errors():
            request = _request(messages, Sampling(max_tokens=1), stream=False, logprobs=True)
            response = self._runner.send_chat_completion_request(request)
        tokens, usage = response.choices[0].logprobs.content[0].top_logprobs, _usage(response.usage)
        self._note(messages, "", usage)
        return {str(t.bytes): t.logprob for t in tokens}, usage


def _shared(messages: Chat, sizes: Sequence[int], known: Chat) -> int:
    """Return how many tokens `messages` begin with that `known` begins with, about."""
    shared = 0
    for message, size, other in zip(messages, sizes, known, strict=False):
        if message != other:
            content = message["content"]
            pairs = enumerate(zip(content, other["content"], strict=False))
            alike = next((at for at, (one, two) in pairs if one != two), None)
            if alike is None:
                alike = min(len(content), len(other["content"]))
            same = message["role"] == other["role"]
            return shared + (alike * (size - _FRAME) // len(content) if same and content else 0)
        shared += size
    return shared


def _beginning(messages: Chat, sizes: Sequence[int], tokens: int) -> Chat:
    """Return what the first so many tokens of `messages` say, about."""
    beginning: Chat = []
    for message, size in zip(messages, sizes, strict=True):
        if tokens <= _FRAME and beginning:
            break
        content, share = message["content"], min(tokens / size, 1.0)
        beginning.append({**message, "content": content[: int(len(content) * share)]})
        tokens -= size
    return beginning


def _load(source: Source) -> Any:
    # mistralrs's log is kept off the standard output. Its threads are started once in a process and
    # wait for each other without resting: where another program takes the core of one, all are
    # many times slower (two threads on two busy cores took 19 s for what one does in 2).
    settings = {"RUST_LOG": "off", "RAYON_NUM_THREADS": str(_free_cores())}
    own = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in own})
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
        for name in own:
            os.environ.pop(name, None)


def _free_cores() -> int:
    """Return how many of the cores that this process may use are free of late, at least 1."""
    cores = os.cpu_count() or 1
    try:
        usable, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has neither, macOS only the second
        return cores
    return max(1, round(usable * (1 - busy / cores)))


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
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_input_tokens=0 if details is None else details.cached_tokens or 0,
    )
