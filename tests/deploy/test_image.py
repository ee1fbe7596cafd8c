"""What Dockerfile.gpu says, and what its lines install: built into a plain directory, imported, run.

Nothing here runs an engine. What needs Debian's packages inside the image (tini, libgomp1, the user) is read, not run.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT, free_port
from tests.deploy.image import DOCKERFILE, LISTS, Builder, environment, lineage, megabytes, pinned, python312, words
from tests.deploy.image import stages as stages_of
from tests.waiting import wait_until
from warpdesk_server.service.processes import stop

VERSION = (ROOT / "clients/python/VERSION").read_text().strip()
STAGES = stages_of(DOCKERFILE.read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = {
    # The extras of each, the lists it is installed from, and the most megabytes its packages may take.
    "cpu": (("postgres",), ("cpu",), 450),
    "gpu": (("postgres", "gpu"), ("cpu", "gpu"), 1100),
    "gpu-blas": (("postgres", "gpu", "gpu-blas"), ("cpu", "gpu", "gpu-blas"), 2000),
}
# Shared libraries that python:3.12-slim-bookworm has, and those that the image adds.
OF_THE_BASE = {
    *("ld-linux-x86-64", "ld-linux-aarch64", "libc", "libcrypt", "libdl", "libgcc_s", "libm", "libpthread"),
    *("libresolv", "librt", "libstdc++", "libutil", "libz"),
}
ADDED = {"libgomp"}
# CuPy loads these when asked for what we never ask for; and TBB is Numba's first choice where there is one.
NOT_USED = {
    *("libcublas", "libcublasLt", "libcufft", "libcurand", "libcusolver", "libcusparse"),
    *("libcutensor", "libcutensorMg", "libnccl", "libtbb"),
}


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "")


def test_every_target_runs_as_nobody_else_and_says_how_it_is() -> None:
    for target in TARGETS:
        instructions = {name: text for stage in lineage(STAGES, target) for name, text in stage.steps if name != "ENV"}
        assert instructions["USER"] == "10001:10001"
        assert instructions["STOPSIGNAL"] == "SIGTERM"
        assert words(instructions["ENTRYPOINT"]) == ["tini", "--"]
        assert words(instructions["CMD"])[:2] == ["warpdesk", "serve"]
        options, _, command = instructions["HEALTHCHECK"].partition(" CMD ")
        assert words(command) == ["warpdesk", "health"]
        assert "--start-period=" in options
        assert "--timeout=" in options
        assert instructions["EXPOSE"].split() == ["8000", "9091"]
        steps = [name for stage in lineage(STAGES, target) for name, _ in stage.steps]
        assert "RUN" not in steps[steps.index("USER") :]  # and nothing is root's work after it
    assert list(STAGES)[-1] == "gpu"  # what is built where no target is named


def test_an_image_begins_at_a_slim_python_and_has_no_toolkit() -> None:
    outside = {stage.parent for stage in STAGES.values()} - STAGES.keys()
    assert outside == {"python:3.12-slim-bookworm"}
    (installed,) = re.findall(r"apt-get install ([^&]*)", " ".join(STAGES["runtime"].all("RUN")))
    assert [word.partition("=")[0] for word in installed.split() if not word.startswith("-")] == ["libgomp1", "tini"]


def test_only_gpu_targets_ask_for_a_gpu() -> None:
    for target in TARGETS:
        variables = {name: value for name, value in environment(STAGES, target).items() if name.startswith("NVIDIA_")}
        wanted = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        assert variables == ({} if target == "cpu" else wanted)


def test_an_image_holds_no_secret() -> None:
    for stage in STAGES.values():
        for name in environment(STAGES, stage.name):
            assert not re.search(r"KEY|PASSWORD|TOKEN|SECRET|URL", name), name
        assert not [name for name, _ in stage.steps if name == "ADD"]
    assert [text for stage in STAGES.values() for text in stage.all("ARG")] == [
        f"VERSION={VERSION}",
        "REVISION=unknown",
    ]


def test_the_builder_gets_what_is_copied_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in STAGES.values()
        for text in stage.all("COPY")
        if not text.startswith("--from")
        for source in text.split()[:-1]
    }
    assert {folder for folder in allowed for path in copied if f"{path}/".startswith(f"{folder}/")} == allowed
    assert [path for path in copied if not any(f"{path}/".startswith(f"{folder}/") for folder in allowed)] == []
    assert "**/__pycache__" in lines
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= copied


@pytest.mark.parametrize("target", TARGETS)
def test_the_lists_satisfy_the_project(target: str) -> None:
    extras, lists, _ = TARGETS[target]
    have = {name: version for each in lists for name, version in pinned(each).items()}
    declared = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    wanted = [Requirement(line) for line in declared if not line.startswith("warpdesk")]
    assert len(wanted) >= len(PROJECT["dependencies"]) + len(extras) - 1
    for requirement in wanted:
        version = have[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), f"{requirement} and {version}: run make locks"


def test_what_is_installed_is_named_by_digests_of_wheels_for_both_architectures() -> None:
    for file in LISTS.glob("*.txt"):
        entries = re.split(r"\n(?=\S)", file.read_text().strip())
        entries = [entry for entry in entries if not entry.startswith("#")]
        assert entries
        for entry in entries:
            assert re.fullmatch(r"[a-z0-9-]+==\S+( \\\n {4}--hash=sha256:[0-9a-f]{64})+", entry), entry
    native = re.search(r"^numba==.*\n.*\n.*hash.*$", (LISTS / "cpu.txt").read_text(), re.MULTILINE)
    assert native  # one wheel for x86-64 and one for arm64
    for line in DOCKERFILE.read_text().splitlines():
        if "pip" in line and "--requirement" in line:
            assert "--require-hashes --no-deps --only-binary=:all:" in line
    assert not {"matplotlib", "scipy", "torch", "pip", "setuptools"} & pinned("cpu").keys()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    python = python312()
    if python is None:
        pytest.skip("there is no Python 3.12 here: what the image installs is for that")
    return Builder(tmp_path_factory.mktemp("image"), python)


EVERY_MODULE = """
import importlib, pkgutil, warpdesk, warpdesk_server
for package in (warpdesk, warpdesk_server):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith(("__main__", "cupy_device")) and ".benchmarks." not in found.name:
            importlib.import_module(found.name)
