"""Events as lines of a recording, for rooms that send them elsewhere than to a file."""

from __future__ import annotations

from ._line import KINDS as KINDS
from ._line import Lines as Lines
