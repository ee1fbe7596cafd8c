"""What a Slurm cluster of one node does with a batch script: reads its #SBATCH lines, runs it with the environment of a
job, sends what --signal says to the batch shell alone and in time, ends everything at the limit, and puts back what
`scontrol requeue` names. The one thing that stands in for a real one in these tests."""

import getpass
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # nothing of ours is imported: sbatch keeps its caller's environment

_KILL_WAIT = 2.0  # seconds between TERM for all and KILL for all; 30 as Slurm comes

# Of `man sbatch`; whatever else a script asks for is an error here.
_OPTIONS = {
    "job-name", "nodes", "ntasks", "cpus-per-task", "mem", "gres", "time", "requeue", "open-mode", "output", "signal",
    "array", "export",
}  # fmt: skip


def options_of(script: Path) -> dict[str, str]:
    """The #SBATCH lines before the first command."""
    found = {}
    for line in script.read_text().splitlines():
        if line.startswith("#SBATCH "):
            found.update(_option(word) for word in shlex.split(line.removeprefix("#SBATCH "), comments=True))
        elif line and not line.startswith("#"):
            break
    return found


def _option(word: str) -> tuple[str, str]:
    name, _, value = word.removeprefix("--").partition("=")
    if not word.startswith("--") or name not in _OPTIONS:
        raise ValueError(f"sbatch: error: unrecognized option '{word}'")
    return name, value


def seconds(limit: str) -> int:
    """`man sbatch`, --time: minutes, minutes:seconds, hours:minutes:seconds, and all that after days-."""
    days, dash, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        parts = [*parts, 0, 0][:3]
    elif len(parts) == 1:
        parts = [0, *parts, 0]
    elif len(parts) == 2:
        parts = [0, *parts]
    return int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]


@dataclass
class Run:
    """One run of one job."""

    state: str  # as `sacct` calls it
    output: str
    exit_code: int


