"""The conformance suite of all backends (contract B1), on the small model in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from _conformance import CASES, Subject
from _local import small_model

from anabranch.backends import Backend
from anabranch.backends._local import LocalBackend
from anabranch.backends._local_tools import Manner

__all__ = ["small_model"]  # the fixture
_NO_SERVER = "the model is in this process: there is no server to say so"


class LocalSubject(Subject):
    """The small model. It says what it likes, so replies cannot be dictated."""

    exceptions: ClassVar = {
        "several calls": "a reply of this model has one call at most",
        "interleaved calls": "as for 'several calls'",
        "drop": "what is in this process does not drop; closing the model is tested on its own",
        "whole timeout": "how long a prompt takes is the machine's affair; tested on its own",
        "connect timeout": "nothing is connected",
        "retries": _NO_SERVER,
        "nobody there": _NO_SERVER,
        "wrong key": _NO_SERVER,
        "unknown model": "a file that is not there is a ConfigurationError before any request",
        "rate limit": _NO_SERVER,
        "bad response": _NO_SERVER,
    }

    async def backend(self, case: str, **settings: Any) -> Backend:
        backend = LocalBackend(**settings)
        self.stack.push_async_callback(backend.aclose)
        if case == "too long":
            backend._manner = Manner(system="many words " * 9000)
        return backend


@pytest.mark.parametrize("case", CASES)
async def test_the_local_model_shows(case: str, tmp_path: Path) -> None:
    """Each case, or declares why it cannot."""
    if case in LocalSubject.exceptions:
        pytest.skip(f"declared: local: {case}: {LocalSubject.exceptions[case]}")
    subject = LocalSubject(tmp_path)
    async with asyncio.timeout(240), subject.stack:
        await CASES[case](subject)


def test_what_is_declared_is_a_case() -> None:
    """Or the table would hide a wrong name."""
    assert set(LocalSubject.exceptions) <= set(CASES)
