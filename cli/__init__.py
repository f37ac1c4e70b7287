"""The terminal: the command `anabranch` and its chat."""

from ._main import main as main
