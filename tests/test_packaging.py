"""The wheel holds every file of the sources under one name, and prunes where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

FOLDERS = ("model", "server", "training")

PRUNE = """
import secateur
from secateur import Passage, PruneOptions, Pruner
result = Pruner.load().rerank_and_prune(
    "What colour is the valve?",
    [Passage(text="The hall is quiet today. The valve is red.", id="a")],
    PruneOptions(threshold=0.0),
).results[0]
assert result.id == "a" and result.pruned_text, result
print(secateur.__file__)
"""


def sources() -> dict[str, Path]:
    """Every file that must be installed: its path in the wheel, and where it lies here."""
    folders = {"secateur": "src/secateur", **{f"secateur/{name}": name for name in FOLDERS}}
    return {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}": path
        for target, folder in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline from a copy: a build writes into its source folder."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "proto", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "-w", folder, copy], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert packed == set(sources())
        different = [
            name for name, path in sources().items() if archive.read(name) != path.read_bytes()
        ]
    assert not different


def test_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        meta = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        assert {name.partition("/")[0] for name in names} == {"secateur", meta}
        assert {f"{meta}/licenses/LICENSE", f"{meta}/licenses/NOTICE"} <= set(names)


def test_listed_packages_are_the_folders_with_code() -> None:
    found = {name.rpartition("/")[0].replace("/", ".") for name in sources() if name[-3:] == ".py"}
    assert found == set(SETTINGS["tool"]["setuptools"]["packages"])


def test_installed_wheel_prunes_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The checkout as working directory shadows nothing of an installed wheel."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Dependencies are borrowed from this environment. As PYTHONPATH would, a path in a .pth file
    # comes after the wheel, and .pth files inside it (editable installs) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SECATEUR_"))
    }
    done = subprocess.run(
        [home / "bin" / "python", "-c", PRUNE],
        cwd=ROOT,
        env={**environment, "HF_HUB_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(site)


def test_pins_lie_inside_the_ranges() -> None:
    """Every direct dependency has a pin in constraints.txt that its range allows."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    project = SETTINGS["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        if requirement.name != "secateur":
            assert requirement.specifier.contains(pins[requirement.name]), requirement.name


def test_stubs_and_lower_bounds_agree() -> None:
    """The stubs refuse older runtimes; pip must never install one of those."""
    bounds = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, SETTINGS["project"]["dependencies"])
    }
    stubs = ROOT / "src" / "secateur" / "v1"
    messages = (stubs / "rerank_prune_pb2.py").read_text(encoding="utf-8")
    calls = (stubs / "rerank_prune_pb2_grpc.py").read_text(encoding="utf-8")
    for name, text, pattern in (
        ("protobuf", messages, r"Protobuf Python Version: (\S+)"),
        ("grpcio", calls, r"GRPC_GENERATED_VERSION = '(\S+)'"),
    ):
        found = re.search(pattern, text)
        assert found
        lowest = min(Version(item.version) for item in bounds[name] if item.operator == ">=")
        assert lowest >= Version(found[1]), name