"""


@pytest.mark.release
@pytest.mark.timeout(400)
def test_what_the_cpu_target_installs_has_all_that_our_code_imports(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pip reads this as the contrary of what it says: no bytecode, which is half of the work, and for the long form.
    monkeypatch.setenv("PIP_NO_COMPILE", "0")
    site = builder.build("cpu")
    assert [name for name in ("pip", "setuptools", "matplotlib", "scipy") if (site / name).exists()] == []
    assert missing(site) == set()
    result = run(builder, "cpu", "python", "-c", EVERY_MODULE)
    assert result.returncode == 0, result.stderr
    assert run(builder, "cpu", "warpdesk", "--version").stdout == f"warpdesk {VERSION}\n"
    result = run(builder, "cpu", "warpdesk", "health", "--url", f"http://127.0.0.1:{free_port()}")
    assert (result.returncode, "does not answer" in result.stderr) == (1, True)


@pytest.mark.chaos
@pytest.mark.timeout(480)
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_no_larger_than_promised_and_its_service_answers_a_job(
    builder: Builder, target: str, redis_url: str, tmp_path: Path
) -> None:
    site = builder.build(target)
    print(f"{target}: {megabytes(site)} MiB of packages")  # noqa: T201 (make chaos shows it)
    assert megabytes(site) <= TARGETS[target][2]
    assert missing(site) == set()
    if target != "cpu":
        # The CUDA packages import without a driver, the kernels of the image are found, and NVRTC compiles others.
        assert (
            run(builder, target, "python", "-c", "import cupy, warpdesk_server.kernels.gpu.cupy_device").returncode == 0
        )
        there = run(builder, target, "warpdesk", "warm", "--all", "--kernels-only", WARPDESK_HOME=str(tmp_path))
        assert re.findall(r"(\d+) compiled, (\d+) there", there.stdout) == [("0", "23")] * 11, there.stdout
        new = {"WARPDESK_HOME": str(tmp_path), "WARPDESK_KERNEL_CACHE": str(tmp_path / "kernels")}
        result = run(builder, target, "warpdesk", "warm", "--arch", "sm_90", "--kernels-only", **new)
        assert "sm_90    23 compiled, 0 there already" in result.stdout, result.stderr
    url = f"http://127.0.0.1:{free_port()}"
    settings = {"WARPDESK_HOME": str(tmp_path / "home"), "WARPDESK_REDIS_URL": redis_url, "WARPDESK_DEVICE": "cpu"}
    api = ["warpdesk", "serve", "--no-worker", "--port", url.rpartition(":")[2]]
    with start(builder, target, api, settings), start(builder, target, ["warpdesk", "worker"], settings):
        for question in (["--url", url], ["--worker"], ["--url", url, "--ready"]):
            wait_until(
                lambda entry=question: run(builder, target, "warpdesk", "health", *entry, **settings).returncode == 0,
                f"`warpdesk health {' '.join(question)}` fails",
                240,
            )
        example = httpx.get(f"{url}/v1/operations/rsi").json()["example"]
        answer = httpx.post(f"{url}/v1/jobs", json=example, headers={"Prefer": "wait=50"}, timeout=60)
        assert answer.json()["status"] == "succeeded", answer.text


def run(builder: Builder, target: str, *command: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {**builder.environment(target), "HOME": str(builder.root / "nowhere"), **settings}
    return subprocess.run(command, cwd=builder.root, env=environment, capture_output=True, text=True, timeout=240)


@contextmanager
def start(builder: Builder, target: str, command: list[str], settings: dict[str, str]) -> Iterator[None]:
    environment = {**builder.environment(target), "HOME": str(builder.root / "nowhere"), **settings}
    process = subprocess.Popen(command, cwd=builder.root, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        assert stop(process, 60) == 0


def missing(site: Path) -> set[str]:
    """Shared libraries that something in it is linked to, and that neither the image nor a package brings."""
    files = [path for path in site.rglob("*.so*") if path.is_file()]
    brought = {_plain(path.name) for path in files} | OF_THE_BASE | ADDED | NOT_USED
    linked = subprocess.run(["readelf", "--dynamic", *files], capture_output=True, text=True, timeout=120).stdout
    names = set(re.findall(r"Shared library: \[(.*?)\]", linked))
    assert "libc.so.6" in names
    return {name for name in names if _plain(name) not in brought}


def _plain(library: str) -> str:
    return library.partition(".so")[0]
