"""The terminal: the command `anabranch` and its chat.

- `_main`: the entry point; `_app`: the command line and its options; `_exit`: how a command ends
- `_session`: the chat as a job, Ctrl-C and the other signals; `_rescue`: what remains if it breaks
- `_commands`: what the user says to the chat itself, such as `/save`
- `_terminal`: what is shown of an exchange, and how a person is asked; `_editor` reads a line
- `_question`: a call as a person sees it before it runs; `_exact` shows what may deceive,
  `_typeahead` drops what was typed before
- `_knowledge`: documents put into an index, and searched
- `_runs`: the runs of a journal, and what can be done about them; `_runs_view` shows them without
  what looks like a key (`_mask`), `_runs_resume` takes one up; `_named`: objects that a user names
- `_knowledge`: documents in an index: put in, searched, shown
- `_diff`: two recordings compared

What the user writes comes in through `Terminal.read`; the model's words go out through its `write`.
"""

from ._main import main as main
