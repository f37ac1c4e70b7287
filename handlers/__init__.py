"""The `@handler` decorator and the ready-made handlers."""

from ._handler import Handler as Handler
from ._handler import HandlerFunction as HandlerFunction
from ._handler import handler as handler
