"""The chat in the terminal.

    _start            makes a partner, a screen and a chat from the options
    _loop             turns: a message begins an answer, steers it, or waits
    _commands         lines that begin with a slash; _completer: Tab, for them and for files
    _session_manager  models and tools of sessions; _sessions: where they are stored
    _settings         the person's settings; _rules: calls that need no question

    _partner          what answers: an interface, and the partner whose turns are runs
    _agent_partner    an agent in a session
    _local_runs       runs in this process; _server_runs: runs on a server
    _log_renderer     shows the log of a run
    _attach           files that the person names in a message

    _approval         the questions to the person, and the path of an approval
    _screen           what both screens show; _plain: line by line
    _live             blocks of text above a prompt; _prompt: the prompt; _asking: questions in it
    _status           the status line, from the events of the tree
    _markdown         the grammar, and a stream cut into blocks; _markdown_view: draws a block
    _figures          figures of tools, inline if the terminal supports that
    _export           a conversation as a file

Data flows one way: a message goes from the prompt to the loop and the partner. Its progress comes
back as calls of a view.
"""

from ._start import ChatOptions as ChatOptions
from ._start import hold_chat as hold_chat
