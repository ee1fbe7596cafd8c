"""What is said of a GPU, from scripts that play the driver, with a clock that the test turns."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.stand_ins.nvml import A100, Replay, play
from warpdesk_server.workers.gpu import diagnosis, nvml, session
from warpdesk_server.workers.gpu.nvml import Gpu, Monitor, gpus, library, look, visible, within
from warpdesk_server.workers.gpu.session import clock_reasons
from warpdesk_server.workers.gpu.xid import meaning
from warpdesk_server.workers.queue.reports import GpuReport, MigSlice
from warpdesk_server.workers.settings import WorkerSettings

SCRIPTS = Path(__file__).parent / "nvml"


class Clock:
    """A clock that goes on when someone sleeps by it, or when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Bench:
    """A monitor without its thread, and the clock of both sides."""

    def __init__(self, script: Path, which: str = "", pid: int | None = None, gpm: bool = False) -> None:
        self.clock = Clock()
        replayed = Replay(script, self.clock, self.clock.sleep)
        self.monitor = Monitor(which, replayed, lambda: pid, interval=1.0, clock=self.clock, gpm=gpm)
        self.monitor._stopped.wait = self._wait  # type: ignore[method-assign]

    def _wait(self, timeout: float | None = None) -> bool:
        self.clock.now += timeout or 0.0
        return False

    def after(self, seconds: float) -> GpuReport:
        """What is reported after reading for so long."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.monitor.step()
        return self.monitor.report()


def script(name: str) -> Path:
    return SCRIPTS / f"{name}.json"


def findings(report: GpuReport) -> list[tuple[str, str]]:
    return [(finding.state, finding.reason) for finding in report.findings]


def changed(tmp_path: Path, name: str, **device: Any) -> Path:
    """A script that differs from another in what its first device says."""
    played = json.loads(script(name).read_text())
    played["moments"][0]["devices"][0] |= device
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "script.json"
    path.write_text(json.dumps(played))
    return path


def test_a_busy_gpu_is_healthy_and_what_it_says_is_in_base_units() -> None:
    report = Bench(script("a100"), pid=4711).after(1)
    assert report.state == "healthy"
    assert report.findings == ()
    reading = report.reading
    assert reading is not None
    assert (reading.uuid, reading.name, reading.index, reading.mig) == (A100, "NVIDIA A100-SXM4-80GB", 0, None)
    assert (reading.driver, reading.cuda) == ("570.172.08", "12.8")
    assert (reading.memory_total, reading.memory_used) == (80 * 2**30, 3 * 2**30)
    assert reading.memory_reserved == 650 * 2**20
    assert reading.process_memory == 3 * 2**30
    assert reading.utilization == 1.0
    assert (reading.temperature, reading.slowdown_temperature) == (58, 89)
    assert (reading.power, reading.power_limit) == (318.25, 400.0)
    assert (reading.sm_clock, reading.memory_clock) == (1_410_000_000, 1_593_000_000)
    assert reading.clock_reasons == ()
    assert (reading.ecc_uncorrected, reading.rows_remapped) == (0, 0)
    assert (reading.remap_pending, reading.remap_failed) == (False, False)
    assert reading.recovery_action == "none"


def test_what_a_gpu_does_not_tell_is_none_and_a_power_cap_is_no_trouble() -> None:
    report = Bench(script("t4"), pid=4711).after(30)
    assert report.state == "healthy"
    reading = report.reading
    assert reading is not None
    assert reading.clock_reasons == ("software power cap",)
    assert (reading.rows_remapped, reading.remap_pending, reading.remap_failed) == (None, None, None)
    assert reading.recovery_action is None
    assert (reading.pages_retired, reading.retirement_pending) == (0, False)
    assert reading.process_memory is None  # it is not on the GPU


@pytest.mark.parametrize(
    ("pids", "found"), [((4711,), 1000), ((17,), 1000), ((17, 4711), 1001), ((17, 18), None), ((), None)]
)
def test_the_only_process_on_a_gpu_is_ours_though_a_container_numbers_it_otherwise(
    tmp_path: Path, pids: tuple[int, ...], found: int | None
) -> None:
    processes = [{"pid": pid, "usedGpuMemory": 1000 + place} for place, pid in enumerate(pids)]
    path = changed(tmp_path, "a100", nvmlDeviceGetComputeRunningProcesses_v3=processes)
    ours, nobodys = (Bench(path, pid=pid).after(1).reading for pid in (4711, None))
    assert ours is not None
    assert nobodys is not None
    assert (ours.process_memory, nobodys.process_memory) == (found, None)


def test_without_a_driver_the_state_is_unknown_and_the_remedy_is_told() -> None:
    report = Bench(script("none")).after(5)
    assert report.state == "unknown"
    assert findings(report) == [("unknown", "NVML cannot be asked: NVML Shared Library Not Found")]
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in report.findings[0].remedy
    assert (report.reading, report.age_seconds) == (None, None)


def test_the_real_library_says_so_too_where_there_is_none() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        report = look("", library())
        assert report.state == "unknown"
        assert report.reading is None
    else:  # a machine with a GPU
        report = look("", library())
        assert report.reading is not None
        assert report.reading.uuid.startswith("GPU-")


def test_of_a_mig_device_memory_is_the_slices_and_the_rest_is_the_gpus() -> None:
    report = Bench(script("h100_mig"), "MIG-00000002-1111-5222-8333-444444444444", pid=4711).after(1)
    assert report.state == "healthy"
    reading = report.reading
    assert reading is not None
    assert reading.mig == MigSlice(
        parent="GPU-48100000-0000-4000-8000-000000000000", gpu_instance=2, compute_instance=0
    )
    assert (reading.memory_total, reading.temperature) == (42_000_000_000, 41)
    assert reading.utilization is None
    assert reading.process_memory == 900_000_000


def test_a_sick_gpu_is_put_in_quarantine_with_every_reason_the_worst_first() -> None:
    bench = Bench(script("sick"))
    assert bench.after(2).state == "healthy"
    report = bench.after(14)
    assert report.state == "quarantine"
    assert findings(report) == [
        ("quarantine", "the driver asks for this recovery: reset"),
        ("quarantine", "2 uncorrectable memory errors since the driver was loaded"),
        ("quarantine", "Xid 95: a memory error that was not contained"),
        ("drain", "a faulty row of memory waits to be remapped by a reset"),
        ("degraded", "the GPU is slowed down: hardware slowdown, hardware thermal slowdown at 91 °C"),
    ]
    assert f"nvidia-smi --gpu-reset -i {A100}" in report.findings[0].remedy
    assert [(event.xid, event.asks) for event in report.xids] == [(95, "reset-gpu")]


def test_a_slowdown_counts_after_ten_seconds_and_is_over_after_ten_without_it(tmp_path: Path) -> None:
    path = changed(tmp_path, "a100", nvmlDeviceGetCurrentClocksEventReasons=0x20)
    bench = Bench(path)
    assert bench.after(8).state == "healthy"
    assert bench.after(4).state == "degraded"
    path.write_text(script("a100").read_text())
    assert bench.after(8).state == "degraded"
    assert bench.after(4).state == "healthy"


def test_slowdowns_that_come_and_go_within_ten_seconds_are_no_trouble(tmp_path: Path) -> None:
    hot, cool = changed(tmp_path, "a100", nvmlDeviceGetCurrentClocksEventReasons=0x40).read_text(), script("a100")
    path = tmp_path / "now.json"
    path.write_text(cool.read_text())
    bench = Bench(path)
    for _ in range(5):
        path.write_text(hot)
        assert bench.after(5).state == "healthy"
        path.write_text(cool.read_text())
        assert bench.after(1).state == "healthy"


def test_a_gpu_that_falls_off_the_bus_asks_for_a_restart_of_the_machine() -> None:
    bench = Bench(script("lost"))
    assert bench.after(2).state == "healthy"
    report = bench.after(4)
    assert report.state == "quarantine"
    assert findings(report) == [
        ("quarantine", "the GPU is lost: GPU is lost"),
        ("quarantine", "Xid 79: the GPU has fallen off the bus"),
    ]
    assert report.findings[0].remedy.startswith("restart the machine")
    assert report.reading is not None  # the last one, and it is old
    assert report.age_seconds is not None
    assert report.age_seconds > 2


def test_a_container_that_lost_its_gpus_is_drained_at_the_third_unknown_error() -> None:
    bench = Bench(script("container_lost_nvml"))
    assert bench.after(3).state == "healthy"
    assert bench.after(2).state == "unknown"
    report = bench.after(3)
    assert report.state == "drain"
    assert "the driver answered 'Unknown Error'" in report.findings[0].reason
    assert "start the container again" in report.findings[0].remedy


@pytest.mark.parametrize(
    ("xid", "state"),
    [(13, "healthy"), (31, "healthy"), (43, "healthy"), (45, "healthy"), (63, "healthy"), (94, "healthy"),
     (48, "quarantine"), (79, "quarantine"), (119, "quarantine"), (74, "degraded"), (9999, "degraded")],
)  # fmt: skip
def test_a_fault_of_a_program_is_not_a_fault_of_the_gpu(tmp_path: Path, xid: int, state: str) -> None:
    report = Bench(changed(tmp_path, "a100", xids=[xid, xid])).after(2)
    assert report.state == state
    assert [event.xid for event in report.xids] == [xid]


@pytest.mark.parametrize(
    ("device", "state"),
    [
        ({"nvmlDeviceGetRemappedRows": [0, 4, 0, 1]}, "quarantine"),
        ({"nvmlDeviceGetRemappedRows": [3, 0, 0, 0]}, "healthy"),
        ({"nvmlDeviceGetTotalEccErrors": {"0": 900, "1": 0}}, "healthy"),
        ({"nvmlDeviceGetRetiredPagesPendingStatus": 1}, "drain"),
        ({"fields": {"NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 2}}, "quarantine"),
        ({"fields": {"NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 4}}, "drain"),
        ({"nvmlDeviceGetMemoryInfo": {"error": "RESET_REQUIRED"}}, "quarantine"),
        ({"nvmlDeviceGetTemperature": {"error": "NO_PERMISSION"}}, "healthy"),
        ({"nvmlDeviceGetSupportedEventTypes": {"error": "NOT_SUPPORTED"}}, "healthy"),
    ],
)
def test_each_sign_has_its_verdict(tmp_path: Path, device: dict[str, Any], state: str) -> None:
    report = Bench(changed(tmp_path, "a100", **device)).after(2)
    assert report.state == state
    assert all(finding.remedy and "{" not in finding.remedy for finding in report.findings)
    assert GpuReport.model_validate_json(report.model_dump_json()) == report


def test_an_index_or_a_uuid_names_a_gpu_and_an_unknown_one_is_told() -> None:
    second = "GPU-a1000000-0000-4000-8000-000000000001"
    for which in ("1", second):
        reading = Bench(script("two"), which).after(1).reading
        assert reading is not None
        assert (reading.uuid, reading.index) == (second, 1)
    report = Bench(script("two"), "GPU-of-another-machine").after(1)
    assert findings(report) == [("unknown", "the driver does not know this GPU: Not Found")]


@pytest.fixture
def started() -> Iterator[Callable[..., Monitor]]:
    monitors: list[Monitor] = []

    def start(path: Path, **settings: Any) -> Monitor:
        monitors.append(Monitor("", Replay(path), interval=0.05, **settings))
        monitors[-1].start()
        return monitors[-1]

    yield start
    for monitor in monitors:
        monitor.stop()
        monitor.join(10)


def test_a_driver_call_that_never_returns_hangs_nobody_who_asks(
    started: Callable[..., Monitor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "DEADLINE", 0.2)
    monkeypatch.setattr(diagnosis, "LONG_HANG", 0.6)
    path = tmp_path / "script.json"
    shutil.copy(script("a100"), path)
    monitor = started(path)
    reported(monitor, lambda report: report.state == "healthy")
    replace(path, changed(tmp_path / "sick", "a100", nvmlDeviceGetMemoryInfo={"hang": True}))
    call = "the driver hangs: nvmlDeviceGetMemoryInfo has not returned for"
    hung = reported(monitor, lambda report: report.state == "degraded" and report.findings[0].reason.startswith(call))
    assert hung.hung_since is not None
    assert hung.reading is not None
    reported(monitor, lambda report: report.state == "drain")
    replace(path, script("a100"))
    assert reported(monitor, lambda report: report.state == "healthy").hung_since is None


def test_an_xid_is_heard_between_two_readings(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    shutil.copy(script("a100"), path)
    monitor = Monitor("", Replay(path), interval=3600.0)
    monitor.start()
    reported(monitor, lambda report: report.state == "healthy")
    replace(path, changed(tmp_path / "sick", "a100", xids=[79]))
    reported(monitor, lambda report: report.state == "quarantine")
    monitor.stop()
    monitor.join(10)
    assert not monitor.is_alive()


def reported(monitor: Monitor, wanted: Callable[[GpuReport], bool], patience: float = 60.0) -> GpuReport:
    """The first report that is as wanted."""
    deadline = time.monotonic() + patience
    while not wanted(report := monitor.report()):
        assert time.monotonic() < deadline, report
        time.sleep(0.01)
    return report


def replace(path: Path, by: Path) -> None:
    new = path.with_suffix(".new")
    shutil.copy(by, new)
    new.replace(path)


@pytest.mark.parametrize("moment", ["missing", "broken"])
def test_whatever_the_library_raises_is_a_finding(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "script.json"
    if moment == "broken":
        path.write_text("{")
    report = Bench(path).after(4)
    assert report.state == "degraded"
    assert "the driver could not be read" in report.findings[0].reason


def test_a_stand_in_checks_names_against_pynvml(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        Replay(script("a100")).nvmlDeviceGetTemprature((0,))
    with pytest.raises(AttributeError):
        Replay(changed(tmp_path, "a100", nvmlDeviceGetTemprature=3)).nvmlInit()
    with pytest.raises(AttributeError):
        Replay(changed(tmp_path, "a100", fields={"NVML_FI_DEV_GET_GPU_RECOVER": 0})).nvmlInit()
    with pytest.raises(TypeError):
        Replay(script("a100")).nvmlDeviceGetTemperature((0,))


def test_every_function_the_reader_calls_is_pynvmls() -> None:
    functions: list[str] = []

    class Listening(Replay):
        def __getattribute__(self, name: str) -> Any:
            if name.lower().startswith("nvml"):
                functions.append(name)
            return super().__getattribute__(name)

    for name in ("t4", "a100", "h100_mig"):
        Monitor("", Listening(script(name)), lambda: 4711, gpm=True).step()
    assert len(set(functions)) > 30
    assert [name for name in functions if not hasattr(pynvml, name)] == []


def test_the_names_of_clock_reasons_are_nvmls_bits() -> None:
    names = {
        pynvml.nvmlClocksEventReasonSwPowerCap: "software power cap",
        pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "software thermal slowdown",
        pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hardware thermal slowdown",
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hardware power brake",
    }
    assert {bit: clock_reasons(bit) for bit in names} == {bit: (words,) for bit, words in names.items()}


def test_recovery_actions_are_nvmls_numbers() -> None:
    numbers = {name: getattr(pynvml, f"NVML_GPU_RECOVERY_ACTION_{name}") for name in (
        "NONE", "GPU_RESET", "NODE_REBOOT", "DRAIN_P2P", "DRAIN_AND_RESET", "RECOVER_IMEX_DOMAIN", "BUS_RESET",
        "SYSTEM_REBOOT",
    )}  # fmt: skip
    assert list(numbers.values()) == sorted(session._ACTIONS)
    assert session._ACTIONS[numbers["DRAIN_AND_RESET"]] == "drain-and-reset"


def test_the_catalogue_of_xids_asks_for_what_nvidia_asks() -> None:
    """Immediate actions of the catalogue, for the numbers that cost an operator something."""
    asks = {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
    assert {xid for xid in range(200) if meaning(xid)[0] == "reset-gpu"} == asks | {48}
    assert {xid for xid in range(200) if meaning(xid)[0] == "restart-machine"} == {79}
    assert {meaning(xid)[0] for xid in (13, 31, 32, 94)} == {"restart-app"}
    assert {meaning(xid)[0] for xid in (43, 45, 63, 92, 154)} == {"ignore"}


def test_gpus_are_listed_by_uuid_and_slices_instead_of_a_gpu_that_is_cut() -> None:
    assert gpus(Replay(script("none"))) == []
    assert [gpu.uuid for gpu in gpus(Replay(script("two")))] == [A100, A100[:-1] + "1"]
    assert gpus(Replay(script("h100_mig"))) == [
        Gpu(f"MIG-0000000{number}-1111-5222-8333-444444444444", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0)
        for number in (1, 2)
    ]


def test_a_gpu_that_is_cut_and_has_no_slices_is_none(tmp_path: Path) -> None:
    assert gpus(Replay(changed(tmp_path, "h100_mig", mig=[]))) == []


def test_a_lost_gpu_is_left_out_of_the_list(tmp_path: Path) -> None:
    path = changed(tmp_path, "two", nvmlDeviceGetMigMode={"error": "GPU_IS_LOST"})
    assert [gpu.index for gpu in gpus(Replay(path))] == [1]


def test_a_driver_that_does_not_answer_when_asked_for_gpus_is_told(tmp_path: Path) -> None:
    path = changed(tmp_path, "a100", nvmlDeviceGetMigMode={"hang": True})
    with pytest.raises(TimeoutError, match=r"did not say which GPUs there are in 0\.1 s"):
        gpus(Replay(path), deadline=0.1)
    path.write_text(script("a100").read_text())  # lets the call return


def test_work_within_a_deadline_returns_or_raises_as_it_would() -> None:
    assert within(5, lambda: 3, "no answer") == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0, "no answer")
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"^no answer in 0\.05 s$"):
        within(0.05, gate.wait, "no answer")
    gate.set()


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("", "", ""),
        ("", "2,3", "2"),
        ("", "MIG-1,MIG-2", "MIG-1"),
        ("GPU-7", "2", "GPU-7"),
        ("1", "2", "1"),
        ("tests.workers.device:PaperDevice", "", ""),
        ("tests.workers.device:PaperDevice@GPU-7", "2", "GPU-7"),
    ],
)
def test_the_gpu_of_a_setting(monkeypatch: pytest.MonkeyPatch, device: str, visible: str, name: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.driver_name(device) == name


def test_a_worker_told_to_use_no_gpu_watches_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvml.watch(WorkerSettings(device="cpu"), lambda: None) is None
    assert nvml.watch(WorkerSettings(device="tests.workers.device:PaperDevice"), lambda: None) is None
    play(monkeypatch, script("two"))
    watched = nvml.watch(WorkerSettings(device=f"tests.workers.device:PaperDevice@{A100[:-1]}1"), lambda: None)
    assert watched is not None
    assert watched.wait_for_first(10)
    reading = watched.report().reading
    watched.stop()
    assert reading is not None
    assert reading.index == 1


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (None, ["GPU-aa0", "GPU-ab1", "MIG-2", "MIG-3"]),
        ("", []),
        ("NoDevFiles", []),
        ("1,0", ["GPU-ab1", "GPU-aa0"]),
        ("GPU-ab", ["GPU-ab1"]),
        ("GPU-a,1", []),  # it fits two
        ("0,7,1", ["GPU-aa0"]),  # nothing after the first that is none
        ("-1,0", []),
        ("2", ["MIG-2"]),
        ("MIG-3, 0", ["MIG-3", "GPU-aa0"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(chosen: str | None, left: list[str]) -> None:
    found = [Gpu("GPU-aa0", "", 0), Gpu("GPU-ab1", "", 1), Gpu("MIG-2", "", 2), Gpu("MIG-3", "", 2)]
    assert visible(found, chosen) == left


def test_where_the_driver_told_of_no_gpu_cuda_judges_what_is_visible() -> None:
    assert visible([], "0,MIG-1") == ["0", "MIG-1"]
    assert visible([], "") == []
    assert visible([], None) == []


def test_a_place_on_the_pci_bus_names_a_gpu(tmp_path: Path) -> None:
    path = changed(tmp_path, "two", nvmlDeviceGetPciInfo="0000:3B:00.0")
    reading = Bench(path, "0000:3B:00.0").after(1).reading
    assert reading is not None
    assert reading.uuid == A100


def test_what_a_gpu_is_and_has_used_is_told_in_base_units() -> None:
    for name, expected in {
        "a100": ("sm_80", 5120, 2_039_040_000_000, 73_482_115.0),  # its data sheet: 2,039 GB/s
        "h100_mig": ("sm_90", 5120, 3_352_320_000_000, 12_004_500.0),  # 3.35 TB/s
        "t4": ("sm_75", 256, 320_064_000_000, 4_410_223.0),  # 320 GB/s
    }.items():
        reading = Bench(script(name)).after(0.5).reading
        assert reading is not None
        figures = reading.architecture, reading.memory_bus_width, reading.peak_memory_bandwidth, reading.energy
        assert figures == expected


def test_energy_is_a_counter_that_grows_by_the_power() -> None:
    bench = Bench(script("a100"))
    before, after = bench.after(1).reading, bench.after(10).reading
    assert before is not None
    assert after is not None
    assert after.energy is not None
    assert before.energy is not None
    assert after.energy - before.energy == pytest.approx(10 * 318.25, rel=0.1)


@pytest.mark.parametrize(
    ("pid", "processes", "counts"),
    [
        (4711, {4711: 1000}, (1, 1000, 0)),
        (4711, {4711: 1000, 17: 30, 18: 4}, (3, 1000, 34)),
        (4711, {17: 30, 18: 4}, (2, None, None)),  # ours may be one of them, by another number
        (None, {17: 30, 18: 4}, (2, None, 34)),
        (4711, {4711: 1000, 17: None}, (2, 1000, None)),
        (4711, {}, (0, None, 0)),
        (4711, None, (None, None, None)),
    ],
)
def test_processes_are_counted_and_never_named(
    tmp_path: Path, pid: int | None, processes: dict[int, int | None] | None, counts: tuple[int | None, ...]
) -> None:
    shown: Any = {"error": "NOT_SUPPORTED"}
    if processes is not None:
        shown = [{"pid": number, "usedGpuMemory": memory} for number, memory in processes.items()]
    report = Bench(changed(tmp_path, "a100", nvmlDeviceGetComputeRunningProcesses_v3=shown), pid=pid).after(1)
    assert report.reading is not None
    assert (report.reading.processes, report.reading.process_memory, report.reading.other_memory) == counts
    assert "4711" not in report.model_dump_json()


def test_rows_of_memory_are_told_by_what_they_were_remapped_for(tmp_path: Path) -> None:
    reading = Bench(changed(tmp_path, "a100", nvmlDeviceGetRemappedRows=[5, 2, 1, 0])).after(1).reading
    assert reading is not None
    assert (reading.rows_remapped, reading.rows_remapped_uncorrected, reading.remap_pending) == (7, 2, True)


def test_performance_monitoring_is_read_of_ones_own_slice_where_it_was_asked_for() -> None:
    slices = {"MIG-00000001": (0.625, 0.3125, 0.0, 0.1562), "MIG-00000002": (0.08, 0.04, 0.0, 0.02)}
    for start, ratios in slices.items():
        bench = Bench(script("h100_mig"), f"{start}-1111-5222-8333-444444444444", gpm=True)
        first = bench.after(0.5).reading
        assert first is not None
        assert first.sm_activity is None  # there is nothing before it to compare with
        assert ratios_of(bench.after(1)) == ratios
        assert ratios_of(Bench(script("h100_mig"), f"{start}-1111-5222-8333-444444444444").after(3)) == (None,) * 4


def test_a_gpu_that_tells_all_there_is_to_tell_leaves_nothing_out() -> None:
    report = Bench(script("h100"), pid=4711, gpm=True).after(3)
    assert report.state == "healthy"
    assert [event.xid for event in report.xids] == [31]
    assert ratios_of(report) == (0.715, 0.48, 0.12, 0.555)
    assert report.reading is not None
    untold = {name for name, value in report.reading.model_dump().items() if value is None}
    assert untold == {"mig", "pages_retired", "retirement_pending"}  # a whole GPU, that remaps rows


@pytest.mark.parametrize("device", [{}, {"gpm": {}, "nvmlGpmSampleGet": {"error": "NOT_SUPPORTED"}}, {"gpm": {}}])
def test_a_gpu_without_performance_monitoring_tells_none_of_it(tmp_path: Path, device: dict[str, Any]) -> None:
    report = Bench(changed(tmp_path, "a100", **device), gpm=True).after(3)
    assert report.state == "healthy"
    assert ratios_of(report) == (None,) * 4


def test_a_metric_that_this_gpu_lacks_or_cannot_tell_is_none_and_never_zero(tmp_path: Path) -> None:
    metrics = {"NVML_GPM_METRIC_SM_UTIL": 50.0, "NVML_GPM_METRIC_SM_OCCUPANCY": float("nan")}
    assert ratios_of(Bench(changed(tmp_path, "a100", gpm=metrics), gpm=True).after(3)) == (0.5, None, None, None)


def ratios_of(report: GpuReport) -> tuple[float | None, ...]:
    reading = report.reading
    assert reading is not None
    return reading.sm_activity, reading.sm_occupancy, reading.tensor_activity, reading.dram_activity
