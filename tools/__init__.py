"""A function becomes a tool: schema, validation, execution.

`anabranch.tools.examples` holds three to try, imported only where used.
"""

from ._approval import Approval as Approval
from ._approval import Approvals as Approvals
from ._approval import Decision as Decision
from ._describe import Format as Format
from ._describe import describe as describe
from ._load import load_tools as load_tools
from ._load import open_tools as open_tools
from ._mcp import McpServer as McpServer
from ._narrate import narrated as narrated
from ._pending import Pending as Pending
from ._pending import PendingList as PendingList
from ._python import PythonKernel as PythonKernel
from ._python import ResourceLimits as ResourceLimits
from ._schema import InvalidArguments as InvalidArguments
from ._search import SearchEngine as SearchEngine
from ._search import SearchHit as SearchHit
from ._search import search_engine as search_engine
from ._tool import AnyTool as AnyTool
from ._tool import Tool as Tool
from ._tool import result_text as result_text
from ._tool import tool as tool
from ._web import WebBrowser as WebBrowser
from .results import Illustrated as Illustrated
from .results import ToolResult as ToolResult
from .toolkits import Toolkit as Toolkit
