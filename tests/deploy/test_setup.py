"""deploy/setup-ubuntu.sh on a machine whose commands are played: what it does, prints and refuses."""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.deploy.tools import tool
from warpdesk_server.doctor.gpu import _OLDEST_DRIVER

SCRIPT = ROOT / "deploy" / "setup-ubuntu.sh"

# Each writes down how it was called; those that are asked answer as Ubuntu's do.
_PLAYED = {
    "id": 'echo "${PLAYED_UID:-0}"',
    "nvidia-smi": '[ -z "$PLAYED_NO_GPU" ] || { echo "No devices were found"; exit 6; }\n'
    'echo "NVIDIA L4, ${PLAYED_DRIVER:-575.57.08}"',
    "dpkg-query": "for name; do :; done\n"
    'case " $PLAYED_PACKAGES " in *" $name "*) echo "install ok installed";; *) exit 1;; esac',
    "getent": '[ -z "$PLAYED_OWNER" ] || echo "$PLAYED_OWNER:x:10001:10001::/:/bin/sh"',
}
_CHANGES = ("apt-get", "gpg", "groupadd", "useradd", "nvidia-ctk", "systemctl", "sysctl", "docker")


@dataclass
class Machine:
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        commands = self.folder / "bin"
        commands.mkdir()
        for name in (*_PLAYED, *_CHANGES):
            noted = "" if name in _PLAYED else 'echo "${0##*/} $*" >> "$PLAYED_LOG"\n'
            (commands / name).write_text(f"#!/bin/sh\n{noted}{_PLAYED.get(name, '')}\n")
            (commands / name).chmod(0o755)
        (self.folder / "etc").mkdir()
        self.system("ubuntu", "24.04")
        (self.folder / "key").write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
        project = self.folder / "warpdesk"
        (project / "deploy").mkdir(parents=True)
        (project / "deploy" / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
        (project / "docker-compose.yml").touch()

    def system(self, name: str, release: str) -> None:
        (self.folder / "etc" / "os-release").write_text(f'NAME="X"\nID={name}\nVERSION_ID="{release}"\n')

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "DESTDIR": str(self.folder),
            "PLAYED_LOG": str(self.folder / "log"),
            "WARPDESK_TOOLKIT_REPOSITORY": "https://packages.example.com/deb /",
            "WARPDESK_TOOLKIT_KEY": str(self.folder / "key"),
            **environment,
        }
        return subprocess.run(
            ["bash", self.folder / "warpdesk" / "deploy" / SCRIPT.name, *arguments],
            env=environment, capture_output=True, text=True, timeout=30,
        )  # fmt: skip

    def changes(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().replace(str(self.folder), "").splitlines() if log.exists() else []

    def files(self) -> dict[str, str]:
        found = {}
        for place in ("etc", "usr"):
            for file in sorted((self.folder / place).rglob("*")):
                if file.is_file() and file.name != "os-release":
                    mode = f"{file.stat().st_mode & 0o777:o}"
                    found[str(file.relative_to(self.folder))] = f"{mode} {file.read_text()}"
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


CHANGES = [
    "gpg --batch --yes --dearmor --output /usr/share/keyrings/nvidia-container-toolkit.gpg /key",
    "apt-get update",
    "apt-get install --yes --no-install-recommends docker.io docker-buildx docker-compose-v2 nvidia-container-toolkit",
    "nvidia-ctk runtime configure --runtime=docker",
    "systemctl restart docker",
    "groupadd --system --gid 10001 warpdesk",
    "useradd --system --uid 10001 --gid 10001 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin "
    "warpdesk",
    "sysctl --quiet --load /etc/sysctl.d/60-warpdesk.conf",
    "systemctl daemon-reload",
    "systemctl enable warpdesk.service",
]


def test_a_checkout_that_only_its_owner_can_read_is_opened_to_the_containers(machine: Machine) -> None:
    folder = machine.folder / "warpdesk" / "deploy"
    (folder / "redis").mkdir()
    file = folder / "redis" / "redis.conf"
    file.touch()
    file.chmod(0o600)
    file.parent.chmod(0o700)
    assert f"+ chmod --recursive go+rX {folder}" in machine.run("--dry-run").stdout
    assert file.stat().st_mode & 0o777 == 0o600
    assert machine.run().returncode == 0
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o644, 0o755]
    assert "chmod" not in machine.run("--dry-run").stdout


def test_a_bare_machine_is_made_ready(machine: Machine) -> None:
    ended = machine.run()
    assert ended.returncode == 0, ended.stderr
    assert machine.changes() == CHANGES
    files = machine.files()
    assert files.keys() == {
        "etc/apt/sources.list.d/nvidia-container-toolkit.list",
        "etc/sysctl.d/60-warpdesk.conf",
        "etc/systemd/system/warpdesk.service",
        "etc/warpdesk/compose.env",
    }
    assert files["etc/apt/sources.list.d/nvidia-container-toolkit.list"] == (
        "644 deb [signed-by=/usr/share/keyrings/nvidia-container-toolkit.gpg] https://packages.example.com/deb /\n"
    )
    assert files["etc/sysctl.d/60-warpdesk.conf"] == "644 vm.overcommit_memory = 1\n"
    assert files["etc/warpdesk/compose.env"].startswith("600 ")
    assert "Firewall" in ended.stdout


