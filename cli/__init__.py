"""The terminal: the command `anabranch`. Its chat is the package `chat` inside.

- `_main`: the entry point; `_app`: the command line; `_exit`: exit statuses, errors and signals
- `_terminal`: results, errors and logs as text that cannot steer a terminal
- `_keyboard`: the terminal's mode, and type-ahead; `_streams`: what the program prints, captured;
  `_editor`: reads a line; `_rescue`: saves the conversation of a chat that crashes
- `_question`: a tool call as a person reads it before it runs
- `_named`: objects that a user names; `_fields`: jobs, and their fields from text
- `_run`, `_watch`, `_view`: the commands of these names, and `diff`; `_display`: a live region at
  the bottom of the terminal, and plain lines elsewhere; `_tree_model`: which nodes of a tree are
  shown, and totals; `_tree_view` renders them
- `_runs`: the runs of a journal; `_runs_view` prints them, `_runs_resume` resumes one
- `_knowledge`: documents in an index; `_serve`: agents, jobs and models as a web server; `_http`:
  a client of such a server
"""

from ._main import main as main
