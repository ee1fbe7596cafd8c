"""The loop of a backtest on the CPU: eight runs of one asset side by side, from bar to bar.

A run is an asset with one set of parameters. Orders are rare, so they go one account after another (device/orders.py).
What each bar needs, the mark of the equity and its sums, goes for eight accounts at a time, without a branch.
"""

import numpy as np
from numba import njit

from warpdesk_server.kernels.backtest import metrics as m
from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import (
    LANES,
    keep_alive,
    load,
    moved,
    pointer,
    spread,
    store,
    where_below,
    which_at_most,
    which_below,
)
from warpdesk_server.kernels.device import orders as o
from warpdesk_server.kernels.device.orders import (
    move_stop,
    open_account,
    read_signal,
    ruin,
    run_orders,
    side_of,
    signals_of_interest,
)

# What a loop counts account by account, and where it leaves it.
COUNTED = tuple(zip(m.COUNTS, (o.TRADES, o.WINS, o.PROFIT, o.LOSS, o.TURNOVER, o.RUINED), strict=True))
EVERY = np.uint64(0x0101010101010101)
HALVES = EVERY * np.uint64(15)


@inner
def _row(codes, run, end, blank):  # type: ignore[no-untyped-def]
    """The signals of a run, and none after the last one."""
    return blank if run >= end else codes[run if codes.shape[0] > 1 else 0]


@inner
def _pack(codes, first, end, blank, packed):  # type: ignore[no-untyped-def]
    """The signals of eight runs at each bar as the eight bytes of a word, the first one's the lowest."""
    a, b = _row(codes, first, end, blank), _row(codes, first + 1, end, blank)
    c, d = _row(codes, first + 2, end, blank), _row(codes, first + 3, end, blank)
    e, f = _row(codes, first + 4, end, blank), _row(codes, first + 5, end, blank)
    g, h = _row(codes, first + 6, end, blank), _row(codes, first + 7, end, blank)
    for bar in range(packed.size):  # sums of whole numbers below 2^32 are exact
        low = ((d[bar] * 256.0 + c[bar]) * 256.0 + b[bar]) * 256.0 + a[bar]
        high = ((h[bar] * 256.0 + g[bar]) * 256.0 + f[bar]) * 256.0 + e[bar]
        packed[bar] = np.uint64(np.int64(low)) | np.uint64(np.int64(high)) << np.uint64(32)


@inner
def _distance(series, run, bar):  # type: ignore[no-untyped-def]
    if series.shape[0] == 0:
        return 0.0
    return series[run if series.shape[0] > 1 else 0, bar]


@inner
def _after(account, lane, held, waits, interest):  # type: ignore[no-untyped-def]
    """Bits of eight accounts after one acted: which have a position, for which an order waits, which signals matter."""
    side, bit, place = side_of(account), np.int64(1) << lane, np.uint64(8 * lane)
    held = held | bit if side != 0.0 else held & ~bit
    waits = waits | bit if account[o.WANT] != side else waits & ~bit
    interest &= ~(np.uint64(255) << place)
    return held, waits, interest | np.uint64(signals_of_interest(account)) << place


@inner
def _bytes_set(word):  # type: ignore[no-untyped-def]
    """A bit for each byte of a word that is not 0."""
    bits = np.int64(0)
    for lane in range(LANES):
        bits |= np.int64((word >> np.uint64(8 * lane)) & np.uint64(255) != 0) << lane
    return bits


@inner
def _note_open(at, prices, kinds, equity, log):  # type: ignore[no-untyped-def]
    """Write the position that is left as the last row of the trades."""
    bar, last = kinds.size - 1, log.shape[0] - 1
    while not kinds[bar] & m.PRICED:
        bar -= 1
    log[last, o.ENTRY_BAR], log[last, o.EXIT_BAR] = at[o.SINCE], -1.0
    log[last, o.SIDE], log[last, o.SHARES_TRADED] = side_of(at), abs(at[o.SHARES])
    log[last, o.ENTRY_PRICE], log[last, o.EXIT_PRICE] = at[o.ENTRY], prices[3, bar]
    log[last, o.GAIN], log[last, o.REASON] = equity - at[o.BASE], o.STILL_OPEN


