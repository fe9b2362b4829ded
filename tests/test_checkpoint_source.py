"""Where checkpoints come from: folders, the hub, the cache; safetensors, and pickles if asked."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from families_originals import KINDS, build, save, state, write
from huggingface_hub import errors
from one_thread import one_thread  # noqa: F401 - a fixture

from secateur import CheckpointError
from secateur.model.checkpoints.load import load_checkpoint
from secateur.model.checkpoints.source import EMBEDDED, resolve
from secateur.model.pruner import Pruner


class FakeHub:
    """Stands in for ``snapshot_download``: a folder, or an error, and the calls it got."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []

    def __call__(self, name: str, **arguments: Any) -> str:
        self.calls.append({"name": name, **arguments})
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def test_a_hub_id_loads_under_its_own_name(hub: FakeHub, tmp_path: Path) -> None:
    """The cache's folder is called after a commit."""
    write("plain-bert", tmp_path)
    pruner = Pruner.load("owner/some-model", revision="v2")
    assert pruner.info.id == "owner/some-model"
    (call,) = hub.calls
    assert (call["name"], call["revision"], call["local_files_only"]) == (
        "owner/some-model",
        "v2",
        False,
    )
    assert not [
        pattern
        for pattern in call["allow_patterns"]
        if not pattern.endswith(("json", "safetensors"))
    ]


def test_a_revision_in_the_name(hub: FakeHub) -> None:
    """The only way for `serve --model` and SECATEUR_MODEL."""
    assert resolve("owner/model@abc123").name == "owner/model"
    assert hub.calls[0]["revision"] == "abc123"
    with pytest.raises(CheckpointError, match="give one"):
        resolve("owner/model@abc123", revision="main")


def test_local_names_do_not_ask_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    """F24: also where a folder's path looks like a hub id."""
    hub.answer = AssertionError("the hub was asked")
    assert resolve().name == resolve(EMBEDDED).name == EMBEDDED
    assert resolve(tmp_path).folder == tmp_path
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        (tmp_path / "owner" / "model").mkdir(parents=True)
        assert resolve("owner/model").folder == Path("owner/model")
        assert resolve(".").name == tmp_path.name
    for nowhere in ("nowhere", "a/b/c", "/a/b", tmp_path / "none", Path("owner/gone")):
        with pytest.raises(CheckpointError, match="no checkpoint folder at"):
            resolve(nowhere)
    with pytest.raises(CheckpointError, match="a revision belongs to a hub id"):
        resolve(tmp_path, revision="main")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_offline_variables(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    resolve("owner/model")
    assert hub.calls[0]["local_files_only"] is True
    hub.answer = errors.LocalEntryNotFoundError("long text")
    with pytest.raises(
        CheckpointError,
        match=r"no such folder here, it is not in the local cache.*HF_HUB_OFFLINE or",
    ):
        resolve("owner/model")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.RepositoryNotFoundError, "neither such a folder here nor such a model"),
        (errors.GatedRepoError, "its owner must grant you access"),
        (errors.RevisionNotFoundError, "cannot fetch owner/model@main: no such revision"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached"),
        (errors.HfHubHTTPError, "cannot fetch owner/model@main from the hub"),
        (errors.HFValidationError, "cannot fetch owner/model@main from the hub"),
        (ConnectionError, "cannot fetch owner/model@main from the hub"),
    ],
)
def test_hub_errors_are_one_sentence(hub: FakeHub, error: type[Exception], message: str) -> None:
    hub.answer = error.__new__(error)
    with pytest.raises(CheckpointError, match=message):
        resolve("owner/model", revision="main")


def pickled(folder: Path, *, shards: int = 1) -> Path:
    """A checkpoint that has its weights in pickles only."""
    model, tokenizer, config = build(KINDS["plain-bert"])
    tensors = state(model)
    save(folder, tensors, tokenizer, config)
    (folder / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
        return folder
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"pytorch_model-{number:05d}.bin"
        part = {key: tensors[key] for key in sorted(tensors)[number::shards]}
        torch.save(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = json.dumps({"weight_map": weight_map})
    (folder / "pytorch_model.bin.index.json").write_text(index)
    return folder


@pytest.mark.parametrize("shards", [1, 2])
def test_pickles_load_only_when_allowed(tmp_path: Path, shards: int) -> None:
    folder = pickled(tmp_path, shards=shards)
    with pytest.raises(CheckpointError, match=r"found pytorch_model.*read only where.*allowed"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="pickle"):
        Pruner.load(folder)
    allowed = load_checkpoint(folder, allow_pickle=True)
    write("plain-bert", tmp_path / "safe")
    safe = load_checkpoint(tmp_path / "safe").model.state_dict()
    assert safe.keys() == allowed.model.state_dict().keys()
    assert all(torch.equal(safe[key], value) for key, value in allowed.model.state_dict().items())


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil-was-here"),))


@pytest.mark.parametrize("content", [Evil(), {"a": 1}, [1, 2]])
def test_a_pickle_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object
) -> None:
    """Allowed pickles hold tensors by name, or are refused; nothing of theirs is called."""
    folder = pickled(tmp_path)
    monkeypatch.chdir(tmp_path)
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
        load_checkpoint(folder, allow_pickle=True)
    assert not (tmp_path / "evil-was-here").exists()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
        load_checkpoint(folder, allow_pickle=True)


def test_pickles_are_fetched_only_where_there_is_nothing_better(
    hub: FakeHub, tmp_path: Path
) -> None:
    resolve("owner/model", allow_pickle=True)
    assert len(hub.calls) == 2
    assert "pytorch_model.bin" in hub.calls[1]["allow_patterns"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    hub.calls.clear()
    resolve("owner/model", allow_pickle=True)
    assert len(hub.calls) == 1


def test_an_index_cannot_leave_its_folder(tmp_path: Path) -> None:
    """A path in the index is taken as a name beside it."""
    write("plain-bert", tmp_path / "victim")
    folder = tmp_path / "folder"
    write("plain-bert", folder)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"bert.x": "../victim/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"folder/model\.safetensors: no such file, but the"):
        load_checkpoint(folder)
    (folder / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="not an index of weights"):
        load_checkpoint(folder)


@pytest.mark.parametrize("path", ["./nope", "../nope", "nope/.hidden"])
def test_a_path_is_no_hub_id(path: str) -> None:
    """``./nope`` was looked up on the hub."""
    with pytest.raises(CheckpointError, match="no checkpoint folder at"):
        resolve(path)
