"""The conformance suite of all backends (contract B1), on the small model in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.conformance import Subject, cases, show

from anabranch.backends import Backend
from anabranch.backends._local import LocalBackend
from anabranch.backends._local_reply import PromptStyle

pytestmark = pytest.mark.usefixtures("small_model")


class LocalSubject(Subject):
    """The small model. Its text is free, so replies cannot be scripted."""

    async def backend(self, case: str, **settings: Any) -> Backend:
        backend = LocalBackend(**settings)
        self.stack.push_async_callback(backend.aclose)
        # Without the examples that make good answers: to read them takes the model a second.
        backend._style = PromptStyle(
            system="many words " * 9000 if case == "too long" else "Be kind."
        )
        return backend


@pytest.mark.parametrize(("kind", "case"), cases("local"))
async def test_the_local_model_shows(kind: str, case: str, tmp_path: Path) -> None:
    """It passes each case, or declares why it cannot."""
    await show(LocalSubject(tmp_path), case, seconds=240)
