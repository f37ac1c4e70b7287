"""One async interface to models, and each implementation.

A `Request` comes in and goes to a model; what the model says comes out as `Delta`s. Texts come in
to be embedded, and come out as vectors.

    _providers                   `connect`: the prefixes, such as `openai:`, and what each makes
    _backend, _model             the interface; what is done around each attempt
    _retry, _timeout, _fallback  when a request is tried again (a node: `commander/_policy.py`), and
                                 after what pause; time limits; another model to ask
    limits, _turn                rates, concurrency and budgets, of a backend or a whole tree: how
                                 requests are held against them; which request goes first
    _resume                      when a broken reply can be continued, and what remains of it
    _estimate                    how many tokens a request is taken for before it starts
    _wire, _http, _openai, _sse  servers: a request as JSON, a reply as events; aiohttp or the SDK
    _embedding                   texts and the vectors that come for them
    _address, _secret, _failure  addresses; keys that never show; what a refusal means
    _engine, _per_loop, _prompt  models in this process: one thread for all event loops
    _local*, _weights*           the small model or a GGUF file; how its weights are fetched
    _vllm*                       the vLLM engine
    _request_events              events about requests: sent, first chunk, progress, reply
    _takes                       images and files in a request, and what a model takes of them
    _cassette, _tape             replies that are recorded and played; _recorded: in a journal too

The implementations are imported when they are asked for, so that no extra is needed for those
that are not. `limits` is public for other rooms, which ask it for leave to start a request too.
"""

from ._backend import Backend as Backend
from ._fallback import Fallback as Fallback
from ._model import ModelBackend as ModelBackend
from ._providers import connect as connect
from ._retry import Breaker as Breaker
from ._retry import Retries as Retries
from ._secret import redact_keys as redact_keys
from ._timeout import Timeouts as Timeouts
from .limits import Limits as Limits
from .limits import Price as Price
from .limits import cost as cost
