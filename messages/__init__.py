"""Messages, requests and replies, and their form on the chat-completions wire.

Values

- `_message`: `Message`, `ToolCall` and `Usage` with their form on the wire, and `Delta`, a piece of
  a streamed reply
- `_part`: an image or a file beside the text of a message
- `_item`: data that a provider wants back unchanged
- `_conversation`: a list of messages that can be saved and loaded
- `_request`: a request to a model, with tools and options
- `_request_events`: the data of the events of a request and its reply

Forms

- `_wire`: read chunks and responses of the wire, write request bodies
- `compact_json`: messages for journals and cassettes
- `arguments`: the arguments of a tool call as text and as an object

Helpers for other packages

- `options`: the names of options, and the error for an unknown one
- `output`: the JSON schema of typed output, and its value in a reply
- `mask`: hide keys in values that are shown or logged
- `tokens`: estimate the tokens of a text
- `text`: make text encodable, and quote values in errors
"""

from ._conversation import Conversation as Conversation
from ._item import ProviderItem as ProviderItem
from ._message import Delta as Delta
from ._message import Message as Message
from ._message import Role as Role
from ._message import ToolCall as ToolCall
from ._message import ToolCallDelta as ToolCallDelta
from ._message import Usage as Usage
from ._part import Part as Part
from ._part import PartKind as PartKind
from ._request import Request as Request
from ._request import ToolSchema as ToolSchema
from ._request import has_parameter as has_parameter
from ._request import require_request as require_request
from ._request_events import ProgressEvent as ProgressEvent
from ._request_events import ReplyEvent as ReplyEvent
from ._request_events import RequestEvent as RequestEvent
from ._wire import ChunkReader as ChunkReader
from ._wire import delta_from_chunk as delta_from_chunk
from ._wire import error_from_wire as error_from_wire
from ._wire import message_from_response as message_from_response
from ._wire import request_body as request_body
from .arguments import ToolCallError as ToolCallError
from .output import OutputMessage as OutputMessage
from .output import OutputMode as OutputMode
from .output import OutputSchema as OutputSchema
