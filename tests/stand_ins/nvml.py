"""NVML played from a script, so that tests show a worker any GPU in any state (`STAND_IN_NVML=<path>`).

A script is JSON:

    {"about": "...", "moments": [{"until": 3.0, "system": {...}, "devices": [{...}]}, ...]}

`system` and each device map names of pynvml's functions to what they answer: a number, a string, a list, or an object
with the fields of the structure pynvml returns, or one value for each second argument. {"error": "GPU_IS_LOST"} raises
that NVMLError and {"hang": true} does not return. What is not named is not supported. `mig` in a device lists its
slices, `fields` the values of nvmlDeviceGetFieldValues by the field's name, `gpm` those of performance monitoring in
percent by the metric's name, `xids` the events of that moment. An energy that is named is the first one; from then on
it grows by the power that is named.

A moment lasts until so many seconds after the first nvmlInit, the last one for ever; each says only what differs from
the one before. When the file is replaced by another, that one begins, and calls that hang return.

Everything is checked against pynvml itself: a function, field or error it does not have raises AttributeError.
"""

import ctypes
import inspect
import json
import sys
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml

if TYPE_CHECKING:
    import pytest

A100 = "GPU-a1000000-0000-4000-8000-000000000000"  # of tests/workers/gpu/nvml/a100.json
Handle = tuple[int, ...]  # of a device: its place in the script, and that of the slice in it

_POLL = 0.02  # seconds
# Functions whose answer is a structure; an object in the script names its fields.
_STRUCTURES = {
    "nvmlDeviceGetMemoryInfo": pynvml.c_nvmlMemory_v2_t,
    "nvmlDeviceGetUtilizationRates": pynvml.c_nvmlUtilization_t,
    "nvmlDeviceGetComputeRunningProcesses_v3": pynvml.c_nvmlProcessInfo_v3_t,
}


def play(monkeypatch: "pytest.MonkeyPatch", script: Path) -> None:
    """Have the driver of this process played."""
    monkeypatch.setitem(sys.modules, "pynvml", Replay(script))


