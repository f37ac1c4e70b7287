"""The command `anabranch`. Its chat is the package `chat` inside.

    Command line
        _main          entry point
        _app           the list of commands, and the options of `chat`
        _exit          exit statuses, one line for an error, signals
        _user_code     imports objects that the user names as module:name
        _fields        makes a job from FIELD=VALUE texts

    Commands, each with its options
        _run           run
        _watch         watch: a run in another process
        _view          view and diff: recordings
        _serve         serve
        _runs          runs list, show, cancel, approve, signal, fork, purge
        _runs_resume   runs resume
        _runs_view     tables and JSON of runs
        _knowledge     knowledge add, search, list, remove
        chat/          chat

    Terminal
        _output        results, errors and logs, without control characters and secrets
        _call_layout   a tool call, laid out exactly for a person who approves it
        _editor        reads a line
        _keyboard      the terminal's mode, and keys typed ahead
        _streams       captures the program's output, to print it above a prompt or a live region
        _display       a run's tree at the bottom of a terminal, plain lines in a pipe
        _tree_model    chooses the nodes to show, and sums their usage
        _tree_view     renders them as lines

    Network
        _http          a client of an Anabranch server

The approval of a tool call in the chat is described in `chat/_approval`.
"""

from ._main import main as main
