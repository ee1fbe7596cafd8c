"""What a worker is told by its environment."""

from pathlib import Path
from typing import NoReturn

import pytest
from pydantic import ValidationError

from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import OPERATIONS, TASKS
from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.gpu.faults import NoDevice
from warpdesk_server.workers.child import device
from warpdesk_server.workers.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "WARPDESK_KERNEL_CACHE"
    for name in ("WARPDESK_HOME", "WARPDESK_STORE", "XDG_STATE_HOME", *caches):
        monkeypatch.delenv(name, raising=False)


def test_state_lives_in_the_xdg_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert WorkerSettings().home == Path("/home/someone/.local/state/warpdesk")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert WorkerSettings().home == Path("/var/state/warpdesk")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # to be ignored, says the specification
    assert WorkerSettings().home == Path("/home/someone/.local/state/warpdesk")


def test_the_store_and_the_caches_are_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPDESK_HOME", "/srv/w")
    settings = WorkerSettings()
    assert settings.store_directory == Path("/srv/w/store")
    assert settings.cache_environment() == {
        "NUMBA_CACHE_DIR": f"/srv/w/cache/numba/{fingerprint()}",
        "WARPDESK_KERNEL_CACHE": "/srv/w/cache/kernels",
        "CUPY_CACHE_DIR": "/srv/w/cache/cupy",
    }
    monkeypatch.setenv("WARPDESK_STORE", "/mnt/store")
    assert WorkerSettings().store_directory == Path("/mnt/store")


def test_a_cache_elsewhere_is_named_by_the_sources_too_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", "/mnt/cupy")
    monkeypatch.setenv("WARPDESK_KERNEL_CACHE", "/mnt/kernels")
    for directory in ("/mnt/numba", f"/mnt/numba/{fingerprint()}"):
        monkeypatch.setenv("NUMBA_CACHE_DIR", directory)
        assert WorkerSettings().cache_environment() == {"NUMBA_CACHE_DIR": f"/mnt/numba/{fingerprint()}"}
    monkeypatch.setenv("WARPDESK_HOME", "/srv/w")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # Numba takes this for unset
    assert WorkerSettings().cache_environment() == {"NUMBA_CACHE_DIR": f"/srv/w/cache/numba/{fingerprint()}"}


def test_the_catalogue_is_the_one_that_is_published() -> None:
    assert WorkerSettings().catalogue() == OPERATIONS
    assert WorkerSettings().tasks() == TASKS
    assert WorkerSettings(takes="tasks").catalogue() == {}


def test_a_negative_grace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPDESK_DRAIN_SECONDS", "-1")
    with pytest.raises(ValidationError, match="drain_seconds"):
        WorkerSettings()


def test_the_share_of_the_gpu_that_is_set_is_what_its_memory_is_opened_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPDESK_GPU_MEMORY", "0.5")
    memory_settings: list[str] = []

    def open_device(index: int = 0, memory: str = "") -> NoReturn:
        memory_settings.append(memory)
        raise NoDevice(f"there is no device {index}")

    monkeypatch.setattr(device, "_missing", lambda: None)
    monkeypatch.setattr(device, "open_device", open_device)
    settings = WorkerSettings()
    assert device.probe(settings.device, settings.gpu_memory).report.reason == "there is no device 0"
    assert memory_settings == ["0.5"]


@pytest.mark.parametrize("settings", [WorkerSettings, Settings])
def test_secrets_may_come_as_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: type[WorkerSettings] | type[Settings]
) -> None:
    monkeypatch.delenv("WARPDESK_REDIS_URL", raising=False)
    for name, text in (("REDIS_URL", "rediss://api:secret@redis/0"), ("LEDGER_URL", "postgresql://x:secret@db/w")):
        (tmp_path / name).write_text(f"{text}\n")
        monkeypatch.setenv(f"WARPDESK_{name}_FILE", str(tmp_path / name))
    read = settings()
    assert read.redis_url == "rediss://api:secret@redis/0"
    assert read.ledger_url.get_secret_value() == "postgresql://x:secret@db/w"
    assert "redis_url" in read.model_fields_set  # by which `serve` knows that it needs no Redis of its own
    monkeypatch.setenv("WARPDESK_REDIS_URL", "redis://other/0")
    with pytest.raises(ValidationError, match="WARPDESK_REDIS_URL and WARPDESK_REDIS_URL_FILE are both set"):
        settings()


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be"), (b" \n", "is empty"), (b"\xff", "cannot be")])
def test_a_secret_that_cannot_be_read_is_no_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "url").write_bytes(content)
    monkeypatch.setenv("WARPDESK_REDIS_URL_FILE", str(tmp_path / "url"))
    with pytest.raises(ValidationError, match=message):
        WorkerSettings()


@pytest.mark.parametrize("settings", [Settings, WorkerSettings])
def test_what_is_wrong_with_them_is_told_without_what_they_hold(
    settings: type[Settings | WorkerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", "redis://api:hush@host")
    monkeypatch.setenv("WARPDESK_REDIS_URL_FILE", "/nowhere")
    monkeypatch.setenv("WARPDESK_LEDGER_URL", "postgresql://api:hush@host/name")
    with pytest.raises(ValidationError, match="are both set") as error:
        settings()
    assert "hush" not in str(error.value)
