"""Python code in a real kernel: state, limits, figures, and nothing left behind."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.leaks import child_processes, find_leaks, has_exited, thread_ids
from support.waiting import TIMEOUT_SECONDS, wait_until

from anabranch.agents import AgentMessage, ToolExecutor
from anabranch.commander import Commander, MissingExtra, NodeCancelled, ToolError
from anabranch.handlers import View, respond
from anabranch.jobs import Job
from anabranch.messages import Conversation, Message, ToolCall, request_body
from anabranch.testing import ScriptedBackend
from anabranch.tools import PythonKernel, ResourceLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_kernel() -> AsyncGenerator[PythonKernel]:
    """For the tests that are not about a kernel's start or end: each takes most of a second."""
    async with PythonKernel() as kernel:
        yield kernel


@pytest_asyncio.fixture(loop_scope="module")
async def kernel(one_kernel: PythonKernel) -> PythonKernel:
    """The shared kernel, without the variables of the test before."""
    await run(one_kernel, "get_ipython().reset(new_session=False)")
    return one_kernel


def shared(test: Any) -> Any:
    """Let a test use the shared kernel: all of them run in one process, on one loop."""
    return pytest.mark.asyncio(loop_scope="module")(pytest.mark.xdist_group("python kernel")(test))


async def run(kernel: PythonKernel, code: str) -> str:
    async with asyncio.timeout(60):
        return await kernel.tools[0].run({"code": code})


async def failure(kernel: PythonKernel, code: str) -> str:
    with pytest.raises(ToolError) as raised:
        await run(kernel, code)
    return str(raised.value)


async def late(kernel: PythonKernel, code: str) -> str:
    """Return the failure of code that times out after some output."""
    before = kernel.timeout
    try:
        for kernel.timeout in (0.5, 5, TIMEOUT_SECONDS):  # a busy machine takes longer to say it
            said = await failure(kernel, code)
            *before_last, last = said.splitlines()
            if text := [line for line in before_last if not line.startswith("[")]:
                return "\n".join((*text, last))
    finally:
        kernel.timeout = before
    raise AssertionError(said)


@shared
async def test_a_session_keeps_its_state_and_shows_what_happens(kernel: PythonKernel):
    """Variables, printed text, the value of the last line, errors; keys are not handed on."""
    assert await run(kernel, "x = 41\nprint('hi')\nx + 1") == "hi\n42"
    assert await run(kernel, "x + 2") == "43"
    assert await run(kernel, "y = 1") == "(no output)"
    assert "ZeroDivisionError: division by zero" in await failure(kernel, "1 / 0")
    assert "\x1b" not in await failure(kernel, "1 / 0")
    assert "SyntaxError" in await failure(kernel, "1 +")
    assert "StdinNotImplementedError" in await failure(kernel, "input()")
    assert await run(kernel, "x") == "41"
    assert "hello" in await run(kernel, "!echo hello")


async def test_only_harmless_variables_of_the_environment_are_handed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The code does not see keys; it sees `env` and `cwd` of the application."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "beside.py").write_text("here = True")
    async with PythonKernel(env={"GIVEN": "yes"}, cwd=tmp_path) as kernel:
        code = "import os, beside; os.environ.get('OPENAI_API_KEY'), os.environ['GIVEN']"
        assert await run(kernel, code) == "(None, 'yes')"


async def test_figures_are_images_beside_the_text(tmp_path: Path):
    """PNG as data URLs, named in the text; they survive in a record and reach who asks for them."""
    code = (
        "from IPython.display import Image, display\n"
        "from base64 import b64decode\n"
        f"png = b64decode('{PIXEL}')\n"
        "display(Image(png)); print('after'); display(Image(png))"
    )
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "figure-1.png").write_text("another's")
    async with PythonKernel(figures=tmp_path / "plots") as kernel:
        message = AgentMessage(content={"name": "python", "parameters": {"code": code}})
        (result,) = (await ToolExecutor([kernel])(message)).output

    first, second = (str(tmp_path / "plots" / f"figure-{n}.png") for n in (2, 3))
    assert result.content == f"[figure 1: {first}]\nafter\n[figure 2: {second}]"
    assert result.files == [first, second]
    assert (tmp_path / "plots" / "figure-1.png").read_text() == "another's"
    assert (tmp_path / "plots" / "figure-2.png").read_bytes() == base64.b64decode(PIXEL)
    assert len(result.parts) == 2
    head, _, data = result.parts[0].url.partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")

    conversation = Conversation()
    conversation.add("draw", result)
    assert Message.from_wire(result.to_record()).parts == result.parts
    plain, shown = (
        request_body("m", conversation.request(tool_images=wanted))["messages"]
        for wanted in (False, True)
    )
    assert [each["role"] for each in plain] == ["user", "tool"]
    assert plain[1]["content"] == result.content
    assert [each["role"] for each in shown] == ["user", "tool", "user"]
    assert shown[2]["content"][1] == result.parts[0].to_wire()