@dataclass
class Slurm:
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)  # of the shell that calls sbatch

    def __post_init__(self) -> None:
        commands = self.folder / "bin"
        commands.mkdir(parents=True)
        for name in ("sbatch", "scontrol"):
            (commands / name).write_text(
                f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
                f"from tests.deploy.fake_slurm import {name}\nsys.exit({name}(sys.argv[1:]))\n"
            )
            (commands / name).chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("WARPDESK_", "SLURM_"))}
        # The cluster that scontrol asks is named by its configuration, which reaches jobs.
        self.environment = {
            **clean, "PATH": f"{commands}:{os.environ['PATH']}", "SLURM_CONF": str(self.folder), **self.environment
        }  # fmt: skip

    def submit(self, *arguments: str) -> int:
        """Call `sbatch`; returns the job's id."""
        result = subprocess.run(
            ["sbatch", *arguments],
            env=dict(self.environment), cwd=self.folder, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        found = re.fullmatch(r"Submitted batch job (\d+)\n", result.stdout)
        assert found is not None, result.stdout
        return int(found[1])

    def requeued(self) -> list[str]:
        """What was put back, in order."""
        file = self.folder / "requeued"
        return file.read_text().split() if file.exists() else []

    def log_text(self) -> str:
        """What all jobs wrote."""
        return "".join(file.read_text() for file in self.folder.glob("*.log"))

    def cancel(self, job: int) -> None:
        """As `scancel`: the job is cancelled, and everything of it hears TERM."""
        record = self._record(job)
        self._tell(job, {**record, "state": "CANCELLED"})
        os.killpg(record["pid"], signal.SIGTERM)

    def run(self, job: int, task: int | None = None, come: threading.Event | None = None) -> Run:
        """Run it once on the node, until its script ends or its time does. `come`: when the moment of --signal has
        come, for tests that wait for something else than a clock."""
        record = self._record(job)
        options, limit = record["options"], seconds(record["options"]["time"])
        started = time.time()
        environment = {
            **record["environment"],
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NAME": options["job-name"],
            "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
            "SLURM_JOB_END_TIME": str(int(started + limit)),
            "SLURM_RESTART_COUNT": str(record["restarts"]),
        }
        if task is not None:
            environment |= {"SLURM_ARRAY_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(task)}
        output = self.folder / options["output"].replace("%j", str(job))
        with output.open("ab" if options.get("open-mode") == "append" else "wb") as log:
            before = log.tell()
            batch = subprocess.Popen(
                [record["script"]], env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._tell(job, {**record, "state": "RUNNING", "pid": batch.pid})
        shell_alone, name, early = re.fullmatch(r"(B:)?([A-Z]+)@(\d+)", options["signal"]).groups()  # type: ignore[union-attr]
        assert shell_alone, "without B: the steps hear it and the script does not"
        state = "COMPLETED"
        try:
            due = started + limit - int(early)
            while batch.poll() is None and not (time.time() >= due or (come is not None and come.is_set())):
                time.sleep(0.02)
            if batch.returncode is None:
                batch.send_signal(signal.Signals[f"SIG{name}"])
                batch.wait(max(0.0, started + limit - time.time()))
        except subprocess.TimeoutExpired:
            state = "TIMEOUT"
            os.killpg(batch.pid, signal.SIGTERM)
            time.sleep(_KILL_WAIT)
        finally:
            self._clear(batch)
        if state != "TIMEOUT":
            state = "COMPLETED" if batch.returncode == 0 else "FAILED"
        record = self._record(job)
        if record["state"] in ("CANCELLED", "PENDING"):
            state = record["state"]
        self._tell(job, {**record, "state": state})
        return Run(state, output.read_bytes()[before:].decode(), batch.returncode)

    @staticmethod
    def _clear(batch: "subprocess.Popen[bytes]") -> None:
        """Nothing of a job outlives it."""
        with suppress(ProcessLookupError):
            os.killpg(batch.pid, signal.SIGKILL)
        batch.wait()

    def _record(self, job: int) -> Any:
        return json.loads((self.folder / f"{job}.job").read_text())

    def _tell(self, job: int, value: object) -> None:
        _tell(self.folder / f"{job}.job", value)


def _tell(file: Path, value: object) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(value))
    unfinished.replace(file)


# The commands.


def sbatch(arguments: list[str]) -> int:
    """Take a job. Options of the command line go before those of the script, as Slurm has it."""
    *given, script = arguments
    try:
        options = options_of(Path(script)) | dict(_option(word) for word in given)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    folder = Path(os.environ["SLURM_CONF"])
    job = 101 + len(list(folder.glob("*.job")))
    copied = folder / f"slurm_script_{job}"  # Slurm runs a copy: the file may change or go
    copied.write_bytes(Path(script).read_bytes())
    copied.chmod(0o700)
    environment = {**os.environ, "USER": getpass.getuser()}  # --export=ALL, the default
    _tell(
        folder / f"{job}.job",
        {"script": str(copied), "options": options, "environment": environment, "state": "PENDING", "restarts": 0},
    )
    sys.stdout.write(f"Submitted batch job {job}\n")
    return 0


def scontrol(arguments: list[str]) -> int:
    """`show job --oneliner ID` and `requeue ID`, where ID may be that of a task of an array."""
    *command, name = arguments
    folder = Path(os.environ["SLURM_CONF"])
    file = folder / f"{name.partition('_')[0]}.job"
    if not file.exists():
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    record = json.loads(file.read_text())
    if command == ["show", "job", "--oneliner"]:
        sys.stdout.write(
            f"JobId={name} JobName={record['options']['job-name']} JobState={record['state']} Reason=None Requeue=1\n"
        )
        return 0
    if command == ["requeue"]:
        if "requeue" not in record["options"] or record["state"] != "RUNNING":
            sys.stderr.write("Requested operation is presently disabled\n")
            return 1
        _tell(file, {**record, "state": "PENDING", "restarts": record["restarts"] + 1})
        with (folder / "requeued").open("a") as log:
            log.write(f"{name}\n")
        return 0
    sys.stderr.write(f"invalid keyword: {' '.join(command)}\n")
    return 1
