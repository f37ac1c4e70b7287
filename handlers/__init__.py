"""The `@handler` decorator, and the ready-made handlers.

- `_handler`: `@handler` makes an async function a kind of node, `Handler`
- `_look_up`: search documents for what was asked, before the model is
- `_respond`: one answer of a model: ask, show, call tools, ask again
- `_as_text`: the request of a model that knows tools and calls from its prompt alone
- `_call_tools`: run the calls of a reply, each as soon as it is whole
- `_show`, `_view`: where a reply's text goes; a `View` sees an exchange, `ConsoleView` shows it
- `legible`: text of a model made safe for a screen, also for the terminal

A reply's branches come in from `fork`; text goes out to the view, results to the conversation.
The handlers that need a model are imported when they are first used.
"""

from typing import TYPE_CHECKING

from ..commander.plugins import lazy_names
from ._handler import Handler as Handler
from ._handler import HandlerFunction as HandlerFunction
from ._handler import handler as handler

if TYPE_CHECKING:
    from ._call_tools import CallTools as CallTools
    from ._call_tools import call_tools as call_tools
    from ._look_up import look_up as look_up
    from ._respond import respond as respond
    from ._show import show as show
    from ._view import ConsoleView as ConsoleView
    from ._view import View as View
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "_call_tools": "CallTools call_tools",
            "_look_up": "look_up",
            "_respond": "respond",
            "_show": "show",
            "_view": "ConsoleView View",
        },
    )
