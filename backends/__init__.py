"""One async interface to models, and each implementation.

`connect` makes a backend from a name. The implementations are imported when they are asked for,
so that no extra is needed for those that are not.
"""

from ._backend import Backend as Backend
from ._fallback import Fallback as Fallback
from ._model import ModelBackend as ModelBackend
from ._providers import connect as connect
from ._retry import Breaker as Breaker
from ._retry import Retries as Retries
from ._timeout import Timeouts as Timeouts
from .limits import Limits as Limits
from .limits import Price as Price
