"""What users need to test their own trees: a seeded loop, a virtual clock, a scripted backend."""

from ._deadlock import Deadlock as Deadlock
from ._explore import advance as advance
from ._explore import explore as explore
from ._explore import pause as pause
from ._explore import run_seeded as run_seeded
from ._loop import SeededLoop as SeededLoop
from ._loop import VirtualClock as VirtualClock
from ._scripted import ScriptedBackend as ScriptedBackend
from ._scripted import Step as Step
from ._scripted import deltas as deltas
