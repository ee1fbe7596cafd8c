"""Indicators' programs on a GPU: a launch for each stage (stages.py), over registers in device memory.

The answers have the bytes of program_cpu.py. Rows are never cut in time.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from warpdesk_server.kernels.indicators import recurrence_gpu, windows_gpu
from warpdesk_server.kernels.indicators.plan import LONGEST_PAIR, MAPS, SUMS, Operand, Program, Step, bars_read
from warpdesk_server.kernels.indicators.recurrence import SEGMENTS
from warpdesk_server.kernels.indicators.series import Series
from warpdesk_server.kernels.indicators.stages import GLOBAL, Stage, Stages, stages
from warpdesk_server.kernels.indicators.windows import share

_THREADS = 256
_LEAST_BARS = 256  # that a warp shows of a row, so that it has not mostly bars before them to order


def run(program: Program, given: Mapping[str, Series]) -> list[Any]:
    """The outputs of a program for its inputs on a device, each (rows * time)."""
    plan = stages(program, next(iter(given.values())).dtype.itemsize)
    return _Run(program, plan, next(iter(given.values()))).run(given)


class _Run:
    def __init__(self, program: Program, plan: Stages, like: Series) -> None:
        self._program, self._plan, self._like = program, plan, like
        self._register = dict(plan.inputs)
        self._given: dict[int, Any] = {}  # inputs, where they lie
        self._file = like.empty(plan.registers * like.size)
        self._constants = like.device.to_device(np.array([*program.constants, 0.0], like.dtype))

    def run(self, given: Mapping[str, Series]) -> list[Any]:
        size = np.int64(self._like.size)
        for index, step in enumerate(self._program.steps):
            if step.op != "input":
                continue
            prices = self._given[index] = given[step.name].prices
            if index in self._plan.inputs:
                blocks = -(-self._like.size // _THREADS)
                self._like.launch("map.cu", "place", blocks, _THREADS, prices, size, self._placed(index))
        for stage in self._plan.stages:
            self._register |= stage.registers
            if stage.locals:
                self._map(stage)
            else:
                self._loop(stage.steps[0])
        return [self._at(operand.at) for _, operand in self._program.outputs]

    def _at(self, step: int) -> Any:
        return self._given[step] if step in self._given else self._placed(step)

    def _placed(self, step: int) -> Any:
        size, register = self._like.size, self._register[step]
        return self._file[register * size : (register + 1) * size]

    def _map(self, stage: Stage) -> None:
        series, places = self._like, {each.step: each.to for each in stage.locals}
        code, written = [], set[int]()
        for each in stage.locals:
            step = self._program.steps[each.step]
            operands = [number for arg in step.args for number in (self._code(arg, places, written), arg.lag)]
            operands += [-1 - len(self._program.constants), 0] * (3 - len(step.args))
            register = stage.registers.get(each.step, -1)
            code.append([MAPS.index(step.op), each.to, register, each.need, int(each.barrier), *operands])
            written.add(each.step)
        tiles = -(-series.time // stage.tile)
        series.launch(
            "map.cu",
            "map",
            series.rows * tiles,
            min(_THREADS, -(-min(stage.tile, series.time) // 32) * 32),
            *(self._file, np.int64(series.size), np.int64(series.time), np.int64(tiles)),
            *(series.device.to_device(np.array(code, np.int32).reshape(-1)), np.int32(len(code))),
            *(np.int32(stage.tile), np.int32(stage.halo), self._constants, series.nan),
            shared=stage.places * (stage.tile + stage.halo) * series.dtype.itemsize,
        )

    def _code(self, operand: Operand, places: Mapping[int, int], written: set[int]) -> int:
        """An operand as map.cu reads it: a place in shared memory, GLOBAL and a register, or a constant below 0."""
        if operand.at < 0:
            return operand.at
        return places[operand.at] if operand.at in written else GLOBAL + self._register[operand.at]

    def _loop(self, index: int) -> None:
        step, out = self._program.steps[index], self._at(index)
        if step.op == "scan":
            self._scan(step, out)
            return
        if step.op in ("ratchet", "sar"):
            self._machine(step, out)
            return
        series = self._like.with_prices(self._at(step.args[0].at))
        if step.op == "spread":
            period = int(step.values[0])
            args = self._at(step.args[1].at), np.int64(series.size), np.int64(series.time), np.int32(period)
            blocks = -(-series.size // _THREADS)
            series.launch(
                "map.cu", "spread", blocks, _THREADS, series.prices, *args, share(period, series.dtype), series.nan, out
            )
            return
        if step.op in ("fir", "count_below"):
            self._over_bars(series, step, out)
        elif step.op == "quantile":
            self._quantile(series, step, out)
        elif step.op == "pair":
            self._pair(series, step, out)
        elif step.op == "mean":
            windows_gpu.means(series, int(step.values[0]), out)
        elif step.op == "deviation":
            windows_gpu.deviations(series, int(step.values[0]), out)
        elif step.op == "cutler":
            windows_gpu.cutler(series, int(step.values[0]), step.values[1], out)
        elif step.op == "follow":
            recurrence_gpu.averages(series, step.law, out)
        else:
            recurrence_gpu.strengths(series, step.law, step.values[-1], out)

    def _over_bars(self, series: Series, step: Step, out: Any) -> None:
        weights = series.device.to_device(np.array(step.values, series.dtype))
        own = (weights,) if step.op == "fir" else (np.int32(step.values[1]),)
        args = series.prices, np.int64(series.size), np.int64(series.time), np.int32(bars_read(step)), *own, series.nan
        series.launch("order.cu", step.op, -(-series.size // _THREADS), _THREADS, *args, out)

    def _quantile(self, series: Series, step: Step, out: Any) -> None:
        period, place, fraction = step.values
        each = max(int(period), _LEAST_BARS)
        parts = -(-series.time // each)
        series.launch(
            "order.cu", "quantile", series.rows * parts, 32,
            *(series.prices, np.int64(series.time), np.int64(parts), np.int32(each), np.int32(period), np.int32(place)),
            *(series.real(fraction), series.nan, out),
            shared=4 * int(period),
        )  # fmt: skip

    def _pair(self, series: Series, step: Step, out: Any) -> None:
        period, kind = (int(value) for value in step.values)
        shape = np.int64(series.size), np.int64(series.time)
        law = np.int32(period), np.int32(kind), share(period, series.dtype), series.nan
        given = series.prices, self._at(step.args[1].at), *shape
        if period <= LONGEST_PAIR:
            series.launch("pair.cu", "pair", -(-series.size // _THREADS), _THREADS, *given, *law, out)
            return
        blocks = -(-series.time // period)
        tasks, before = blocks * series.rows, series.empty(SUMS * series.size)
        grid = np.int64(blocks), np.int64(tasks)
        series.launch("pair.cu", "pair_blocks", -(-tasks // SEGMENTS), SEGMENTS, *given, *grid, *law, before, out)

    def _machine(self, step: Step, out: Any) -> None:
        series = self._like
        own = [series.real(value) for value in step.values]
        args = *(self._at(arg.at) for arg in step.args), np.int64(series.rows), np.int64(series.time), *own, series.nan
        series.launch("machine.cu", step.op, -(-series.rows // 32), 32, *args, out)

    def _scan(self, step: Step, out: Any) -> None:
        series, (factor, offset) = self._like, step.args
        fixed = series.real(self._program.constants[-1 - factor.at] if factor.at < 0 else 0)
        b = self._at(offset.at)
        a = b if factor.at < 0 else self._at(factor.at)  # not read if the factor is one number
        shape = np.int64(series.time), np.int64(series.tiles)
        given = a, np.int32(factor.at < 0), fixed, b, *shape
        maps = out  # not read if a row is one tile
        if series.tiles > 1:
            maps = series.empty(2 * series.tasks)
            series.launch("scan.cu", "scan_maps", series.tasks, SEGMENTS, *given, np.int64(series.tasks), maps)
            blocks = -(-series.rows // SEGMENTS)
            chained = maps, np.int64(series.rows), np.int64(series.tiles)
            series.launch("scan.cu", "scan_chain", blocks, SEGMENTS, *chained)
        series.launch("scan.cu", "scan_run", series.tasks, SEGMENTS, *given, maps, out)
