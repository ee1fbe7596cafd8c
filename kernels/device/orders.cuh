// The state machine of a backtest's orders for one account. Twin of orders.py, which says what its numbers mean.
// Include device/types.cuh first.

enum Rule {
    FILL, ENTRY_FEE, EXIT_FEE, FIXED, SLIPPAGE, BORROW, UNITS, WHOLE, TARGET_FIRST, NEXT_BAR, OPEN_IF_BETTER, REVERSE,
    RULES
};
enum Fill { AT_OPEN, AT_CLOSE, AT_SIGNAL };
enum Order { STOP, TRAIL, TARGET, SIZE, ORDER };
enum Signal { LONG = 1, SHORT = 2, LONG_EXIT = 4, SHORT_EXIT = 8 };
enum Trade { ENTRY_BAR, EXIT_BAR, SIDE, SHARES_TRADED, ENTRY_PRICE, EXIT_PRICE, GAIN, REASON, TRADE };
enum Reason { BY_SIGNAL, BY_STOP, BY_TARGET, BY_END, BY_RUIN, STILL_OPEN };

const f64 MOST_SIZE = 1e12;
const f64 TINY_DEBT = -2.2250738585072014e-308;

struct Account {
    f64 cash, shares, floor, ceiling, up, up_gap, down, down_gap, want, base, entry, since, held, trades, wins, profit,
        loss, turnover, costs, ruined;
    f64* log;  // trades, of which at most `capacity` are written
    i64 capacity;
};

struct Candle {
    f64 open, high, low, close;
};

__device__ __forceinline__ f64 endless() { return __longlong_as_double(0x7ff0000000000000ll); }

__device__ __forceinline__ f64 magnitude(f64 number) { return number < 0.0 ? 0.0 - number : number; }

__device__ __forceinline__ void clear(Account& account) {
    account.shares = 0.0;
    account.floor = -endless();
    account.ceiling = endless();
    account.up = 0.0;
    account.up_gap = endless();
    account.down = 0.0;
    account.down_gap = endless();
}

__device__ __forceinline__ Account open_account(f64 capital, f64* log, i64 capacity) {
    Account account = {};
    account.cash = capital;
    account.log = log;
    account.capacity = capacity;
    clear(account);
    return account;
}

__device__ __forceinline__ f64 side_of(const Account& account) {
    return account.shares > 0.0 ? 1.0 : account.shares < 0.0 ? -1.0 : 0.0;
}

__device__ inline void settle(Account& account, f64 side, f64 units, f64 price, i32 reason, i64 bar) {
    const f64 gain = account.cash - account.base;
    const i64 number = (i64)account.trades;
    if (number < account.capacity) {
        f64* const row = account.log + number * TRADE;
        row[ENTRY_BAR] = account.since;
        row[EXIT_BAR] = (f64)bar;
        row[SIDE] = side;
        row[SHARES_TRADED] = units;
        row[ENTRY_PRICE] = account.entry;
        row[EXIT_PRICE] = price;
        row[GAIN] = gain;
        row[REASON] = (f64)reason;
    }
    account.trades += 1.0;
    if (gain > 0.0) {
        account.wins += 1.0;
        account.profit += gain;
    } else {
        account.loss -= gain;
    }
    account.held += (f64)bar - account.since;
    clear(account);
}

__device__ inline void leave(Account& account, const f64* rules, f64 level, bool slips, i32 reason, i64 bar) {
    const f64 shares = account.shares, side = shares > 0.0 ? 1.0 : -1.0, units = shares > 0.0 ? shares : -shares;
    const f64 against = level > 0.0 ? side : 0.0 - side;
    const f64 price = slips ? level * (1.0 - against * rules[SLIPPAGE]) : level;
    const f64 notional = units * magnitude(price);
    const f64 fee = notional * rules[EXIT_FEE] + rules[FIXED];
    const f64 slipped = units * (level - price) * side;
    account.cash += shares * price - fee;
    account.costs += fee + slipped;
    account.turnover += notional / account.base;
    settle(account, side, units, price, reason, bar);
}

__device__ __forceinline__ void move_stop(Account& account, f64 high, f64 low) {
    const f64 floor = high * account.up - account.up_gap, ceiling = low * account.down + account.down_gap;
    if (account.floor < floor) account.floor = floor;
    if (ceiling < account.ceiling) account.ceiling = ceiling;
}

