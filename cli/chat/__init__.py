"""The chat in the terminal, in which a person always can write.

    _start           what the options say becomes a partner, a screen and a chat of both
    _loop            turns, one after the other: what is said becomes an answer, or steers one
    _commands        lines that begin with a slash; _complete: what Tab makes of them
    _home            what lives as long as the chat; _settings: what the person has chosen for all

    _models          which models a server has, where the person has named none
    _partner         whom one talks to: an agent in a session, a thing that can be served, a server
    _agent_partner   an agent in a session; _sessions: where these are kept and found
    _served_partner  a thing that can be served, in this process; _url_partner: one on a server
    _run_partner     what these two share; _telling: a run's log as a person sees it
    _attach          files that the person names; _file_completer: their names, as one writes

    _screen          what is shown, and how a yes is asked for; _rules: calls that need none
    _live            a terminal: finished blocks above, what grows at the prompt
    _prompt          the line that is always live; _asking: questions in it
    _plain           line by line: a pipe, a dumb terminal, `--plain`
    _status          what the status line says, from the events of the tree
    _markdown        text that streams, cut into blocks; _markdown_view: a block as it is shown
    _math            math in Markdown, which stays as it is written
    _figures         what a tool drew, inline where the terminal can
    _export          a conversation as a file: _export_markdown, _export_html, _export_parts

Data flows one way: what the person writes goes from the prompt to the loop to the partner, and
what happens comes back as calls of a view.
"""

from ._start import ChatOptions as ChatOptions
from ._start import hold_chat as hold_chat
