"""Prefixes of `connect` that other packages register."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest
from support.paths import ROOT

from anabranch.backends import connect
from anabranch.commander import ConfigurationError, MissingExtra
from anabranch.commander.plugins import find_plugin, plugin_names
from anabranch.messages import Message, Request

PAGE = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
GROUP = "anabranch.providers"
HELLO = Request([Message(role="user", content="Pretty Polly")])


RAY: Any = ModuleType("ray")  # for a machine without it
RAY.init = None


def parrot() -> tuple[str, str]:
    """Return the page's module, and its entry points as an installer writes them."""
    section = PAGE.partition("## A backend of your own")[2].partition("\n## ")[0]
    module, table = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    points = tomllib.loads(table)["project"]["entry-points"][GROUP]
    return module, "\n".join(f"{name} = {value}" for name, value in points.items())


def contents(package: str, module: str, points: str) -> dict[str, str]:
    """Return the files that a wheel has and an installer leaves, by path."""
    info = f"{package}-1.0.dist-info"
    return {
        f"{package}.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[{GROUP}]\n{points}\n",
        f"{info}/RECORD": "",
    }


def install(folder: Path, package: str, module: str, points: str) -> None:
    for path, text in contents(package, module, points).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)


async def test_an_installed_package_brings_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the page; it is imported only when it is used."""
    install(tmp_path, "parrot", *parrot())
    monkeypatch.syspath_prepend(tmp_path)
    connect("cassette:x")
    assert "parrot" not in sys.modules

    backend = connect("parrot:grey", temperature=0.5)

    assert (backend.model, backend.provider) == ("grey", "parrot")
    assert backend.default_options == {"temperature": 0.5}
    assert (await backend.complete(HELLO)).content == "Pretty Polly "
    assert connect("parrot", model="green").model == "green"


def test_a_package_that_pip_installed_brings_a_prefix(tmp_path: Path) -> None:
    """In another process, where its backend is made again."""
    wheel, target = tmp_path / "parrot-1.0-py3-none-any.whl", tmp_path / "target"
    with ZipFile(wheel, "w") as archive:
        for path, text in contents("parrot", *parrot()).items():
            archive.writestr(path, text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, timeout=120)
    code = (
        "import pickle, anabranch; from anabranch.messages import Message, Request\n"
        "backend = pickle.loads(pickle.dumps(anabranch.connect('parrot:grey')))\n"
        "request = Request([Message(role='user', content='Hi')])\n"
        "for delta in backend.stream_sync(request): print(delta.text)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(target)},
        cwd="/",
        timeout=60,
    )

    assert (done.stdout.split(), done.stderr) == (["Hi"], "")


def test_the_cluster_registers_its_prefix_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends do not import it."""
    monkeypatch.setitem(sys.modules, "ray", RAY)
    assert "ray" in plugin_names(GROUP)
    assert connect("ray:llm").provider == "ray"
    with pytest.raises(ConfigurationError, match="must have the name of an engine"):
        connect("ray")
    with pytest.raises(ConfigurationError, match="must not have base_url"):
        connect("ray:llm", base_url="http://h/v1")


def test_an_unknown_prefix_lists_those_of_packages_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suggestions include them."""
    install(tmp_path, "cockatoo", "", "cockatoo = cockatoo:Cockatoo")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match=r"mean 'cockatoo:x'\? Known are .*cockatoo"):
        connect("cockato:x")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import there_is_no_such_module", "ModuleNotFoundError: No module named 'there_is"),
        ("", "AttributeError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Mute(Exception):\n    __str__ = None\nraise Mute(7)", "Mute: 7"),
    ],
)
def test_a_broken_package_breaks_its_own_prefix_alone(
    module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error names the package and its entry point."""
    package = f"moulting{abs(hash(module))}"
    install(tmp_path, package, module, f"moulting = {package}:Moulting")
    monkeypatch.syspath_prepend(tmp_path)

    assert connect("cassette:x").provider == "cassette"
    with pytest.raises(ConfigurationError, match="Known are"):
        connect("no-such-prefix:x")
    with pytest.raises(ConfigurationError, match=said) as caught:
        connect("moulting:x")
    assert f"the package {package} cannot be loaded from '{package}:Moulting'" in str(caught.value)


@pytest.mark.parametrize("points", [b"[other]\nno value\n", b"[other]\nx = \xff\n"])
def test_a_list_that_cannot_be_read_registers_nothing(
    points: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes of other packages stay."""
    install(tmp_path, "dodo", "", "")
    (tmp_path / "dodo-1.0.dist-info" / "entry_points.txt").write_bytes(points)
    install(tmp_path, "parrot", *parrot())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", RAY)

    assert connect("parrot:grey").provider == "parrot"
    assert connect("ray:llm").provider == "ray"
    with pytest.raises(ConfigurationError, match=r"Known are .*parrot"):
        connect("no-such-prefix:x")


def test_a_prefix_of_two_packages_without_names_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted uninstall may leave such packages."""
    for package in "auk", "moa":
        install(tmp_path, package, "", "extinct = builtins:repr")
        (tmp_path / f"{package}-1.0.dist-info" / "METADATA").unlink()
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match=r"more than one package.* unknown"):
        connect("extinct:x")


def test_a_package_may_ask_for_an_extra_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is unchanged and says what to install."""
    module = "import anabranch\nraise anabranch.MissingExtra('the finch', 'finch')"
    install(tmp_path, "finch", module, "finch = finch:Finch")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(MissingExtra):
        connect("finch:x")


def test_a_prefix_that_two_packages_bring_is_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the path must not decide."""
    for package in "wren", "robin":
        install(tmp_path, package, "make = None", f"songbird = {package}:make")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match="robin and wren"):
        connect("songbird:x")


def test_a_package_cannot_take_a_prefix_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise our documentation would be wrong."""
    install(tmp_path, "cuckoo", "1 / 0", "cassette = cuckoo:Cuckoo")
    monkeypatch.syspath_prepend(tmp_path)

    assert connect("cassette:x").provider == "cassette"


def test_a_provider_makes_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is refused at once."""
    install(tmp_path, "magpie", "", "magpie = builtins:repr")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match="'magpie' returned str, not a Backend"):
        connect("magpie:x")
    install(tmp_path, "pebble", "", "pebble = pebble")
    with pytest.raises(ConfigurationError, match="'pebble' is module, which cannot be called"):
        connect("pebble:x")


def test_what_nobody_registered_is_none() -> None:
    """For any group."""
    assert find_plugin(GROUP, "no-such-prefix") is None
    assert find_plugin("anabranch.no-such-group", "x") is None
    assert plugin_names("anabranch.no-such-group") == []
