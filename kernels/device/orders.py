"""The state machine of a backtest's orders: the twin of the device header orders.cuh.

An account holds cash and at most one position. What it wants (1 long, -1 short, 0 none) differs from what it has while
an order waits. A bar goes: an order that fills at the open, stops and targets within the bar, trailing stops, an order
that fills at the close. Then the caller marks the account, which is + - * / alone, for eight accounts at a time.
"""

import numpy as np

from warpdesk_server.kernels.cpu.compiled import inner
from warpdesk_server.kernels.cpu.lanes import LANES

# Numbers of an account, of which eight stand side by side: a pointer to the first number of one account, and what lies
# between its numbers. A bar's low at or below FLOOR, or its high at or above CEILING, ends the position. A trailing
# stop raises FLOOR to high * UP - UP_GAP, and lowers CEILING to low * DOWN + DOWN_GAP.
(
    CASH, SHARES, FLOOR, CEILING, UP, UP_GAP, DOWN, DOWN_GAP, WANT, BASE, ENTRY, SINCE, HELD, TRADES, WINS, PROFIT,
    LOSS, TURNOVER, COSTS, RUINED, ACCOUNT,
) = range(0, 21 * LANES, LANES)  # fmt: skip

# Numbers of all accounts: when orders fill, what they cost, how large they are, and which rule holds in doubt.
(
    FILL, ENTRY_FEE, EXIT_FEE, FIXED, SLIPPAGE, BORROW, UNITS, WHOLE, TARGET_FIRST, NEXT_BAR, OPEN_IF_BETTER, REVERSE,
    RULES,
) = range(13)  # fmt: skip
AT_OPEN, AT_CLOSE, AT_SIGNAL = range(3)  # FILL

# Numbers of one account's orders: fractions of the entry's price, infinite for none, to which a series' distance is
# added; and the fraction of the equity, or the units, of a position.
STOP, TRAIL, TARGET, SIZE, ORDER = range(5)

# Bits of a signal.
LONG, SHORT, LONG_EXIT, SHORT_EXIT = 1, 2, 4, 8

# Columns of a trade, and why it ended.
ENTRY_BAR, EXIT_BAR, SIDE, SHARES_TRADED, ENTRY_PRICE, EXIT_PRICE, GAIN, REASON, TRADE = range(9)
BY_SIGNAL, BY_STOP, BY_TARGET, BY_END, BY_RUIN, STILL_OPEN = range(6)

MOST_SIZE = 1e12  # of an order, as a fraction or in units: a larger one is dropped, before it makes infinite numbers
TINY = -2.2250738585072014e-308  # equity of an account that is ruined to exactly 0, so that a return is a number


@inner
def open_account(account, capital):  # type: ignore[no-untyped-def]
    """Set a backtest's account to its beginning: cash, and no position."""
    for k in range(0, ACCOUNT, LANES):
        account[k] = 0.0
    account[CASH] = capital
    _clear(account)


@inner
def _clear(account):  # type: ignore[no-untyped-def]
    account[SHARES] = 0.0
    account[FLOOR] = -np.inf
    account[CEILING] = np.inf
    account[UP] = 0.0
    account[UP_GAP] = np.inf
    account[DOWN] = 0.0
    account[DOWN_GAP] = np.inf


@inner
def side_of(account):  # type: ignore[no-untyped-def]
    """1 for an account with a long position, -1 short, 0 none."""
    shares = account[SHARES]
    return 1.0 if shares > 0.0 else (-1.0 if shares < 0.0 else 0.0)


@inner
def _leave(account, rules, level, slips, reason, bar, log, capacity):  # type: ignore[no-untyped-def]
    """End the position at a price level, which slips against it."""
    shares = account[SHARES]
    side, units = (1.0, shares) if shares > 0.0 else (-1.0, -shares)
    against = side if level > 0.0 else -side
    price = level * (1.0 - against * rules[SLIPPAGE]) if slips else level
    notional = units * abs(price)
    fee = notional * rules[EXIT_FEE] + rules[FIXED]
    slipped = units * (level - price) * side
    account[CASH] += shares * price - fee
    account[COSTS] += fee + slipped
    account[TURNOVER] += notional / account[BASE]
    _settle(account, side, units, price, reason, bar, log, capacity)


