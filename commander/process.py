"""How processes end: what rooms that start their own need of `in_process`."""

from __future__ import annotations

from ._blocking import describe_exit as describe_exit
