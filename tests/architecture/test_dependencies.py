"""What the service stands on: which packages a plain installation brings, under which licences, and that they agree.

Whether one has a known hole is not known offline: `deploy/audit` asks, and says plainly where nobody answers.
"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

# Permissive, or weak copyleft that asks nothing of a program that uses the library as it is. A package that gives a
# choice is taken under one of these.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC",
    "LGPL-3.0-only", "LGPL-3.0-or-later", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip

# How older metadata says it, in classifiers or in words.
_CALLED = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "isc license (iscl)": "ISC",
    "gnu library or lesser general public license (lgpl)": "LGPL-3.0-only",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
}


def declared(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    return [requirement for text in texts if _applies(requirement := Requirement(text), set())]


def closure(wanted: list[Requirement]) -> dict[str, Distribution]:
    """Everything these bring, by name; what is not installed here is left out where it is declared by another."""
    found: dict[str, Distribution] = {}
    visited: set[tuple[str, str]] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        key = (name, ",".join(sorted(requirement.extras)))
        if key in visited:
            continue
        visited.add(key)
        found[name] = distribution(name)
        wanted += [
            inner for text in found[name].requires or () if _applies(inner := Requirement(text), requirement.extras)
        ]
    return found


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, ""))


def licences(package: Distribution) -> set[str]:
    """The names in what it says of itself, of a choice all of them."""
    expression = package.metadata.get("License-Expression")
    if expression is None:
        classified = [text.split(" :: ")[-1] for text in package.metadata.get_all("Classifier", [])
                      if text.startswith("License ::") and text.count(" :: ") > 1]  # fmt: skip
        expression = " OR ".join(classified) or (package.metadata.get("License") or "none").splitlines()[0]
    parts = (
        re.split(r"\s+(?:AND|OR)\s+|[()]+(?=\s|$)|^[()]+", expression)
        if "(" not in expression.strip("()")
        else [expression]
    )
    return {_CALLED.get(part.strip().lower(), part.strip()) for part in parts if part and part.strip()}


def allowed(package: Distribution) -> bool:
    expression, names = package.metadata.get("License-Expression") or "", licences(package)
    return bool(names & ALLOWED) if " OR " in expression else bool(names) and names <= ALLOWED


def test_every_package_of_the_service_has_a_licence_that_lets_it_be_used() -> None:
    found = closure(declared("postgres"))
    assert {name: sorted(licences(package)) for name, package in found.items() if not allowed(package)} == {}
    assert {"fastapi", "starlette", "redis", "numpy", "psycopg"} <= set(found)


def test_a_licence_that_is_not_on_the_list_is_found() -> None:
    class Closed(Distribution):
        def read_text(self, filename: str) -> str | None:
            return f"Name: closed\nLicense-Expression: {self.licence}\n" if filename == "METADATA" else None

        def locate_file(self, path: object) -> Path:  # type: ignore[override]  # noqa: ARG002
            raise PackageNotFoundError

        licence = ""

    for licence, fits in {"MIT": True, "AGPL-3.0-only": False, "MIT AND AGPL-3.0-only": False,
                       "MIT OR AGPL-3.0-only": True, "LicenseRef-Proprietary": False}.items():  # fmt: skip
        package = Closed()
        package.licence = licence
        assert allowed(package) is fits, licence


def test_every_package_we_name_has_a_lowest_version_and_those_whose_inside_we_know_a_highest() -> None:
    wanted = {canonicalize_name(one.name): {spec.operator for spec in one.specifier} for one in declared("postgres")}
    assert {name for name, operators in wanted.items() if not operators & {">=", "==", "~="}} == set()
    inside = {"numpy", "psycopg", "redis", "rq", "sqlalchemy", "uvicorn"}
    assert {name for name in inside if not wanted[name] & {"<", "==", "~="}} == set()


def test_what_is_installed_is_what_every_package_asks_for() -> None:
    found = closure(declared("postgres"))
    requirements = [
        *declared("postgres"),
        *(Requirement(text) for package in found.values() for text in package.requires or ()),
    ]
    wrong = [
        f"{one}: {found[name].version} is here"
        for one in requirements
        if (name := canonicalize_name(one.name)) in found
        and _applies(one, set())
        and not one.specifier.contains(found[name].version, prereleases=True)
    ]
    assert wrong == []


def test_the_audit_does_not_pass_where_nobody_answers(tmp_path: Path) -> None:
    """A stand-in that finds nothing, as one does whose service cannot be reached: it does not find what has to be."""
    blind = tmp_path / "pip-audit"
    blind.write_text("#!/bin/sh\necho 'No known vulnerabilities found' >&2\n")
    blind.chmod(0o755)
    ran = subprocess.run(
        [ROOT / "deploy" / "audit"],
        env={"PATH": "/usr/bin:/bin", "PIP_AUDIT": str(blind), "PYTHON": sys.executable},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "nothing was audited" in ran.stdout


def test_the_audit_fails_on_a_finding_and_passes_without_one(tmp_path: Path) -> None:
    """A stand-in that knows the hole of the probe, and of the service's own packages one, or none."""
    for found, code in (("sqlalchemy", 1), ("nothing", 0)):
        seeing = tmp_path / f"pip-audit-{found}"
        seeing.write_text(
            "#!/bin/sh\n"
            "for word; do last=$word; done\n"
            f'if grep -q -e "^jinja2==2.4.1" -e "^{found}==" "$last"; then echo found; exit 1; fi\n'
        )
        seeing.chmod(0o755)
        ran = subprocess.run(
            [ROOT / "deploy" / "audit"],
            env={"PATH": "/usr/bin:/bin", "PIP_AUDIT": str(seeing), "PYTHON": sys.executable},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert ran.returncode == code, ran.stdout + ran.stderr
