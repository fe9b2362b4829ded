"""A real Milvus 2.3.5 for the tests of a session: dense search only, and limits in bytes."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def real_milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. It starts on first use, once, and stops at the end of the session."""
    milvus = pytest.importorskip(
        "milvus", reason="the package milvus, a real server, has no wheel for this platform"
    )
    folder = tmp_path_factory.mktemp("milvus")
    server = milvus.MilvusServer(milvus.MilvusServerConfig(data_dir=str(folder)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it forgets the ports that it tries
            server.start()
        yield f"http://{server.server_address}:{server.listen_port}"
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)  # it unpacks half a gigabyte of programs
