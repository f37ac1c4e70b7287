"""Forking a reply: messages and deltas, the incremental JSON reader, channels, assembly."""

from ._agent_message import AgentMessage as AgentMessage
from ._agent_message import StreamState as StreamState
from ._call import ToolCallError as ToolCallError
from ._conversation import Conversation as Conversation
from ._delta import Delta as Delta
from ._delta import ToolCallDelta as ToolCallDelta
from ._message import Message as Message
from ._message import Role as Role
from ._message import ToolCall as ToolCall
from ._message import Usage as Usage
from ._message import image_url as image_url
from ._reply import Reply as Reply
from ._reply import fork as fork
from ._request import Request as Request
from ._request import ToolSchema as ToolSchema
from ._wire import delta_from_chunk as delta_from_chunk
from ._wire import error_from_wire as error_from_wire
from ._wire import message_from_response as message_from_response
from ._wire import request_body as request_body
