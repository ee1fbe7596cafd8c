"""A release: two distributions that are whole, a client that installs alone, a service that disturbs nobody and takes
over a home of an older one."""

from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT, Service, serve, wait_until_ready
from tests.release.conftest import TOOLS, Environment, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

COLD = 900.0  # seconds that the first start of a service may take, which compiles, on a busy machine
VERSION = (ROOT / "clients/python/VERSION").read_text().strip()


def test_distributions_are_whole_and_of_one_version(distributions: Path) -> None:
    files = sorted(distributions.iterdir())
    assert [file.name for file in files] == [
        f"warpdesk-{VERSION}-py3-none-any.whl",
        f"warpdesk-{VERSION}.tar.gz",
        f"warpdesk_server-{VERSION}-py3-none-any.whl",
        f"warpdesk_server-{VERSION}.tar.gz",
    ]
    run(TOOLS / "twine", "check", "--strict", *files)
    run(TOOLS / "check-wheel-contents", *distributions.glob("*.whl"))


def test_the_client_is_small_and_brings_httpx_numpy_and_pydantic_alone(
    distributions: Path, client_alone: Environment
) -> None:
    (wheel,) = distributions.glob("warpdesk-*.whl")
    kilobytes, megabytes = wheel.stat().st_size / 1e3, client_alone.megabytes()
    print(f"the client's wheel: {kilobytes:.0f} kB; its environment: {megabytes:.0f} MB")  # noqa: T201 (make shows it)
    assert kilobytes <= 250
    assert megabytes <= 125
    listed = client_alone.run("pip", "list", "--format=freeze", "--not-required").stdout.split()
    assert {line for line in listed if not line.startswith(("pip==", "setuptools=="))} == {f"warpdesk=={VERSION}"}
    (metadata,) = client_alone.site.glob("warpdesk-*.dist-info")
    needed = [Requirement(text) for text in PathDistribution(metadata).requires or ()]
    assert {one.name for one in needed if one.marker is None} == {"httpx", "numpy", "pydantic"}
    assert {one.name for one in needed if one.marker is not None} == {"cryptography", "shtab"}


def test_the_client_alone_talks_to_a_service(client_alone: Environment, service: Service, tmp_path: Path) -> None:
    program = (
        "import sys, warpdesk\n"
        f"with warpdesk.Client({service.url!r}) as client: print(client.run('sum', x=[1.0, 2.0, 3.5])['sum'])\n"
        "assert not any(name.startswith('warpdesk_server') for name in sys.modules)\n"
    )
    ran = client_alone.run("python", "-c", program)
    assert (ran.returncode, ran.stdout) == (0, "[6.5]\n"), ran.stderr
    np.save(tmp_path / "values.npy", np.array([1.0, 2.0, 3.5]))
    ran = client_alone.run("warpdesk", "submit", "sum", "-i", f"x={tmp_path}/values.npy", "--url", service.url)
    assert (ran.returncode, ran.stdout.splitlines()[:1]) == (0, ["sum                  1 float64, … 6.5"]), ran.stderr


def test_the_client_alone_says_how_to_get_the_service_and_the_rounds(client_alone: Environment) -> None:
    served = client_alone.run("warpdesk", "serve")
    assert served.returncode == 2
    assert served.stderr == (
        "warpdesk: `serve` comes with the service, which is not installed: pip install warpdesk-server\n"
    )
    joined = client_alone.run("python", "-c", "from warpdesk import secagg; secagg.join")
    assert joined.stderr.endswith("secure aggregation needs cryptography: pip install 'warpdesk[secagg]'\n")


def test_types_of_the_installed_client_are_seen(client_alone: Environment, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        'from warpdesk import Client\n\nwith Client() as client:\n    reveal_type(client.submit("sum", x=[1.0]))\n'
        "    reveal_type(client.macd([1.0]).signal)\n    client.macd([1.0], fst=3)  # type: ignore[call-arg]\n"
    )
    output = run(
        ROOT / ".venv/bin/mypy", "--strict", "--python-executable", client_alone.python,
        "--cache-dir", tmp_path / "cache", program, cwd=tmp_path,
    )  # fmt: skip
    assert 'Revealed type is "warpdesk.client.Job"' in output
    assert 'Revealed type is "numpy.ndarray' in output


def test_the_service_runs_beside_packages_of_a_user_that_are_called_app_and_kernels(
    whole_service: Environment, service_of: Callable[..., serve], tmp_path: Path
) -> None:
    ours = {
        path.parts[0]
        for metadata in whole_service.site.glob("warpdesk*.dist-info")
        for path in PathDistribution(metadata).files or ()
        if not path.parts[0].endswith(".dist-info") and path.parts[0] != ".."
    }
    assert ours == {"warpdesk", "warpdesk_server"}
    owners = whole_service.run(
        "python", "-c", "import app, kernels, warpdesk_server.app.main; print(app.OWNER, kernels.OWNER)"
    )
    assert owners.stdout == "a user a user\n", owners.stderr
    with service_of(whole_service, tmp_path / "home", ready=False) as running:
        wait_until_ready(running, COLD)
        example = httpx.get(f"{running.url}/v1/operations/rsi").json()["example"]
        answer = httpx.post(f"{running.url}/v1/jobs", json=example, headers={"Prefer": "wait=50"}, timeout=60)
        assert answer.json()["status"] == "succeeded", answer.text


def test_a_home_that_an_older_service_left_with_queued_jobs_is_taken_over(
    old_service: Environment, whole_service: Environment, service_of: Callable[..., serve], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with service_of(old_service, home, "--no-worker", ready=False) as before:
        wait_until_ready(before, path="/livez")
        listed = httpx.get(f"{before.url}/v1/operations").json()["operations"]
        seeds: dict[str, dict[str, int]] = {"none": {}, "seed": {"seed": 7}}
        examples = {one["name"]: one["example"] | seeds[one["randomness"]]
                    for one in listed if one["randomness"] in seeds}  # fmt: skip
        jobs = {name: submit(before, example)["id"] for name, example in examples.items()}
        assert {httpx.get(f"{before.url}/v1/jobs/{job}").json()["status"] for job in jobs.values()} == {"queued"}
    assert len(jobs) >= 15
    with service_of(whole_service, home, ready=False) as after:
        wait_until_ready(after, COLD)
        for name, job in jobs.items():
            done = ended(after, job)
            assert done["status"] == "succeeded", (name, done)
            again = ended(after, submit(after, examples[name])["id"])
            assert outputs(after, job) == outputs(after, again["id"]), name


def submit(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{service.url}/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


def ended(service: Service, job: str) -> dict[str, Any]:
    """The job, once it is final."""
    found: dict[str, Any] = {}

    def final() -> bool:
        found.update(httpx.get(f"{service.url}/v1/jobs/{job}").json())
        return found["status"] not in ("queued", "running")

    wait_until(final, lambda: f"{job} is still {found.get('status')}", 120)
    return found


def outputs(service: Service, job: str) -> Any:
    return httpx.get(f"{service.url}/v1/jobs/{job}/result").json()["outputs"]
