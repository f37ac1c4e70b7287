"""The async interface to models, and its implementations.

A backend sends a `Request` to a model and yields the reply as `Delta`s. It also turns texts into
vectors.

Interface
    _backend                     `Backend`, the base class
    _providers                   `connect`: the prefixes, such as `openai:`, and their backends
    _named                       `as_backend`: backends by name, and their pools of connections
    _fallback                    `Fallback`: ask another backend if one fails
    _cassette, _cassette_file    replies recorded in a file, and their replay
Around each request
    _model                       `ModelBackend`: limits, timeouts, retries, usage
    limits, _turn                rates, concurrency, budgets, prices; the order of waiting requests
    _retry, _timeout             retries, the breaker, continued replies; time limits
    _estimate                    tokens of a request before its usage is known
    _request_fit                 parts that a model does not take; roles that every model knows
    typed_output                 how a model is asked for typed output, and its reply read
    _recorded, _request_events   replies stored in a journal; events about requests
Servers
    _wire, _http, _openai        chat completions as JSON and events; over aiohttp or the SDK
    _sse, _embedding             the formats of streams and of vectors
    _address, _secret, _failure  addresses; removal of keys from text; errors
Models in this process
    _engine, _per_loop           one thread for all event loops
    _local*, _weights            the small model or a GGUF file; how its weights are fetched
    _vllm*                       the vLLM engine

Each implementation is imported when `connect` first needs it, so that its extra is optional.
`limits` is public: the cluster package starts requests under the same limits. So is `typed_output`:
`respond` of the handlers runs the same policy with tools. With `override` agents replace the
backends of all code below a call.
"""

from ._backend import Backend as Backend
from ._fallback import Fallback as Fallback
from ._model import ModelBackend as ModelBackend
from ._named import as_backend as as_backend
from ._providers import connect as connect
from ._retry import Breaker as Breaker
from ._retry import Retries as Retries
from ._secret import redact_keys as redact_keys
from ._timeout import Timeouts as Timeouts
from .limits import Limits as Limits
from .limits import Price as Price
from .limits import cost as cost