def test_a_dry_run_prints_each_command_and_changes_nothing(machine: Machine) -> None:
    ended = machine.run("--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert (machine.changes(), machine.files()) == ([], {})
    printed = [
        line.removeprefix("+ ").replace(str(machine.folder), "") for line in ended.stdout.splitlines() if line[0] == "+"
    ]
    commands = [line.removeprefix("env DEBIAN_FRONTEND=noninteractive ") for line in printed]
    assert [line for line in commands if line.split()[0] in _CHANGES] == CHANGES
    assert [line for line in commands if line.startswith("write")] == [
        "write /etc/apt/sources.list.d/nvidia-container-toolkit.list (0644):",
        "write /etc/sysctl.d/60-warpdesk.conf (0644):",
        "write /etc/warpdesk/compose.env (0600):",
        "write /etc/systemd/system/warpdesk.service (0644):",
    ]


def test_a_second_run_changes_nothing_and_keeps_what_the_operator_wrote(machine: Machine) -> None:
    assert machine.run().returncode == 0
    own = machine.folder / "etc" / "warpdesk" / "compose.env"
    own.write_text("WARPDESK_PRICES={}\n")
    (machine.folder / "etc" / "docker").mkdir()
    (machine.folder / "etc" / "docker" / "daemon.json").write_text('{"runtimes": {"nvidia": {}}}')
    before, files = machine.changes(), machine.files()
    installed = "docker.io docker-buildx docker-compose-v2 nvidia-container-toolkit"
    again = machine.run(PLAYED_PACKAGES=installed, PLAYED_OWNER="warpdesk", WARPDESK_TOOLKIT_REPOSITORY="")
    assert again.returncode == 0, again.stderr
    assert (machine.changes(), machine.files()) == (before, files)


def test_dockers_own_packages_are_left_alone(machine: Machine) -> None:
    assert machine.run(PLAYED_PACKAGES="docker-ce nvidia-container-toolkit").returncode == 0
    assert not [line for line in machine.changes() if line.startswith("apt-get")]


REFUSALS = [
    ({"PLAYED_UID": "1000"}, "packages and units need root"),
    ({"PLAYED_NO_GPU": "1"}, "nvidia-smi reaches no GPU; .*No devices were found"),
    ({"PLAYED_DRIVER": "470.256.02"}, "the driver is 470.256.02, and CUDA 12.9 needs 525.60.13 or newer"),
    ({"PLAYED_DRIVER": "525.9.1"}, "the driver is 525.9.1, and CUDA 12.9 needs 525.60.13 or newer"),
    ({"PLAYED_DRIVER": "[N/A]"}, "nvidia-smi names no driver version"),
    ({"PLAYED_OWNER": "alice"}, "the user id 10001, which containers run as, belongs to alice"),
    ({"WARPDESK_TOOLKIT_REPOSITORY": ""}, "WARPDESK_TOOLKIT_REPOSITORY does not name its repository"),
    ({"WARPDESK_TOOLKIT_REPOSITORY": "http://packages.example.com /"}, "is no https:// address"),
    ({"WARPDESK_TOOLKIT_KEY": "/nowhere"}, "WARPDESK_TOOLKIT_KEY names no file .*: /nowhere"),
]


@pytest.mark.parametrize(("environment", "sentence"), REFUSALS, ids=lambda value: str(value)[:40])
def test_what_cannot_work_is_refused_before_anything_changes(
    machine: Machine, environment: dict[str, str], sentence: str
) -> None:
    _refused(machine, machine.run(**environment), sentence)


def test_other_systems_and_other_options_are_refused(machine: Machine) -> None:
    _refused(machine, machine.run("--force"), "unknown option --force")
    (machine.folder / "bin" / "nvidia-smi").unlink()
    if not any(Path(place, "nvidia-smi").exists() for place in os.environ["PATH"].split(":")):
        _refused(machine, machine.run(), "there is no NVIDIA driver")
    machine.system("debian", "12")
    _refused(machine, machine.run(), "this is debian and not Ubuntu")
    machine.system("ubuntu", "20.04")
    _refused(machine, machine.run(), "this is Ubuntu 20.04; docker-compose-v2 comes with 22.04")
    (machine.folder / "etc" / "os-release").unlink()
    _refused(machine, machine.run(), "os-release: this is for Ubuntu")


def test_a_file_that_cannot_be_written_is_no_file_that_was_there(machine: Machine) -> None:
    (machine.folder / "etc" / "systemd").touch()
    ended = machine.run()
    assert ended.returncode == 1
    assert "warpdesk.service cannot be written" in ended.stderr
    assert "Ready" not in ended.stdout


def test_without_the_compose_file_it_does_nothing(machine: Machine) -> None:
    (machine.folder / "warpdesk" / "docker-compose.yml").unlink()
    _refused(machine, machine.run(), "there is no .*docker-compose.yml: run this from a checkout")


def _refused(machine: Machine, ended: "subprocess.CompletedProcess[str]", sentence: str) -> None:
    assert ended.returncode == 1
    assert re.search(rf"^setup-ubuntu: .*{sentence}", ended.stderr, re.MULTILINE), ended.stderr
    assert (machine.changes(), machine.files()) == ([], {})


def test_the_driver_it_asks_for_is_the_doctors() -> None:
    assert re.findall(r"^oldest_driver=(\S+)$", SCRIPT.read_text(), re.MULTILINE) == [_OLDEST_DRIVER[12]]


def test_a_stop_of_the_unit_waits_for_every_container(machine: Machine) -> None:
    assert machine.run().returncode == 0
    unit = machine.files()["etc/systemd/system/warpdesk.service"]
    assert f"WorkingDirectory={machine.folder}/warpdesk\n" in unit
    (longest,) = re.findall(r"TimeoutStopSec=(\d+)", unit)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    graces = [int(service.get("stop_grace_period", "10s").removesuffix("s")) for service in services]
    assert int(longest) > sum(graces)


def test_shellcheck_has_nothing_to_say() -> None:
    result = subprocess.run([tool("shellcheck"), SCRIPT], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
