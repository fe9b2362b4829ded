"""What may import what, and what `import secateur` must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import secateur
from secateur import errors, types

ROOT = Path(__file__).resolve().parents[1]
WIRE = ("grpc", "google.protobuf", "google.rpc", "pymilvus", "secateur.v1")

# Each folder, and what its modules must not import.
FORBIDDEN = {
    "model": (*WIRE, *(f"secateur.{name}" for name in "bench cli client server training".split())),
    "server": ("pymilvus", "secateur.bench", "secateur.cli", "secateur.training"),
    "training": (*WIRE, *(f"secateur.{name}" for name in "bench cli client server".split())),
}


def imported(path: Path) -> set[str]:
    """Dotted names that the module at *path* imports anywhere, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def printed_by(code: str) -> str:
    """What *code* prints in a new interpreter."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(statement: str) -> set[str]:
    """Modules that are loaded after *statement* ran in a new interpreter."""
    return set(printed_by(f"import sys\n{statement}\nprint(*sys.modules)").split())


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_go_one_way(folder: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in sorted(imported(path))
        if any(f"{name}.".startswith(f"{banned}.") for banned in FORBIDDEN[folder])
    ]
    assert not faults


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_init_imports_nothing(folder: str) -> None:
    assert not imported(ROOT / folder / "__init__.py")


@pytest.mark.parametrize("module", ["types", "errors"])
def test_leaf_modules_use_the_standard_library_only(module: str) -> None:
    roots = {name.partition(".")[0] for name in imported(ROOT / f"src/secateur/{module}.py")}
    assert roots <= sys.stdlib_module_names


def test_import_secateur_is_light() -> None:
    modules = loaded_by("import secateur")
    roots = {name.partition(".")[0] for name in modules - loaded_by("pass")}
    assert roots - {"secateur"} <= sys.stdlib_module_names


def test_client_loads_no_model() -> None:
    assert not {"torch", "transformers"} & loaded_by("from secateur import Client")


def test_pruner_loads_no_wire() -> None:
    modules = loaded_by("from secateur import Pruner")
    assert not {"grpc", "google.protobuf", "pymilvus", "secateur.v1"} & modules


@pytest.mark.parametrize("package", ["numpy", "torch", "transformers"])
def test_missing_extra_is_one_sentence(package: str) -> None:
    """Without the packages of ``serve``, asking for ``Pruner`` names the pip command."""
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "import secateur\n"
        "try: secateur.Pruner\n"
        "except secateur.MissingExtraError as error: print(error)"
    )
    assert printed_by(code) == f"{package} is not installed; run: pip install 'secateur[serve]'"


def test_all_names_every_public_type_and_error() -> None:
    public = {
        name
        for module in (types, errors)
        for name, item in vars(module).items()
        if isinstance(item, type) and item.__module__ == module.__name__
    }
    assert public | {"Client", "Pruner", "Tls", "__version__"} == set(secateur.__all__)


def test_version_is_that_of_the_distribution() -> None:
    assert secateur.__version__.count(".") == 2
