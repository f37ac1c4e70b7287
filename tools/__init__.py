"""A function becomes a tool: schema, validation, execution; and the tools of the package.

- `_tool`, `_schema`, `_docstring`: `@tool`; the schema of a signature, and the check of arguments;
  runs the function, and makes a text of what it returns
- `calls`: one call as a node, with approval, time limit and failure; in a durable run an effect
- `_effect`: what a tool says of what it does outside, for such runs
- `results`: what a call gives, as the message for the model (`ToolResult.of`; a limit for all tools
  would stand there, today tools that say much shorten it themselves)
- `toolkits`, `_load`: tools that belong together; tools by name, also those of other packages
- `sessions`: what tools keep, for each session of an agent or executor, and when that ends
- `origins`: where a tool's calls go, as text for the person who allows them, and as a digest
- `_approval`, `_pending`: calls, and any other questions, that wait for a person
- `_describe`, `_narrate`: tools as text for a prompt; tools that speak to the user meanwhile
- `_python`: Python sessions, each an `_interpreter` with a Jupyter kernel (`_kernel`; its process
  and its guard, `_kernel_main`; how many there are, `_kernel_pool`; the thread that talks to them,
  `_kernel_loop`; where figures go, `_figures`)
- `_web`, `_search`: the web browser and search engines. `_web_fetch` fetches within limits (whose
  addresses: `_web_address`), `_web_text` reads in a process of its own (`_web_main`,
  `_web_charset`)
- `_mcp`: the tools of an MCP server; `_mcp_wire` bounds what it sends, `_remote_schema` its schema
- `examples`: three tools to try (`_arithmetic`), imported only where they are used

A `ToolCall` comes in through `calls.start_call`, and a `ToolResult` goes out. The toolkits are
imported when they are first used, and what an extra brings when they first need it (`_extra`).
"""

from typing import TYPE_CHECKING

from ..commander.lazy import lazy_names
from ._approval import Approval as Approval
from ._approval import Approvals as Approvals
from ._approval import Approve as Approve
from ._approval import Decision as Decision
from ._approval import ToolQuestion as ToolQuestion
from ._approval import ask_approval as ask_approval
from ._effect import Done as Done
from ._effect import NotDone as NotDone
from ._effect import Unknown as Unknown
from ._effect import effect_key as effect_key
from ._narrate import with_narration as with_narration
from ._pending import Pending as Pending
from ._pending import PendingList as PendingList
from ._schema import InvalidArguments as InvalidArguments
from ._tool import AnyTool as AnyTool
from ._tool import Tool as Tool
from ._tool import result_text as result_text
from ._tool import tool as tool
from .results import Illustrated as Illustrated
from .results import ToolResult as ToolResult
from .sessions import PerSession as PerSession
from .toolkits import Toolkit as Toolkit

if TYPE_CHECKING:
    from ._describe import PromptFormat as PromptFormat
    from ._describe import describe as describe
    from ._load import load_tools as load_tools
    from ._load import open_tools as open_tools
    from ._mcp import McpServer as McpServer
    from ._python import PythonKernel as PythonKernel
    from ._python import ResourceLimits as ResourceLimits
    from ._search import SearchEngine as SearchEngine
    from ._search import SearchHit as SearchHit
    from ._search import search_engine as search_engine
    from ._web import WebBrowser as WebBrowser
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "_describe": "PromptFormat describe",
            "_load": "load_tools open_tools",
            "_mcp": "McpServer",
            "_python": "PythonKernel ResourceLimits",
            "_search": "SearchEngine SearchHit search_engine",
            "_web": "WebBrowser",
        },
    )