@inner
def _settle(account, side, units, price, reason, bar, log, capacity):  # type: ignore[no-untyped-def]
    """Count the trade that ended with all in cash."""
    gain = account[CASH] - account[BASE]
    number = int(account[TRADES])
    if number < capacity:
        row = number * TRADE
        log[row + ENTRY_BAR] = account[SINCE]
        log[row + EXIT_BAR] = bar
        log[row + SIDE] = side
        log[row + SHARES_TRADED] = units
        log[row + ENTRY_PRICE] = account[ENTRY]
        log[row + EXIT_PRICE] = price
        log[row + GAIN] = gain
        log[row + REASON] = reason
    account[TRADES] += 1.0
    if gain > 0.0:
        account[WINS] += 1.0
        account[PROFIT] += gain
    else:
        account[LOSS] -= gain
    account[HELD] += bar - account[SINCE]
    _clear(account)


@inner
def _enter(account, rules, order, distances, side, level, bar):  # type: ignore[no-untyped-def]
    """Begin a position at a price level that slips against it, if its stops are known and it can be paid."""
    price = level * (1.0 + side * rules[SLIPPAGE])
    stop = order[STOP] * price + distances[STOP]
    trail, trail_gap = order[TRAIL], distances[TRAIL]
    target = order[TARGET] * price + distances[TARGET]
    size = order[SIZE] + distances[SIZE]
    if not (stop > 0.0 and trail + trail_gap > 0.0 and target > 0.0 and size == size):
        return  # it waits until they are known
    base = account[CASH]
    units = size if rules[UNITS] != 0.0 else (size * base - rules[FIXED]) / (1.0 + rules[ENTRY_FEE]) / price
    if rules[WHOLE] != 0.0:
        units = np.floor(units)
    if not (units > 0.0 and price > 0.0 and size <= MOST_SIZE):
        account[WANT] = 0.0
        return
    notional = units * price
    fee = notional * rules[ENTRY_FEE] + rules[FIXED]
    account[CASH] -= side * notional + fee
    account[COSTS] += fee + units * (price - level) * side
    account[TURNOVER] += notional / base
    account[SHARES] = side * units
    account[BASE] = base
    account[ENTRY] = price
    account[SINCE] = bar
    if side > 0.0:
        account[UP] = 1.0 - trail if trail < np.inf else 0.0
        account[UP_GAP] = trail_gap if trail < np.inf else np.inf
        account[CEILING] = price + target
        move_stop(account, price, price)
        account[FLOOR] = max(account[FLOOR], price - stop)
    else:
        account[DOWN] = 1.0 + trail if trail < np.inf else 0.0
        account[DOWN_GAP] = trail_gap if trail < np.inf else np.inf
        account[FLOOR] = price - target
        move_stop(account, price, price)
        account[CEILING] = min(account[CEILING], price + stop)


@inner
def move_stop(account, high, low):  # type: ignore[no-untyped-def]
    """Move the trailing stop of a backtest's account, if it has one, after a bar."""
    floor = high * account[UP] - account[UP_GAP]
    ceiling = low * account[DOWN] + account[DOWN_GAP]
    account[FLOOR] = floor if account[FLOOR] < floor else account[FLOOR]
    account[CEILING] = ceiling if ceiling < account[CEILING] else account[CEILING]


@inner
def _fill(account, rules, order, distances, level, bar, log, capacity):  # type: ignore[no-untyped-def]
    """Fill the order that waits, if there is one."""
    side = side_of(account)
    if account[WANT] != side:
        if side != 0.0:
            _leave(account, rules, level, True, BY_SIGNAL, bar, log, capacity)
        if account[WANT] != 0.0:
            _enter(account, rules, order, distances, account[WANT], level, bar)


