"""Serving agents, models, jobs and handlers over HTTP, for clients that exist already.

A request becomes a run (`_run`): a node that answers, in a tree of its own, and a log of entries
(`_log`), numbered and bounded. A wire is a pure function from that log to frames (`_openai_chat`,
`_openai_responses`), so any number of clients can read one run, come late, and reconnect. Around
that:

- `_served`: each thing that can be served, as a node that answers a question; `_fields`: the fields
  of a job or a handler
- `_runs`: all runs of a server: how many, whose, and for how long
- `_durable_run`: a run in a journal, resumed after a restart; `_replay`: entries of its earlier
  executions, which the log does not repeat
- `_app`: `serve`, the ASGI application
- `_http`: the common part of all wires: routes, refusals, server-sent events
- `_auth`: users, and the names and addresses of this machine
- `_body`: a request's body, as valid JSON
- `_failure`: failures, for clients and in the log; log records without keys
- `_asking`: the fields of a request, and refusals by name; `_options`: options of a model
- `_uvicorn`: a server by itself: its address, and how it ends
- `_openai_http`: OpenAI's addresses
- `_own_http`: the wire of the page, and of programs that need all entries of a run
- `talk`: a run for the person at this machine's own terminal, without HTTP
- `_page`, `page/`: the chat page
"""

from ._app import Auth as Auth
from ._app import Server as Server
from ._app import serve as serve
