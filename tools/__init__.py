"""Tools that a model may call: tools from functions, toolkits, approvals, Python, web and MCP.

A `ToolCall` goes into `calls.start_call`, and a `ToolResult` comes out.

Define tools:
- `_tool`: `Tool` and `@tool`; runs the function and writes its result as text
- `_schema`: the JSON schema of a signature and its docstring, and the check of arguments
- `_remote_schema`: the check of arguments by a schema from another author
- `toolkits`: tools that share state, lists of tools, and the import of an extra
- `_load`: tools by name, also those of installed packages
- `_describe`: tools as text for a prompt, and tools that talk to the user while they run

Run calls:
- `calls`: one call as a node, with approval, time limit, retry and effect
- `_effect`: how a tool declares its effects for durable runs
- `results`: the result of a call as a message for the model
- `sessions`: the state that tools keep for each session of an agent or executor

Ask a person:
- `_approval`, `_pending`: calls, and other questions, that wait for a person
- `origins`: where a tool's calls go, as text for the person and as a digest

Built-in tools (imported at first use, their extras at the first call):
- `_python`: `PythonKernel`; `_interpreter` runs the code of one session in a Jupyter kernel
  (`_kernel`), talks to it on a thread (`_kernel_loop`), and `_kernel_main` is the kernel's process
- `_web`: `WebBrowser`; `_search` has the search engines, `_web_fetch` fetches and reads pages
  (`_web_charset` finds the encoding, `_web_main` is the process that reads)
- `_mcp`: `McpServer`; `_mcp_connection` holds the connection, `_mcp_wire` bounds its input
- `examples`: three tools to try
"""

from typing import TYPE_CHECKING

from ..commander.errors import ModelRetry as ModelRetry
from ..commander.plugins import lazy_names
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
from .toolkits import ToolLike as ToolLike

if TYPE_CHECKING:
    from ._describe import PromptFormat as PromptFormat
    from ._describe import describe as describe
    from ._describe import with_narration as with_narration
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
            "_describe": "PromptFormat describe with_narration",
            "_load": "load_tools open_tools",
            "_mcp": "McpServer",
            "_python": "PythonKernel ResourceLimits",
            "_search": "SearchEngine SearchHit search_engine",
            "_web": "WebBrowser",
        },
    )