@njit(cache=True, error_model="numpy", nogil=True)
def simulate(  # type: ignore[no-untyped-def]
    prices, kinds, codes, rules, orders, stops, trails, targets, sizes, capital, first, end, raw, blocks, curve, log
):
    """Simulate the runs from `first` to `end` - 1 of one asset.

    `prices` are open, high, low and close (4, bars), `kinds` are of metrics.kinds_of. `codes` are signals (runs, bars),
    whose upper four bits are what the last bar of a block repeats. The four series after `orders` are distances and
    sizes (runs, bars); each of the five may have one row for all runs, or none. Fills raw (RAW, runs) and blocks
    (4, runs, blocks); curve (2, bars) and log (trades, TRADE) only for one run, if they have a size.
    """
    bars = kinds.size
    accounts, packed = np.empty(o.ACCOUNT), np.empty(bars, np.uint64)
    at, row = pointer(accounts), np.empty(LANES)
    show = pointer(row)
    zero, one = spread(0.0), spread(1.0)
    law, trades, blank = pointer(rules), pointer(log), np.zeros(bars)
    trailing, borrow = False, rules[o.BORROW]
    for run in range(first, end):
        trailing |= orders[o.TRAIL, run] < np.inf
    before = 0 if rules[o.FILL] == o.AT_SIGNAL else 1
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        _pack(codes, start, end, blank, packed)
        for lane in range(LANES):
            open_account(moved(at, lane), capital)
        cash, shares, floor, ceiling = spread(capital), zero, spread(-np.inf), spread(np.inf)
        up, up_gap, down, down_gap = zero, spread(np.inf), zero, spread(np.inf)
        equity, peak, worst, under, longest, lent = cash, cash, one, zero, zero, zero
        sum1, sum2, sum3, sum4, downside = zero, zero, zero, zero, zero
        all1, all2, all3, all4 = zero, zero, zero, zero
        held, waits, block = np.int64(0), np.int64(0), 0
        interest = EVERY * np.uint64(o.LONG | o.SHORT)
        for bar in range(bars):
            kind, signals = kinds[bar], packed[bar]
            if kind & m.REPEATED:
                signals |= signals >> np.uint64(4) & HALVES
            if kind & m.PRICED:
                ends = (kind & m.SOLD) != 0
                acts = waits | (held if ends else 0)
                if before == 0 and (signals & interest) != 0:
                    acts |= _bytes_set(signals & interest)
                if held:
                    acts |= held & (
                        which_at_most(spread(prices[2, bar]), floor) | which_at_most(ceiling, spread(prices[1, bar]))
                    )
                if acts:
                    store(at, o.CASH, cash)
                    store(at, o.FLOOR, floor)
                    store(at, o.CEILING, ceiling)
                    candle = prices[0, bar], prices[1, bar], prices[2, bar], prices[3, bar]
                    for lane in range(count):
                        account = moved(at, lane)
                        if not acts >> lane & 1:
                            if trailing:
                                move_stop(account, prices[1, bar], prices[2, bar])
                            continue
                        run, decided = start + lane, bar - before
                        order = orders[0, run], orders[1, run], orders[2, run], orders[3, run]
                        distances = (0.0, 0.0, 0.0, 0.0)
                        if before == 0 or waits >> lane & 1:
                            distances = (
                                _distance(stops, run, decided), _distance(trails, run, decided),
                                _distance(targets, run, decided), _distance(sizes, run, decided),
                            )  # fmt: skip
                        signal = np.int64((signals >> np.uint64(8 * lane)) & np.uint64(255))
                        room = log.shape[0] if lane == 0 else 0
                        run_orders(account, law, order, distances, candle, signal, ends, bar, trades, room)
                        held, waits, interest = _after(account, lane, held, waits, interest)
                    cash, shares = load(at, o.CASH), load(at, o.SHARES)
                    floor, ceiling = load(at, o.FLOOR), load(at, o.CEILING)
                    up, up_gap = load(at, o.UP), load(at, o.UP_GAP)
                    down, down_gap = load(at, o.DOWN), load(at, o.DOWN_GAP)
                elif held and trailing:
                    raised = spread(prices[1, bar]) * up - up_gap
                    lowered = spread(prices[2, bar]) * down + down_gap
                    floor = where_below(floor, raised, raised, floor)
                    ceiling = where_below(lowered, ceiling, lowered, ceiling)
                if held or acts:
                    close = spread(prices[3, bar])
                    if borrow != 0.0:
                        rent = where_below(shares, zero, zero - shares, zero) * spread(abs(prices[3, bar]) * borrow)
                        cash = cash - rent
                        lent = lent + rent
                    value = cash + shares * close
                    step = value / equity - one
                    square = step * step
                    sum1, sum2 = sum1 + step, sum2 + square
                    sum3, sum4 = sum3 + square * step, sum4 + square * square
                    downside = downside + where_below(step, zero, square, zero)
                    equity = value
                    low_water = worst * peak
                    if which_below(value, low_water):
                        worst = where_below(value, low_water, value / peak, worst)
                        if which_at_most(value, zero):
                            store(show, 0, value)
                            store(at, o.CASH, cash)
                            for lane in range(count):
                                account = moved(at, lane)
                                if row[lane] <= 0.0 and account[o.RUINED] == 0.0:
                                    room = log.shape[0] if lane == 0 else 0
                                    ruin(account, row[lane], prices[3, bar], bar, trades, room)
                                    held, waits, interest = _after(account, lane, held, waits, interest)
                            cash, shares = load(at, o.CASH), load(at, o.SHARES)
                            floor, ceiling = load(at, o.FLOOR), load(at, o.CEILING)
                            equity = where_below(zero, value, value, cash)
                    peak = where_below(peak, value, value, peak)
            under = where_below(equity, peak, under + one, zero)
            longest = where_below(longest, under, under, longest)
            if (before == 1 or not kind & m.PRICED or kind & m.SOLD) and (signals & interest) != 0:
                signalling = _bytes_set(signals & interest)
                for lane in range(count):
                    if signalling >> lane & 1:
                        account = moved(at, lane)
                        read_signal(account, law, np.int64((signals >> np.uint64(8 * lane)) & np.uint64(255)))
                        held, waits, interest = _after(account, lane, held, waits, interest)
            if kind & m.BLOCK_ENDS:
                if blocks.shape[2]:
                    for k in range(4):
                        store(show, 0, sum1 if k == 0 else sum2 if k == 1 else sum3 if k == 2 else sum4)
                        for lane in range(count):
                            blocks[k, start + lane, block] = row[lane]
                block += 1
                all1, all2, all3, all4 = all1 + sum1, all2 + sum2, all3 + sum3, all4 + sum4
                sum1, sum2, sum3, sum4 = zero, zero, zero, zero
            if curve.shape[1]:
                store(show, 0, equity)
                curve[0, bar], curve[1, bar] = row[0], at[o.SHARES]
        for k, lanes in enumerate((equity, all1, all2, all3, all4, downside, worst, longest, lent)):
            store(show, 0, lanes)
            for lane in range(count):
                raw[k, start + lane] = row[lane]
        for lane in range(count):
            run, account = start + lane, moved(at, lane)
            for to, of in COUNTED:
                raw[to, run] = account[of]
            open_bars = bars - account[o.SINCE] if account[o.SHARES] != 0.0 else 0.0
            raw[m.HELD, run] = account[o.HELD] + open_bars
            raw[m.COSTS, run] = account[o.COSTS] + raw[m.COSTS, run]
        if log.shape[0] and at[o.SHARES] != 0.0:
            _note_open(at, prices, kinds, raw[m.FINAL, start], log)
    keep_alive(accounts, row, rules, log)
