"""One async interface to models, and each implementation."""

from ._backend import Backend as Backend
