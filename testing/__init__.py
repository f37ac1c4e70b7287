"""What users need to test their own trees: a seeded loop, a virtual clock, a scripted backend.

- `_explore`: run a test under one seed or many (`run_seeded`, `explore`), and steps within it
- `_loop`: the loop whose seed orders what is ready, and whose clock jumps when nothing is
- `_threads`: which threads are idle, as they note it themselves
- `_choices`: what a seed chooses
- `_deadlock`: the error of a loop on which nothing can happen again, with the trees that hang
- `_scripted`: a backend that says what a test has written down

A test function goes in, its result or the first failing seed comes out. The room stands beside the
engine: it knows commanders and backends, and no room of the product knows it.
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
