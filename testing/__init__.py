"""Tools for testing task trees: a seeded event loop, a virtual clock and a scripted backend.

- `_explore`: run a test under one seed or many (`run_seeded`, `explore`), and steps within it
- `_loop`: the event loop whose seed orders ready tasks, with its virtual clock
- `_threads`: detect which threads are idle
- `_choices`: the random choices of a seed
- `_deadlock`: the error for a loop that can never continue, with the trees that wait
- `_scripted`: a backend with replies written by the test

This package imports `commander`, `backends` and `messages`. No other package of the product imports
it.
"""

from ._deadlock import Deadlock as Deadlock
from ._explore import advance as advance
from ._explore import explore as explore
from ._explore import pause as pause
from ._explore import run_seeded as run_seeded
from ._loop import SeededLoop as SeededLoop
from ._loop import VirtualClock as VirtualClock
from ._scripted import ScriptedBackend as ScriptedBackend
from ._scripted import ScriptStep as ScriptStep
from ._scripted import deltas as deltas
