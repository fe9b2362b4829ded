"""Settings: sources and their order, errors that name the culprit, the printed form."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import SecretStr

from secateur.server import cpus
from secateur.server.settings import (
    ServerSettings,
    SettingsError,
    describe,
    load_settings,
)
from secateur.types import Limits

DOCUMENT = Path(__file__).parents[1] / "docs/configuration.md"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SECATEUR_"):
            monkeypatch.delenv(name)


def test_defaults() -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 50051, None)
    assert settings.threads == cpus.available_cpus()
    assert settings.limits == Limits()


def test_flag_beats_environment_beats_file_beats_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secateur.toml"
    file.write_text('host = "file"\nport = 1\nmax_batch_tokens = 2\nmodel = "m"\n')
    monkeypatch.setenv("SECATEUR_CONFIG", str(file))
    monkeypatch.setenv("SECATEUR_PORT", "3")
    monkeypatch.setenv("SECATEUR_HOST", "environment")
    settings = load_settings(host="flag", model=None)
    assert settings.host == "flag"
    assert settings.port == 3
    assert settings.max_batch_tokens == 2
    assert settings.model == "m"
    assert settings.max_batch_windows == ServerSettings.model_fields["max_batch_windows"].default


def test_the_config_flag_beats_the_config_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, port in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(f"port = {port}\n")
    monkeypatch.setenv("SECATEUR_CONFIG", str(tmp_path / "a"))
    assert load_settings(config=tmp_path / "b").port == 2


def test_batches_suit_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever the device is named; a given number always wins."""
    assert batches() == (2_048, 64)
    assert batches(device="mps") == (2_048, 64)
    assert batches(device="cuda:1") == (32_768, 1_024)
    assert batches(device="cuda", max_batch_tokens=5) == (5, 1_024)
    assert batches(max_batch_windows=5) == (2_048, 5)
    file = tmp_path / "secateur.toml"
    file.write_text('device = "cuda"\nmax_batch_windows = 7\n')
    assert batches(config=file) == (32_768, 7)
    monkeypatch.setenv("SECATEUR_MAX_BATCH_TOKENS", "9")
    assert batches(config=file) == (9, 7)
    with pytest.raises(SettingsError, match=r"--device: .*, not 'cudas'") as caught:
        load_settings(device="cudas")
    assert len(str(caught.value).splitlines()) == 1


def batches(**flags: object) -> tuple[int, int]:
    settings = load_settings(**flags)
    return settings.max_batch_tokens, settings.max_batch_windows


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECATEUR_MODEL", "")
    assert load_settings().model is None


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("SECATEUR_PRT", "SECATEUR_PORT"),
        ("SECATEUR_MAX_BATCH_TOKEN", "SECATEUR_MAX_BATCH_TOKENS"),
        ("secateur_modle", "SECATEUR_MODEL"),
    ],
)
def test_an_unknown_variable_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, wrong: str, nearest: str
) -> None:
    monkeypatch.setenv(wrong, "1")
    with pytest.raises(SettingsError, match=f"{wrong.upper()}; the nearest is {nearest}$"):
        load_settings()


def test_an_unknown_key_of_the_file_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "secateur.toml"
    file.write_text("drain_second = 3\n")
    with pytest.raises(SettingsError, match=r"drain_second; the nearest is .*: drain_seconds$"):
        load_settings(config=file)


def test_an_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"--log-lvl; the nearest is --log-level$"):
        load_settings(log_lvl="info")


def test_a_bad_value_names_its_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secateur.toml"
    file.write_text('drain_seconds = "long"\n')
    monkeypatch.setenv("SECATEUR_PORT", "70000")
    with pytest.raises(SettingsError) as caught:
        load_settings(config=file, max_batch_tokens=0)
    lines = sorted(str(caught.value).splitlines())
    assert [line.partition(":")[0] for line in lines] == [
        "--max-batch-tokens",
        "SECATEUR_PORT",
        "drain_seconds (in the config file)",
    ]
    assert lines[1].endswith("less than or equal to 65535, not '70000'")


@pytest.mark.parametrize("content", [b"port = ", b"\xff = 1"])
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secateur.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load_settings(config=file)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config: cannot read .*: No such file"):
        load_settings(config=tmp_path / "none.toml")


def test_variables_that_kubernetes_injects_are_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Service named secateur used to stop every pod beside it: SECATEUR_PORT=tcp://..."""
    for name, value in {
        "SECATEUR_SERVICE_HOST": "10.0.0.1",
        "SECATEUR_SERVICE_PORT": "50051",
        "SECATEUR_SERVICE_PORT_GRPC": "50051",
        "SECATEUR_PORT": "tcp://10.0.0.1:50051",
        "SECATEUR_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "SECATEUR_PORT_50051_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    assert load_settings().port == 50051


def test_every_limit_can_be_set() -> None:
    for number, field in enumerate(fields(Limits), 1_001):
        settings = load_settings(**{field.name: number})
        assert getattr(settings.limits, field.name) == number


def test_describe_prints_every_setting_and_hides_secrets() -> None:
    class WithSecret(ServerSettings):
        token: SecretStr = SecretStr("swordfish")

    settings = WithSecret.load(port=1)
    text = describe(settings)
    assert [line.split()[0] for line in text.splitlines()] == list(WithSecret.model_fields)
    assert "port" in text
    assert "swordfish" not in text
    assert "********" in text


def test_a_bad_secret_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithSecret(ServerSettings):
        token: SecretStr = SecretStr("")

    with pytest.raises(SettingsError) as caught:
        WithSecret.load(token=["swordfish"])
    assert "--token" in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_the_document_lists_every_setting_with_its_default() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    for name, field in ServerSettings.model_fields.items():
        row = next((line for line in lines if line.startswith(f"| `{name}` |")), None)
        assert row is not None, f"docs/configuration.md has no row for {name}"
        cells = [cell.strip() for cell in row.split("|")]
        if name != "threads":
            words = {None: "unset", "": "empty"}
            shown = words.get(field.default) or f"`{field.default}`".lower()
            assert cells[2].lower().replace(",", "") == shown, name


@pytest.mark.parametrize(
    ("membership", "files", "count"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/", {}, 64),
        ("", {"cpu.max": "10000 100000"}, 1),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        (
            "4:cpu,cpuacct:/x\n0::/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("0::/", {"cpu.max": "nonsense here"}, 64),
    ],
)
def test_available_cpus_obeys_the_container(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    membership: str,
    files: dict[str, str],
    count: int,
) -> None:
    """A thread count above the container's quota makes the kernel pause all threads."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (tmp_path / "membership").write_text(membership)
    for name, content in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert cpus.available_cpus(tmp_path / "root", tmp_path / "membership") == count


def test_available_cpus_obeys_the_affinity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert cpus.available_cpus(tmp_path, tmp_path / "none") == 1