@inner
def _check_levels(account, rules, opened, high, low, bar, log, capacity):  # type: ignore[no-untyped-def]
    """End the position at its stop or its target, if the bar reaches one."""
    side, want = side_of(account), account[WANT]
    floor, ceiling = account[FLOOR], account[CEILING]
    if not (low <= floor or high >= ceiling):
        return
    long = side > 0.0
    stopped = low <= floor if long else high >= ceiling
    reached = high >= ceiling if long else low <= floor
    stop, target = (floor, ceiling) if long else (ceiling, floor)
    at_stop = opened <= stop if long else opened >= stop  # already at the open
    at_target = opened >= target if long else opened <= target
    by_stop = at_stop or (not at_target and stopped and not (reached and rules[TARGET_FIRST] != 0.0))
    better = rules[OPEN_IF_BETTER] != 0.0 and at_target
    level = opened if at_stop or (better and not by_stop) else stop if by_stop else target
    _leave(account, rules, level, by_stop, BY_STOP if by_stop else BY_TARGET, bar, log, capacity)
    if want == side:
        account[WANT] = 0.0


@inner
def run_orders(account, rules, order, distances, prices, signal, ends, bar, log, capacity):  # type: ignore[no-untyped-def]
    """The orders of a backtest's account within a bar of `prices` (open, high, low, close). Where the block `ends`, the
    position is sold at the close, and the caller reads the signal then: its order fills in the next block."""
    opened, high, low, close = prices
    fill = rules[FILL]
    if fill == AT_OPEN:
        _fill(account, rules, order, distances, opened, bar, log, capacity)
    if account[SHARES] != 0.0:
        if not (rules[NEXT_BAR] != 0.0 and account[SINCE] == bar):
            _check_levels(account, rules, opened, high, low, bar, log, capacity)
        move_stop(account, high, low)
    if ends:
        if account[SHARES] != 0.0:
            _leave(account, rules, close, True, BY_END, bar, log, capacity)
        account[WANT] = 0.0
        return
    if fill == AT_SIGNAL:
        read_signal(account, rules, signal)
    if fill != AT_OPEN:
        _fill(account, rules, order, distances, close, bar, log, capacity)


@inner
def read_signal(account, rules, signal):  # type: ignore[no-untyped-def]
    """What a backtest's account wants after a signal."""
    if account[RUINED] != 0.0:
        return
    side, want = side_of(account), account[WANT]
    long, short = (signal & LONG) != 0, (signal & SHORT) != 0
    long_exit, short_exit = (signal & LONG_EXIT) != 0, (signal & SHORT_EXIT) != 0
    if side == 0.0:
        if long and not short and not long_exit:
            want = 1.0
        elif short and not long and not short_exit:
            want = -1.0
        elif (want > 0.0 and long_exit) or (want < 0.0 and short_exit):
            want = 0.0
    else:
        stays, turns = (long, short) if side > 0.0 else (short, long)
        leaves = long_exit if side > 0.0 else short_exit
        if turns and not stays:
            want = -side if rules[REVERSE] != 0.0 else 0.0
        elif leaves:
            want = 0.0
        elif stays:
            want = side
    account[WANT] = want


@inner
def signals_of_interest(account):  # type: ignore[no-untyped-def]
    """The bits of a signal that can change what a backtest's account wants."""
    side, want = side_of(account), account[WANT]
    if account[RUINED] != 0.0:
        return 0
    if want != side:
        return LONG | SHORT | LONG_EXIT | SHORT_EXIT
    if side == 0.0:
        return LONG | SHORT
    return SHORT | LONG_EXIT if side > 0.0 else LONG | SHORT_EXIT


@inner
def ruin(account, value, close, bar, log, capacity):  # type: ignore[no-untyped-def]
    """End a backtest's account whose equity passed 0: its position is closed, and nothing more happens."""
    account[CASH] = value if value < 0.0 else TINY
    if account[SHARES] != 0.0:
        side = side_of(account)
        _settle(account, side, abs(account[SHARES]), close, BY_RUIN, bar, log, capacity)
    account[WANT] = 0.0
    account[RUINED] = 1.0
