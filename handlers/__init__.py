"""The `@handler` decorator, and ready-made handlers.

- `_handler`: `@handler` makes an async function a kind of node, `Handler`
- `_respond`: one answer of a model with its tools; `look_up`, a search before it
- `_output`: typed output of `respond`: the tool `final_answer`, validators
- `_call_tools`: run the calls of a reply, each when it is complete
- `_view`: `show` passes text on; a `View` sees an exchange, `ConsoleView` prints it
- `legible`: make text of others safe for a terminal

`fork` supplies a reply's branches; text goes to the view, results to the conversation. Handlers
that need a model are imported at first use.
"""

from typing import TYPE_CHECKING

from ..commander.plugins import lazy_names
from ._handler import Handler as Handler
from ._handler import HandlerFunction as HandlerFunction
from ._handler import handler as handler

if TYPE_CHECKING:
    from ._call_tools import CallTools as CallTools
    from ._call_tools import call_tools as call_tools
    from ._respond import look_up as look_up
    from ._respond import respond as respond
    from ._view import ConsoleView as ConsoleView
    from ._view import View as View
    from ._view import show as show
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "_call_tools": "CallTools call_tools",
            "_respond": "look_up respond",
            "_view": "ConsoleView View show",
        },
    )
