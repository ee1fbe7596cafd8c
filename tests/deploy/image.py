"""Dockerfile.gpu without an engine: its instructions, and its stages built into plain directories by its own lines."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT

DOCKERFILE = ROOT / "Dockerfile.gpu"
LISTS = ROOT / "deploy" / "image"


@dataclass
class Stage:
    """One FROM and what follows it. `steps` are (instruction, text), lines put together."""

    name: str
    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]


def stages(text: str) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for instruction, rest in _instructions(text):
        if instruction == "FROM":
            parent, _, name = rest.split()
            found[name] = Stage(name, parent)
        else:
            list(found.values())[-1].steps.append((instruction, rest))
    return found


def lineage(found: Mapping[str, Stage], name: str) -> list[Stage]:
    """A stage with what it is from, the oldest first."""
    stage = found[name]
    return [*(lineage(found, stage.parent) if stage.parent in found else []), stage]


def environment(found: Mapping[str, Stage], name: str, inherited: Mapping[str, str] = {}) -> dict[str, str]:
    """What ENV says in a stage and those before it."""
    variables = dict(inherited)
    for stage in lineage(found, name):
        for text in stage.all("ENV"):
            for pair in shlex.split(text):
                variable, _, value = pair.partition("=")
                variables[variable] = value.replace("$PATH", variables.get("PATH", "$PATH"))
    return variables


def pinned(target: str) -> dict[str, str]:
    """The version of each package in a list of deploy/image."""
    lines = (LISTS / f"{target}.txt").read_text().splitlines()
    return dict(line.removesuffix(" \\").split("==") for line in lines if "==" in line)


def python312() -> Path | None:
    """The image's Python, where this machine has it."""
    places = [shutil.which("python3.12"), *sorted(Path.home().glob(".pyenv/versions/3.12.*/bin/python"))]
    for place in filter(None, places):
        result = subprocess.run(
            [place, "-c", "import ensurepip, sys; print(sys.version)"], capture_output=True, text=True
        )
        if result.stdout.startswith("3.12."):
            return Path(place)
    return None


class Builder:
    """Builds stages below a folder, whose `root` stands for / of the image while a stage is made.

    What a RUN says is run as it stands, with each directory of the image that it names below `root`. The stages that
    install Debian's packages are left out: their RUN needs an image.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self.root = folder / "root"
        self._kept = folder / "stages"
        self._kept.mkdir(parents=True)
        self._python = python
        self._stages = stages(DOCKERFILE.read_text())

    def build(self, target: str) -> Path:
        """Build it, and leave it at `root`: scripts in it name that directory. Returns its site-packages."""
        self._stage(target)
        self._begin(target)
        return self.root / "opt" / "warpdesk" / "lib" / "python3.12" / "site-packages"

    def environment(self, target: str) -> dict[str, str]:
        """What a container of the target would have, for a process of this machine."""
        ours = {
            name: value for name, value in os.environ.items() if re.match(r"PIP_|LANG|.*_proxy$|SSL_|TMP", name, re.I)
        }
        path = f"{self.root}/usr/local/bin:/usr/bin:/bin"
        variables = environment(self._stages, target, {**ours, "PATH": path})
        return {name: self._here(value) for name, value in variables.items()}

    def _stage(self, name: str) -> None:
        if (self._kept / name).exists():
            return
        stage = self._stages[name]
        needed = [source for text in stage.all("COPY") if (source := _option(text, "from"))]
        for other in (*([stage.parent] if stage.parent in self._stages else []), *needed):
            self._stage(other)
        self._begin(stage.parent)
        if stage.parent not in self._stages:
            subprocess.run([self._python, "-m", "venv", "--copies", self.root / "usr" / "local"], check=True)
        workdir = self.root
        for instruction, text in (step for older in lineage(self._stages, name) for step in older.steps):
            if instruction == "WORKDIR":
                workdir = Path(self._here(text))
        workdir.mkdir(parents=True, exist_ok=True)
        for instruction, text in stage.steps:
            if instruction == "COPY":
                self._copy(text, workdir)
            elif instruction == "RUN" and "apt-get" not in text:
                command = self._here(re.sub(r"--mount=\S+\s+", "", text))
                subprocess.run(["/bin/sh", "-ec", command], cwd=workdir, env=self.environment(name), check=True)
        shutil.move(self.root, self._kept / name)

    def _begin(self, stage: str) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        if (self._kept / stage).exists():
            # Links, not copies: installers put new files in the place of old ones and write into none.
            subprocess.run(["cp", "-al", self._kept / stage, self.root], check=True)
        else:
            self.root.mkdir()

    def _copy(self, text: str, workdir: Path) -> None:
        *sources, goal = [word for word in text.split() if not word.startswith("--")]
        stage = _option(text, "from")
        if stage:
            # The stage's own / is where `root` was while it was made, and --root put all of that below its directory.
            sources = [re.sub("^/project/", f"/project{self.root}/", source) for source in sources]
            sources = [f"{self._kept / stage}{source}" for source in sources]
        else:
            sources = [str(ROOT / source) for source in sources]
        place = Path(self._here(goal)) if goal.startswith("/") else workdir / goal
        place.mkdir(parents=True, exist_ok=True)
        for source in sources:
            inside = Path(source).is_dir()
            unwanted = shutil.ignore_patterns("__pycache__", "results") if not stage else None
            if inside:
                shutil.copytree(source, place, symlinks=True, ignore=unwanted, dirs_exist_ok=True, copy_function=_link)
            else:
                shutil.copy2(source, place)

    def _here(self, text: str) -> str:
        return re.sub(r"(?<![\w./-])/(?=(opt|project|wheels|src|tmp/home|var/lib/warpdesk)\b)", f"{self.root}/", text)


def _link(source: str, goal: str) -> None:
    Path(goal).unlink(missing_ok=True)
    if Path(source).is_relative_to(ROOT):
        shutil.copy2(source, goal)
    else:
        os.link(source, goal, follow_symlinks=False)


def _option(text: str, name: str) -> str:
    match = re.search(rf"--{name}=(\S+)", text)
    return match[1] if match else ""


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for logical in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if logical.strip():
            instruction, _, rest = logical.partition(" ")
            yield instruction, " ".join(rest.split()) if instruction != "LABEL" else rest


def words(text: str) -> list[str]:
    """The exec form of an instruction. Raises ValueError for the shell form."""
    parsed: list[str] = json.loads(text)
    return parsed


def megabytes(folder: Path) -> int:
    """What `du` says, in units of 1,048,576 bytes."""
    output = subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True).stdout
    return int(output.split()[0])
