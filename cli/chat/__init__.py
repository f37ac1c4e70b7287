"""`anabranch chat`: the chat in the terminal.

    Chat
        _start            makes partner, screen and loop from the options; saves after a crash
        _loop             takes messages: each starts an answer, steers it, or waits in the queue
        _commands         lines that begin with a slash
        _attach           files that a message names
        _export           a conversation as Markdown or HTML
        _settings         the person's settings file

    Approvals of tool calls, in the order of the path
        _approval         START HERE: asks the person; its docstring lists all steps
        _approval_rules   "always for this tool, here": calls that need no question
        ../_call_layout   the rows of the question: tool, origin, arguments; none can deceive
        _prompt_question  a question in the live prompt, safe from type-ahead and pastes
        _plain_screen     a question on a plain terminal, through ../_editor and ../_keyboard

    Sessions
        _session_manager  opens sessions with their model and tools
        _sessions         stores sessions in a journal

    Partners: the other side of the conversation
        _partner          the interface, and a partner that starts a run for each turn
        _agent_partner    an agent in a session
        _local_runs       runs in this process
        _server_runs      runs on a server
        _log_renderer     shows the log of a run

    Screen
        _screen           the display of messages, calls and errors on both screens
        _live_screen      Markdown above a prompt that is always there
        _plain_screen     line by line, for pipes and simple terminals
        _prompt           the live prompt: keys, output above it, redrawing
        _completer        completion of commands and file names
        _status           the status line
        _markdown         the Markdown grammar; cuts a stream into blocks
        _markdown_view    draws a block
        _inline_images    figures of tools

A message goes from the prompt to the loop and to the partner. The partner reports its progress by
calls of a `View`, which is the screen.
"""

from ._start import ChatArguments as ChatArguments
from ._start import run_chat as run_chat
