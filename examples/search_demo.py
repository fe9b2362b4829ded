"""Index a corpus, ask three questions: ``make demo-search``, or python examples/search_demo.py."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from secateur.cli import main

CORPUS = Path(__file__).with_name("wikipedia.jsonl")
STORE = "build/demo-search.db"
QUESTIONS = (
    "How did the amphibious tank stay afloat?",
    "Who damaged a colossal stone head, and with what tool?",
    "Why did miners name a mountain after Samuel Elbert?",
)


def run(*arguments: str) -> None:
    """Show the command and run it."""
    print(f"$ secateur {shlex.join(arguments)}", flush=True)
    code = main(arguments)
    if code:
        sys.exit(code)
    print(flush=True)


if __name__ == "__main__":
    where = ("--collection", "wikipedia", "--milvus", STORE)
    run("index", *where, os.path.relpath(CORPUS))
    for question in QUESTIONS:
        run("search", *where, "--candidates", "20", "--top-k", "1", question)