class Replay:
    """What the module pynvml is to its callers. A device handle is the place of the device in the script."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._clock = clock
        self._sleep = sleep
        self._stamp: object = None
        self._moments: list[dict[str, Any]] = []
        self._began: float | None = None
        self._delivered_xids: set[tuple[int, int, int]] = set()  # device, moment, place in its list
        self._energy: dict[Handle, tuple[float, float]] = {}  # millijoules so far, and when
        self._samples: dict[int, tuple[Any, Handle | None]] = {}  # of GPM, by address: what is there, and of what

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if not inspect.isfunction(real):
            return real
        signature = inspect.signature(real)

        def call(*arguments: Any) -> Any:
            signature.bind(*arguments)
            return self._answer(name, arguments)

        return call

    def nvmlInit(self) -> None:
        self._refresh()
        if self._began is None:
            self._began = self._clock()
        self._given(lambda: self._now()["system"].get("nvmlInit"))

    def nvmlShutdown(self) -> None:
        """Nothing is open."""

    def nvmlDeviceGetCount(self) -> int:
        return len(self._now()["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        if not 0 <= index < len(self._now()["devices"]):
            raise _error("INVALID_ARGUMENT")
        self._given(lambda: self._device((index,)).get("nvmlDeviceGetHandleByIndex"))
        return (index,)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:
        for place in self._places():
            if self._device(place).get("nvmlDeviceGetUUID") == uuid:
                return place
        raise _error("NOT_FOUND")

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> Handle:
        for index, device in enumerate(self._now()["devices"]):
            if device.get("nvmlDeviceGetPciInfo") == bus:
                return (index,)
        raise _error("NOT_FOUND")

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        return max(7, len(self._device(handle).get("mig", ())))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle:
        if index >= len(self._device(handle).get("mig", ())):
            raise _error("NOT_FOUND")
        return (*handle, index)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle) -> Handle:
        return handle[:1]

    def nvmlDeviceGetFieldValues(self, handle: Handle, ids: list[int]) -> Any:
        fields = self._given(lambda: self._device(handle).get("fields", {}))
        fields_by_id = {getattr(pynvml, name): value for name, value in fields.items()}
        values = (pynvml.c_nvmlFieldValue_t * len(ids))()
        for value, number in zip(values, ids, strict=True):
            value.fieldId = number
            value.nvmlReturn = pynvml.NVML_SUCCESS if number in fields_by_id else pynvml.NVML_ERROR_NOT_SUPPORTED
            value.value.uiVal = fields_by_id.get(number, 0)
        return values

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle) -> int:
        first = self._given(
            lambda: self._device(handle).get("nvmlDeviceGetTotalEnergyConsumption", {"error": "NOT_SUPPORTED"})
        )
        now = self._clock()
        so_far, then = self._energy.get(handle, (float(first), now))
        so_far += (now - then) * self._device(handle).get("nvmlDeviceGetPowerUsage", 0)
        self._energy[handle] = so_far, now
        return int(so_far)

    def nvmlGpmQueryDeviceSupport(self, handle: Handle) -> Any:
        support = pynvml.c_nvmlGpmSupport_t()
        parts = (self._device(handle), *self._device(handle).get("mig", ()))
        support.isSupportedDevice = any("gpm" in part for part in parts)
        return support

    def nvmlGpmSampleAlloc(self) -> Any:
        place = ctypes.c_char()
        sample = ctypes.cast(ctypes.pointer(place), pynvml.c_nvmlGpmSample_t)
        self._samples[_address(sample)] = place, None
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._samples[_address(sample)]

    def nvmlGpmSampleGet(self, handle: Handle, sample: Any) -> Any:
        self._given(lambda: self._device(handle).get("nvmlGpmSampleGet"))
        self._samples[_address(sample)] = self._samples[_address(sample)][0], handle
        return sample

    def nvmlGpmMigSampleGet(self, handle: Handle, instance: int, sample: Any) -> Any:
        for place, part in enumerate(self._device(handle).get("mig", ())):
            if part.get("nvmlDeviceGetGpuInstanceId") == instance:
                return self.nvmlGpmSampleGet((*handle, place), sample)
        raise _error("NOT_FOUND")

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        handles = {self._samples[_address(sample)][1] for sample in (request.sample1, request.sample2)}
        (handle,) = handles
        if handle is None:
            raise _error("INVALID_ARGUMENT")
        metrics = self._device(handle).get("gpm", {})
        metrics_by_id = {getattr(pynvml, name): value for name, value in metrics.items()}
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = (
                pynvml.NVML_SUCCESS if metric.metricId in metrics_by_id else pynvml.NVML_ERROR_NOT_SUPPORTED
            )
            metric.value = metrics_by_id.get(metric.metricId, 0.0)
        return request

    def nvmlEventSetCreate(self) -> list[Any]:
        return []

    def nvmlEventSetFree(self, events: list[Any]) -> None:
        events.clear()

    def nvmlDeviceRegisterEvents(self, handle: Handle, _kinds: int, events: list[Any]) -> None:
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[Any], timeout: int) -> Any:
        until = self._clock() + timeout / 1000
        while True:
            self._refresh()
            for handle in events:
                self._given(lambda: self._device(handle).get("nvmlEventSetWait_v2"))  # noqa: B023 (called at once)
                if (event := self._next_event(handle)) is not None:
                    return event
            if self._clock() >= until:
                raise _error("TIMEOUT")
            self._sleep(_POLL)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name.startswith("nvmlSystem"):
            return self._given(lambda: self._now()["system"].get(name, {"error": "NOT_SUPPORTED"}))
        handle = arguments[0]
        answer = self._given(lambda: self._device(handle).get(name, {"error": "NOT_SUPPORTED"}))
        if isinstance(answer, dict) and name not in _STRUCTURES:  # by argument: a clock, a threshold, a kind of error
            answer = answer.get(str(arguments[1]), {"error": "NOT_SUPPORTED"})
            return self._given(lambda: answer)
        if name in _STRUCTURES:
            many = isinstance(answer, list)
            made: list[Any] = [_structure(_STRUCTURES[name], fields) for fields in (answer if many else [answer])]
            return made if many else made[0]
        return answer

    def _given(self, ask: Callable[[], Any]) -> Any:
        """What the script says now; it is raised where it is an error, and waited for as long as it hangs."""
        while True:
            self._refresh()
            answer = ask()
            if not (isinstance(answer, dict) and answer.get("hang")):
                break
            self._sleep(_POLL)
        if isinstance(answer, dict) and "error" in answer:
            raise _error(answer["error"])
        return answer

    def _next_event(self, handle: Handle) -> Any:
        for at in range(self._moment() + 1):
            for place, xid in enumerate(_of(self._moments[at], handle).get("xids", ())):
                if (handle[0], at, place) in self._delivered_xids:
                    continue
                self._delivered_xids.add((handle[0], at, place))
                event = pynvml.c_nvmlEventData_t()
                event.eventType = pynvml.nvmlEventTypeXidCriticalError
                event.eventData = xid
                event.gpuInstanceId = event.computeInstanceId = pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value
                return event
        return None

    def _places(self) -> list[Handle]:
        places: list[Handle] = []
        for index, device in enumerate(self._now()["devices"]):
            places += [(index,), *((index, part) for part in range(len(device.get("mig", ()))))]
        return places

    def _device(self, handle: Handle) -> dict[str, Any]:
        return _of(self._now(), handle)

    def _now(self) -> dict[str, Any]:
        self._refresh()
        return self._moments[self._moment()]

    def _moment(self) -> int:
        elapsed = 0.0 if self._began is None else self._clock() - self._began
        later = [at for at, moment in enumerate(self._moments) if elapsed < moment["until"]]
        return later[0] if later else len(self._moments) - 1

    def _refresh(self) -> None:
        status = self._path.stat()
        stamp = status.st_mtime_ns, status.st_ino, status.st_size
        if stamp == self._stamp:
            return
        self._moments = []
        moment: dict[str, Any] = {"system": {}, "devices": []}
        for change in json.loads(self._path.read_text())["moments"]:
            moment = _changed(moment, change)
            _check(moment)
            self._moments.append(moment)
        if self._stamp is not None and self._began is not None:
            self._began = self._clock()
        self._stamp, self._delivered_xids, self._energy = stamp, set(), {}


def _error(name: str) -> Exception:
    error: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return error


def _address(sample: Any) -> int:
    return int(ctypes.cast(sample, ctypes.c_void_p).value or 0)


def _structure(kind: Any, fields: dict[str, int | None]) -> Any:
    made = kind()
    names = {name for name, _ in kind._fields_}
    for name in fields:
        if name not in names:
            raise AttributeError(f"{kind.__name__} has no field {name!r}")
    for name, value in fields.items():
        if value is not None:
            setattr(made, name, value)
    if None not in fields.values():
        return made
    friendly = pynvml.nvmlStructToFriendlyObject(made)  # in which pynvml writes None for what is not available
    for name, value in fields.items():
        setattr(friendly, name, value)
    return friendly


def _of(moment: dict[str, Any], handle: Handle) -> dict[str, Any]:
    """The device with this handle; a script may have lost it."""
    if handle[0] >= len(moment["devices"]):
        raise _error("GPU_IS_LOST")
    device: dict[str, Any] = moment["devices"][handle[0]]
    return device["mig"][handle[1]] if len(handle) == 2 else device


def _changed(moment: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The next moment: what is not said stays, but an event happens once."""
    old = [{name: value for name, value in device.items() if name != "xids"} for device in moment["devices"]]
    new: list[dict[str, Any]] = change.get("devices", [])
    nothing: dict[str, Any] = {}
    devices = [before | after for before, after in zip_longest(old, new, fillvalue=nothing)]
    return {
        "until": change.get("until", float("inf")),
        "system": moment["system"] | change.get("system", {}),
        "devices": devices,
    }


def _check(moment: dict[str, Any]) -> None:
    """Raise AttributeError for a name pynvml does not have."""
    parts = [device for whole in moment["devices"] for device in (whole, *whole.get("mig", ()))]
    for names in (moment["system"], *parts):
        for name in names:
            if name not in ("mig", "fields", "gpm", "xids"):
                getattr(pynvml, name)
    for device in parts:
        for name in (*device.get("fields", ()), *device.get("gpm", ())):
            getattr(pynvml, name)
