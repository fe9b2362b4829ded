"""Generates the stubs of every package from the .proto files beside this script.

Usage: python proto/generate.py [FOLDER]     FOLDER defaults to src/ of this checkout.
       python proto/generate.py --image FILE  writes a descriptor set (for ``buf lint``) instead.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import status_pb2
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
SOURCES = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
INCLUDES = (PROTO, Path(status_pb2.__file__).parents[2], Path(protoc.__file__).parent / "_proto")

PACKAGES = {
    "secateur/v1": "the ``secateur.v1`` contract",
    "secateur/modelservice": "Milvus's model services (``milvus.proto.modelservice``)",
}
"""Each folder with .proto files, and what it holds."""

INIT_HEADER = '"""Generated protobuf and gRPC stubs of {}. Do not edit."""\n\n'


def run_protoc(*arguments: str) -> None:
    includes = [f"--proto_path={folder}" for folder in INCLUDES]
    if protoc.main(["protoc", *includes, *arguments, *SOURCES]) != 0:
        raise SystemExit("protoc failed")


def generate(folder: Path) -> None:
    """Write each package with its modules, type stubs and ``__init__.py`` under *folder*."""
    for package in PACKAGES:
        (folder / package).mkdir(parents=True, exist_ok=True)
    tools = Path(sys.executable).parent
    run_protoc(
        f"--plugin=protoc-gen-mypy={tools / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        f"--mypy_out=quiet:{folder}",
        f"--mypy_grpc_out=quiet:{folder}",
    )
    files = descriptors()
    for package, subject in PACKAGES.items():
        own = [file for file in files if Path(file.name).parent.as_posix() == package]
        content = INIT_HEADER.format(subject) + exports(own)
        (folder / package / "__init__.py").write_text(content, encoding="utf-8")


def descriptors() -> list[FileDescriptorProto]:
    """The parsed .proto files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image.binpb")
        run_protoc(f"--descriptor_set_out={path}")
        image = FileDescriptorSet()
        image.ParseFromString(path.read_bytes())
    return list(image.file)


def exports(files: Iterable[FileDescriptorProto]) -> str:
    """Imports of every message, enum, stub and servicer, and the ``__all__`` that names them."""
    lines: list[str] = []
    names: list[str] = []
    for file in files:
        module = f"{file.name.removesuffix('.proto').replace('/', '.')}_pb2"
        types = [item.name for item in file.message_type] + [item.name for item in file.enum_type]
        calls = [
            name
            for service in file.service
            for name in (
                f"{service.name}Servicer",
                f"{service.name}Stub",
                f"add_{service.name}Servicer_to_server",
            )
        ]
        for source, found in ((module, types), (f"{module}_grpc", calls)):
            if found:
                lines += [
                    f"from {source} import (",
                    *(f"    {name}," for name in sorted(found)),
                    ")",
                ]
                names += found
    listed = "\n".join(f'    "{name}",' for name in sorted(names))
    return "\n".join(lines) + f"\n\n__all__ = [\n{listed}\n]\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--image"]:
        run_protoc(
            "--include_imports", "--include_source_info", f"--descriptor_set_out={sys.argv[2]}"
        )
    else:
        generate(Path(sys.argv[1]) if sys.argv[1:] else PROTO.parent / "src")
