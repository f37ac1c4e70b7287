"""A function becomes a tool: schema, validation, execution.

`anabranch.tools.examples` holds three to try, imported only where used.
"""

from ._load import load_tools as load_tools
from ._narrate import narrated as narrated
from ._result import ToolResult as ToolResult
from ._schema import InvalidArguments as InvalidArguments
from ._tool import AnyTool as AnyTool
from ._tool import Tool as Tool
from ._tool import result_text as result_text
from ._tool import tool as tool
