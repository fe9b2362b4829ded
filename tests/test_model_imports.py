"""The model package stands on its own: no transport, no store, nothing imported by itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import secateur.model.engine

FOLDER = Path(secateur.model.engine.__file__).parent
FORBIDDEN = ("grpc", "google", "pymilvus", "secateur.server", "secateur.v1", "secateur.training")


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_no_forbidden_import(path: Path) -> None:
    """Imports go one way, server to model; inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    assert not [n for n in names for bad in FORBIDDEN if n == bad or n.startswith(f"{bad}.")]


def test_init_is_empty() -> None:
    """Importing one module must not pull in all of them."""
    assert not ast.parse((FOLDER / "__init__.py").read_text(encoding="utf-8")).body


def test_the_engine_does_without_torch() -> None:
    """Only the scorer and the checkpoint know torch: importing the engine is quick."""
    code = (
        "import sys, secateur.model.pruner\n"
        "heavy = {'torch', 'transformers', 'grpc', 'google.protobuf'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
