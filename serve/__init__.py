"""Serving: what is written here, for clients that exist already.

A request becomes a run (`_run`): a node that answers, in a tree of its own, and a log of what it
says (`_log`), numbered and bounded. A wire is a pure function from that log to frames
(`_openai_chat`, `_openai_responses`), so any number of clients may read one run, come late, and
come back. Around that:

- `_served`: what can be served, each as a node that answers a question; `_fields`: what a client
  may give to a job or a handler
- `_runs`: all runs of a server: how many, whose, and for how long
- `_kept`: a run that a journal keeps over a restart; `_kept_log`: its log, told once it is on disk
- `_app`: `serve`, the ASGI application
- `_http`: what all wires do over HTTP alike; `_frames`: server-sent events as text
- `_auth`, `_local`: who asks, and which names and addresses are this machine's
- `_body`: a request's body, as sound JSON
- `_failure`: what a client is told of a run that failed; `_masked_logs`: log records without keys
- `_asking`: what a request asks, and what is refused by name; `_options`: what it may choose of a
  model; `_returned_items`: provider items that its client has dropped
- `_uvicorn`: a server by itself: its address, and how it ends
- `_openai_http`: OpenAI's addresses; `_openai_fields`: its Responses in terms of its chat
- `_own_http`: the wire of the page, and of programs that want all of a run
- `talk`: a run for the person at this machine's own terminal, without HTTP
- `_page`: the page to talk on, made of the parts in `page/`
"""

from ._app import Auth as Auth
from ._app import Server as Server
from ._app import serve as serve
