"""Write the lists of what the image installs: `python3.12 deploy/image/lock.py`.

Run it after pyproject.toml changed, or to update. pip resolves for the image's Python on x86-64 and on arm64, wheels
alone. Each package is kept with the digests of its wheels for the two, so a build installs those files or fails. A
package that has no wheel for one of them ends this.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent.parent / "pyproject.toml").read_text())
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = 36  # Debian bookworm's is 2.36
# Each list holds what the ones before it do not.
TARGETS = {"cpu": ("postgres",), "gpu": ("postgres", "gpu"), "gpu-blas": ("postgres", "gpu", "gpu-blas")}


def wanted(extras: tuple[str, ...]) -> list[str]:
    """The requirements of the project with these extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    own = [line for extra in extras for line in optional[extra] if not line.startswith("warpdesk")]
    return [*(line for line in PROJECT["project"]["dependencies"] if not line.startswith("warpdesk")), *own]


def resolved(requirements: list[str], architecture: str, versions: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The version and the SHA-256 of each package that pip would install; `versions` are kept."""
    legacy = [f"manylinux{name}_{architecture}" for name in ("2014", "2010", "1")]
    tags = [*(f"manylinux_2_{minor}_{architecture}" for minor in range(GLIBC, 4, -1)), *legacy, f"linux_{architecture}"]
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        command += [
            "--only-binary=:all:",
            "--implementation=cp",
            "--python-version=3.12",
            "--constraint",
            str(constraints),
        ]
        command += [f"--platform={tag}" for tag in tags]
        subprocess.run([sys.executable, "-m", "pip", *command, *requirements], check=True)
        installed = json.loads(report.read_text())["install"]
    return {
        entry["metadata"]["name"].lower().replace("_", "-"): (
            entry["metadata"]["version"],
            entry["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for entry in installed
    }


def locked(requirements: list[str], versions: dict[str, str]) -> dict[str, tuple[str, list[str]]]:
    """The version of each package, and its digests for all architectures."""
    found: dict[str, tuple[str, list[str]]] = {}
    for architecture in ARCHITECTURES:
        for name, (version, digest) in resolved(requirements, architecture, versions).items():
            digests = found.setdefault(name, (version, []))[1]
            if digest not in digests:
                digests.append(digest)
        versions = {**versions, **{name: version for name, (version, _) in found.items()}}
    return found


def write(name: str, packages: dict[str, tuple[str, list[str]]]) -> None:
    lines = [f"# Written by lock.py beside it. Python 3.12, Debian bookworm, {' and '.join(ARCHITECTURES)}."]
    for package, (version, digests) in sorted(packages.items()):
        lines.append(
            " \\\n".join([f"{package}=={version}", *(f"    --hash=sha256:{digest}" for digest in sorted(digests))])
        )
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    if sys.version_info[:2] != (3, 12):
        sys.exit("pip reads environment markers for the Python it runs on: run this with Python 3.12")
    write("build", locked(PROJECT["build-system"]["requires"], {}))
    everything = locked(wanted(TARGETS["gpu-blas"]), {})
    versions = {name: version for name, (version, _) in everything.items()}
    before: set[str] = set()
    for target, extras in TARGETS.items():
        names = resolved(wanted(extras), ARCHITECTURES[0], versions).keys()
        write(target, {name: everything[name] for name in names - before})
        before |= names


if __name__ == "__main__":
    main()