@shared
async def test_matplotlib_figures_are_shown_at_the_end_of_a_call(kernel: PythonKernel):
    """No plt.show() is needed."""
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    result = await run(kernel, code)

    (file,) = getattr(result, "files", ())
    assert result == f"[figure 1: {file}]"
    assert (await asyncio.to_thread(Path(file).read_bytes)).startswith(b"\x89PNG")
    assert len(getattr(result, "parts", ())) == 1


@shared
async def test_a_figure_too_many_is_left_out(kernel: PythonKernel):
    """The images of one call are limited in number and size."""
    code = (
        "from IPython.display import display\n"
        "class Picture:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(self.n)\n"
        "for _ in range(20): display(Picture(10))\n"
    )
    many = await run(kernel, code)
    large = await run(kernel, "display(Picture(9_000_000))")

    assert len(getattr(many, "parts", ())) == 16
    assert many.count("left out") == 4
    assert large == "[figure left out: too large, or too many figures]"


@shared
async def test_slow_code_is_interrupted_and_the_state_stays(kernel: PythonKernel):
    """The result has the output before the interrupt."""
    assert await run(kernel, "x = 1") == "(no output)"
    said = await late(kernel, "print('begun')\nimport time\ntime.sleep(100)")
    assert said.startswith("begun")
    assert said.endswith(" s: interrupted; the variables are kept]")
    assert await run(kernel, "x") == "1"


async def test_code_that_ignores_the_interrupt_is_killed():
    """With all its processes; the next call reports a new session."""
    code = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)\n"
        "time.sleep(1000)"
    )
    async with PythonKernel(grace=0.2) as kernel:
        said = await late(kernel, code)
        assert said.endswith(" s: killed]")
        assert has_exited(int(said.split()[0]))
        told = "[a new session, earlier variables are lost: the earlier process was killed]\n1"
        assert await run(kernel, "1") == told
        assert await run(kernel, "1") == "1"


@shared
async def test_output_is_cut_in_the_middle_and_a_flood_is_stopped(
    kernel: PythonKernel, monkeypatch: pytest.MonkeyPatch
):
    """The start and the end remain, and endless output is interrupted."""
    monkeypatch.setattr(kernel, "max_output", 100)
    cut = await run(kernel, "print('a' * 500 + 'b' * 500)")
    assert cut == f"{'a' * 50}\n[... 900 characters left out ...]\n{'b' * 50}"
    flood = await failure(kernel, "while True: print('y' * 1000)")
    assert flood.endswith("[stopped: too much output; the variables are kept]")
    assert len(flood) < 300
    assert await run(kernel, "1") == "1"


async def test_a_dead_process_is_a_failure_and_the_next_call_starts_anew():
    """However it died, and also between two calls."""
    async with PythonKernel() as kernel:
        for code, how in [
            ("import os; os._exit(3)", "status 3"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        ]:
            said = await failure(kernel, code)
            assert f"the Python process ended ({how}); all variables are lost" in said
        told = "[a new session, earlier variables are lost: the earlier process had ended]\n"
        assert (await run(kernel, "import os; os.getpid()")).startswith(told)
        pid = int(await run(kernel, "os.getpid()"))
        idle = kernel.interpreters.get()._kernel
        assert idle is not None
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not idle.is_alive)
        assert (await run(kernel, "1")).startswith(told)