__device__ inline void enter(Account& account, const f64* rules, const f64* order, const f64* distances, f64 side,
                             f64 level, i64 bar) {
    const f64 price = level * (1.0 + side * rules[SLIPPAGE]);
    const f64 stop = order[STOP] * price + distances[STOP];
    const f64 trail = order[TRAIL], trail_gap = distances[TRAIL];
    const f64 target = order[TARGET] * price + distances[TARGET];
    const f64 size = order[SIZE] + distances[SIZE];
    if (!(stop > 0.0 && trail + trail_gap > 0.0 && target > 0.0 && size == size)) return;
    const f64 base = account.cash;
    f64 units = rules[UNITS] != 0.0 ? size : (size * base - rules[FIXED]) / (1.0 + rules[ENTRY_FEE]) / price;
    if (rules[WHOLE] != 0.0) units = floor(units);
    if (!(units > 0.0 && price > 0.0 && size <= MOST_SIZE)) {
        account.want = 0.0;
        return;
    }
    const f64 notional = units * price;
    const f64 fee = notional * rules[ENTRY_FEE] + rules[FIXED];
    account.cash -= side * notional + fee;
    account.costs += fee + units * (price - level) * side;
    account.turnover += notional / base;
    account.shares = side * units;
    account.base = base;
    account.entry = price;
    account.since = (f64)bar;
    const bool trails = trail < endless();
    if (side > 0.0) {
        account.up = trails ? 1.0 - trail : 0.0;
        account.up_gap = trails ? trail_gap : endless();
        account.ceiling = price + target;
        move_stop(account, price, price);
        const f64 floor = price - stop;
        if (account.floor < floor) account.floor = floor;
    } else {
        account.down = trails ? 1.0 + trail : 0.0;
        account.down_gap = trails ? trail_gap : endless();
        account.floor = price - target;
        move_stop(account, price, price);
        const f64 ceiling = price + stop;
        if (ceiling < account.ceiling) account.ceiling = ceiling;
    }
}

__device__ inline void fill_order(Account& account, const f64* rules, const f64* order, const f64* distances, f64 level,
                                  i64 bar) {
    const f64 side = side_of(account);
    if (account.want == side) return;
    if (side != 0.0) leave(account, rules, level, true, BY_SIGNAL, bar);
    if (account.want != 0.0) enter(account, rules, order, distances, account.want, level, bar);
}

__device__ inline void check_levels(Account& account, const f64* rules, const Candle& candle, i64 bar) {
    const f64 side = side_of(account), want = account.want, floor = account.floor, ceiling = account.ceiling;
    const bool low = candle.low <= floor, high = candle.high >= ceiling;
    if (!(low || high)) return;
    const bool is_long = side > 0.0;
    const bool stopped = is_long ? low : high, reached = is_long ? high : low;
    const f64 stop = is_long ? floor : ceiling, target = is_long ? ceiling : floor;
    const bool at_stop = is_long ? candle.open <= stop : candle.open >= stop;
    const bool at_target = is_long ? candle.open >= target : candle.open <= target;
    const bool by_stop = at_stop || (!at_target && stopped && !(reached && rules[TARGET_FIRST] != 0.0));
    const bool better = rules[OPEN_IF_BETTER] != 0.0 && at_target;
    const f64 level = at_stop || (better && !by_stop) ? candle.open : by_stop ? stop : target;
    leave(account, rules, level, by_stop, by_stop ? BY_STOP : BY_TARGET, bar);
    if (want == side) account.want = 0.0;
}

__device__ inline void read_signal(Account& account, const f64* rules, u32 signal) {
    if (account.ruined != 0.0) return;
    const f64 side = side_of(account);
    const bool enters_long = signal & LONG, enters_short = signal & SHORT;
    const bool leaves_long = signal & LONG_EXIT, leaves_short = signal & SHORT_EXIT;
    if (side == 0.0) {
        if (enters_long && !enters_short && !leaves_long)
            account.want = 1.0;
        else if (enters_short && !enters_long && !leaves_short)
            account.want = -1.0;
        else if ((account.want > 0.0 && leaves_long) || (account.want < 0.0 && leaves_short))
            account.want = 0.0;
        return;
    }
    const bool stays = side > 0.0 ? enters_long : enters_short, turns = side > 0.0 ? enters_short : enters_long;
    const bool leaves = side > 0.0 ? leaves_long : leaves_short;
    if (turns && !stays)
        account.want = rules[REVERSE] != 0.0 ? -side : 0.0;
    else if (leaves)
        account.want = 0.0;
    else if (stays)
        account.want = side;
}

__device__ inline void run_orders(Account& account, const f64* rules, const f64* order, const f64* distances,
                                  const Candle& candle, u32 signal, bool ends, i64 bar) {
    const f64 fill = rules[FILL];
    if (fill == AT_OPEN) fill_order(account, rules, order, distances, candle.open, bar);
    if (account.shares != 0.0) {
        if (!(rules[NEXT_BAR] != 0.0 && account.since == (f64)bar)) check_levels(account, rules, candle, bar);
        move_stop(account, candle.high, candle.low);
    }
    if (ends) {
        if (account.shares != 0.0) leave(account, rules, candle.close, true, BY_END, bar);
        account.want = 0.0;
        return;
    }
    if (fill == AT_SIGNAL) read_signal(account, rules, signal);
    if (fill != AT_OPEN) fill_order(account, rules, order, distances, candle.close, bar);
}

__device__ inline void ruin(Account& account, f64 value, f64 close, i64 bar) {
    account.cash = value < 0.0 ? value : TINY_DEBT;
    if (account.shares != 0.0) {
        const f64 units = account.shares > 0.0 ? account.shares : -account.shares;
        settle(account, side_of(account), units, close, BY_RUIN, bar);
    }
    account.want = 0.0;
    account.ruined = 1.0;
}
