"""The terminal: the command `anabranch`. Its chat is the room `chat` inside.

- `_main`: the entry point; `_app`: the command line and its options; `_exit`: how a command ends
- `_terminal`: errors and logs as lines that cannot steer a terminal; `_editor` reads a line,
  `_keys`: the keyboard's mode; `_rescue`: what remains of a chat that breaks
- `_question`: a call as a person sees it before it runs; `_exact` shows what may deceive,
  `_typeahead` drops what was typed before
- `_knowledge`: documents put into an index, and searched
- `_runs`: the runs of a journal, and what can be done about them; `_runs_view` shows them without
  what looks like a key, `_runs_resume` takes one up; `_named`: objects that a user names
- `_run_job`: a job run from the command line, its fields from `_fields`; `_see`: recordings
  followed and shown; what is drawn of a tree: which nodes (`_survey`, `_fold`), as lines
  (`_tree_view`), when and where (`_drawing`, `_screen`); `_summary`: a recording as text; `_diff`:
  two compared; `_serve`: agents, jobs and models behind a web address; `_watch_url`: a run there,
  followed; `_http`: a server of anabranch's, asked
"""

from ._main import main as main
