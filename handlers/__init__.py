"""The `@handler` decorator and the ready-made handlers."""

from ._call_tools import CallTools as CallTools
from ._call_tools import call_tools as call_tools
from ._handler import Handler as Handler
from ._handler import HandlerFunction as HandlerFunction
from ._handler import handler as handler
from ._respond import respond as respond
from ._show import show as show
from ._view import View as View
