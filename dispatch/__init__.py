"""Forking a reply: messages and deltas, the incremental JSON reader, channels, assembly."""

from ._delta import Delta as Delta
from ._delta import ToolCallDelta as ToolCallDelta
from ._message import Message as Message
from ._message import Role as Role
from ._message import ToolCall as ToolCall
from ._message import Usage as Usage
from ._request import Request as Request
from ._request import ToolSchema as ToolSchema
