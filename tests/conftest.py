"""Property tests are the same in every run, and have no time limit of their own."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["real_milvus"]

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("repeatable")
