"""What is said: messages, tool calls and deltas, conversations, requests, and the wire's shape.

Data come in as chunks and responses of the chat-completions wire (`_wire`) and go out as its
requests. In between they are:

- `_message`: `Message` with its fields, read and written, `ToolCall`, `Usage`; a field that streams
  also stands in `_delta`, and is put together in `dispatch/assembly`
- `_part`: an image or a file beside a message's text, checked
- `_tool_call_error`: a call that cannot be run
- `_item`: data that a provider wants back unchanged; `_wire_items`: its fields on the wire
- `_delta`: a piece of a reply that still streams
- `_conversation`: messages in order, saved and loaded
- `_request`: one question to a model, and what is offered with it
- `_asked`: what is told of a question to a model, of the work before its reply, and of that, to
  those who listen
- `kept`: messages as rows of a journal have them
- `options`: the names that options have, and what is said of a misspelt one
- `output`: the JSON schema of typed output, and its value in a reply
- `mask`: values without what looks like a key, for those who show or write them
- `whole`: a file of the user's own, written whole or not at all
- `sqlite`: an SQLite file of the package's own is opened, and its faults are explained
- `tokens`: how many tokens a text has, estimated
- `arguments`, `text`: for the rooms above: a call's arguments as text, and text that can be encoded
"""

from ._asked import Asked as Asked
from ._asked import Replied as Replied
from ._asked import Working as Working
from ._conversation import Conversation as Conversation
from ._delta import Delta as Delta
from ._delta import ToolCallDelta as ToolCallDelta
from ._item import ProviderItem as ProviderItem
from ._message import Message as Message
from ._message import Role as Role
from ._message import ToolCall as ToolCall
from ._message import Usage as Usage
from ._part import Part as Part
from ._part import PartKind as PartKind
from ._request import Request as Request
from ._request import ToolSchema as ToolSchema
from ._request import has_parameter as has_parameter
from ._request import require_request as require_request
from ._tool_call_error import ToolCallError as ToolCallError
from ._wire import ChunkReader as ChunkReader
from ._wire import delta_from_chunk as delta_from_chunk
from ._wire import error_from_wire as error_from_wire
from ._wire import message_from_response as message_from_response
from ._wire import request_body as request_body