async def test_resource_limits_hold():
    """Memory, file size and open files; the kernel survives."""
    limits = ResourceLimits(memory=2**30, file_size=1000, open_files=100)
    async with PythonKernel(limits=limits) as kernel:
        assert "MemoryError" in await failure(kernel, "b'x' * 2**31")
        assert "OSError" in await failure(
            kernel, "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(bytes(2000))"
        )
        assert "Too many open files" in await failure(
            kernel, "held = [open('/dev/null') for _ in range(200)]"
        )
        assert await run(kernel, "import resource; resource.getrlimit(resource.RLIMIT_CPU)") == (
            "(3600, 3600)"
        )


@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/false", "/bin/cat"])
async def test_a_python_that_does_not_start_is_a_clear_failure(executable: str):
    """No process is left."""
    before = child_processes()
    kernel = PythonKernel(executable=executable, start_timeout=5)

    assert (await failure(kernel, "1")).startswith("Python did not start")
    assert not find_leaks(child_processes, before)


async def test_a_kernel_that_cannot_begin_says_why():
    """For example because a package or memory is missing."""
    before, kernel = child_processes(), PythonKernel(limits=ResourceLimits(memory=2**20))

    assert "Error" in await failure(kernel, "1")
    assert not find_leaks(child_processes, before)


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    """It is an ImportError, too."""
    for module in ("_interpreter", "_kernel"):
        monkeypatch.delitem(sys.modules, f"anabranch.tools.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "jupyter_client", None)
    monkeypatch.setitem(sys.modules, "jupyter_client.asynchronous.client", None)
    with pytest.raises(MissingExtra, match=r"anabranch\[python\]"):
        await PythonKernel().tools[0].run({"code": "1"})


class Talk(Job[Any]):
    backend: ScriptedBackend
    kernel: PythonKernel

    async def task(self) -> Any:
        return await respond(self.backend, Conversation(), self.kernel.tools, Quiet())


class Quiet(View):
    def write(self, text: str) -> None: ...


def calling(code: str) -> Message:
    call = ToolCall(id="1", name="python", arguments={"code": code})
    return Message(role="assistant", tool_calls=[call])


@pytest.mark.parametrize("busy", [True, False])
def test_a_closed_kernel_leaves_nothing_behind(busy: bool, tmp_path: Path):
    """No process and no thread, whether a cancel had stopped its code or it was idle."""
    started = tmp_path / "started"
    code = (
        "import subprocess, pathlib\n"
        "sleeper = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"pathlib.Path({str(started)!r}).write_text(str(sleeper.pid))\n"
    ) + ("while True: pass" if busy else "")
    before = child_processes()

    async def main() -> None:
        idle, kernel = asyncio.Event(), PythonKernel(grace=TIMEOUT_SECONDS)
        backend = ScriptedBackend(calling(code), [idle, asyncio.Event()])
        async with asyncio.timeout(60), Commander(slow_after=None) as commander:
            job = commander.put_job(Talk(backend, kernel), claim=True)
            await wait_until(lambda: started.exists() and (busy or len(backend.requests) == 2))
            assert child_processes() - before
            job.cancel()
            with pytest.raises(NodeCancelled):
                await job
            assert await run(kernel, "sleeper.poll() is None") == "True"
            await kernel.aclose()
            assert not find_leaks(child_processes, before)  # the commander is still open
        assert has_exited(int(started.read_text()))

    asyncio.run(main())  # loads what stays loaded, such as numpy's or ZeroMQ's own
    started.unlink()
    still = thread_ids()
    asyncio.run(main())
    assert not find_leaks(thread_ids, still)
    assert not find_leaks(child_processes, before)


@shared
async def test_a_cancelled_call_is_stopped_and_the_session_stays(
    kernel: PythonKernel, tmp_path: Path
):
    """As when a person interrupts a reply and continues the chat."""
    started = tmp_path / "started"
    await run(kernel, "x = 5")
    code = f"open({str(started)!r}, 'w').close()\nwhile True: pass"
    running = asyncio.create_task(run(kernel, code))
    await wait_until(started.exists)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert await run(kernel, "x") == "5"


@shared
async def test_calls_of_one_session_take_turns(kernel: PythonKernel):
    """They never mix their output."""
    codes = [f"import time; time.sleep(0.01); print({n})" for n in range(5)]
    said = await asyncio.gather(*(run(kernel, code) for code in codes))

    assert said == ["0", "1", "2", "3", "4"]


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
