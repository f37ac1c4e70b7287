"""Keys that a program uses appear in none of Ray's logs, and in no result or failure."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest
from support.ray_jobs import Ask
from support.scripted_server import ScriptedServer, text
from support.wire_backends import read_all

from anabranch import Commander, Conversation, connect
from anabranch.backends import Retries
from anabranch.cluster import serve
from anabranch.commander import AnabranchError

pytestmark = pytest.mark.usefixtures("nodes")

KEY = "sk-planted-4f9d1c7be2a8"


def files_with_it(folder: Path) -> list[str]:
    """Return the files of Ray that contain the key."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and KEY.encode() in path.read_bytes()
    ]


async def test_a_key_of_this_program_is_in_no_log_of_rays_and_in_no_failure_that_comes_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither for a job with the backend nor for an engine in an actor."""
    import ray

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with ScriptedServer(text("never asked")) as server, Commander() as commander:
        told: list[str] = []
        backend = connect("openai:m", base_url=server.url, retries=Retries(attempts=1))
        assert KEY.encode() not in pickle.dumps(backend)
        with pytest.raises(AnabranchError, match="OPENAI_API_KEY") as caught:
            await commander.run(Ask(backend), on="ray")
        told += traceback.format_exception(caught.value)
        with pytest.raises(AnabranchError, match="OPENAI_API_KEY") as caught:
            async with serve("scanned", backend), connect("ray:scanned") as shared:
                await read_all(shared, Conversation().request())
        told += traceback.format_exception(caught.value)

    assert server.requests == []
    assert KEY not in "".join(told)
    logs = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    assert any(logs.iterdir())
    assert files_with_it(logs) == []
