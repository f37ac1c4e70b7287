"""Serve agents, models, jobs and handlers over HTTP, for OpenAI's clients and on a chat page.

Each request starts a run (`_run`): a node that answers in a separate tree, and a log of numbered
entries (`_run_log`). A wire is a pure function from this log to frames, so any number of clients
can read one run, arrive late, and reconnect.

The application:

- `_app`: `serve` and `Server`; `_uvicorn`: `Server.run`
- `_http`: routes, refusals and server-sent events of all wires
- `_auth`: users by token, and the names of this machine

Requests:

- `_request_body`: a body as safe JSON
- `_request`: fields and messages, and the start of a run; `_model_options`: options of a model

Runs:

- `_served_model`: agents, groups, jobs, handlers and backends as models
- `_run`, `_run_log`: a run, and its entries; `_runs`: all runs of a server
- `_durable_run`: a run in a journal; `_replay`: its entries from earlier executions
- `_failure`: failures for clients and in the log; log records without keys
- `local`: runs without HTTP, for `anabranch chat`

Wires:

- `_openai_http`: OpenAI's addresses; `_openai_chat`, `_openai_responses`: their formats
- `_runs_http`, `page/`: Anabranch's own wire, and the chat page
"""

from ._app import Auth as Auth
from ._app import Server as Server
from ._app import serve as serve
