// Backtests of many runs, each an asset with a set of parameters. Twin of loops.py.
//
//   spread_rows  out[run][bar] = table[place[run]][bar]: an operand's row for each run
//   pack         codes (runs, bars) of float64 as bytes (bars, runs), so that threads side by side read bytes side by side
//   simulate     a thread for each run goes from bar to bar: orders (device/orders.cuh), the mark, sums
//
// Runs are in the order of assets, `sets` of each, and the first one is `offset` sets into the first asset. prices are
// open, high, low and close (assets, 4, bars), and kinds (assets, bars), which threads of an asset read at once. Of the
// four series of distances and sizes (runs, bars) those are read that `given` has a bit for. raw (16, runs) and blocks
// (4, runs, count) are what metrics.py lists. curves (runs, 2, bars) and logs (runs, capacity, TRADE) are written where
// the capacity is above 0.
//
// Launch. spread_rows, simulate: a thread for each number or run, any blocks. pack: 32 x 4 threads for 32 x 32 numbers.
//
// simulate takes about 60 instructions a bar and run where no order fills, of them a division, and reads a byte: bound by
// arithmetic in float64. Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/orders.cuh"

#define PLACES 256
#define SQUARE 32
#define SQUARE_ROWS 4

enum Kind { PRICED = 1, BLOCK_ENDS = 2, SOLD = 4, REPEATED = 8 };
const int COUNTED = 16;  // raw numbers of a run

extern "C" __global__ void __launch_bounds__(PLACES)
    spread_rows(const f64* table, const i64* place, i64 runs, i64 bars, f64* out) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < runs * bars) out[at] = table[place[at / bars] * bars + at % bars];
}

extern "C" __global__ void __launch_bounds__(SQUARE* SQUARE_ROWS)
    pack(const f64* codes, i64 runs, i64 bars, unsigned char* signals) {
    __shared__ unsigned char square[SQUARE][SQUARE + 1];
    const i64 bar = (i64)blockIdx.x * SQUARE + threadIdx.x;
    for (i32 y = threadIdx.y; y < SQUARE; y += SQUARE_ROWS) {
        const i64 run = (i64)blockIdx.y * SQUARE + y;
        if (bar < bars && run < runs) square[y][threadIdx.x] = (unsigned char)(i32)codes[run * bars + bar];
    }
    __syncthreads();
    const i64 run = (i64)blockIdx.y * SQUARE + threadIdx.x;
    for (i32 y = threadIdx.y; y < SQUARE; y += SQUARE_ROWS) {
        const i64 to = (i64)blockIdx.x * SQUARE + y;
        if (to < bars && run < runs) signals[to * runs + run] = square[threadIdx.x][y];
    }
}

extern "C" __global__ void __launch_bounds__(PLACES)
    simulate(const f64* prices, const unsigned char* kinds, const unsigned char* signals, const f64* rules,
             const f64* orders, u32 given, const f64* stops, const f64* trails, const f64* targets, const f64* sizes,
             i64 offset, i64 sets, i64 runs, i64 bars, i64 block_count, f64 capital, f64* raw, f64* blocks, f64* curves,
             f64* logs, i64 capacity) {
    const i64 run = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (run >= runs) return;
    const i64 asset = (offset + run) / sets;
    prices += asset * 4 * bars;
    kinds += asset * bars;
    f64* const curve = curves + run * 2 * bars;  // not written if there is no capacity
    f64* const log = logs + run * capacity * TRADE;
    Account account = open_account(capital, log, capacity);
    const f64* series[ORDER] = {stops, trails, targets, sizes};
    f64 order[ORDER], sums[4] = {}, all[4] = {};
    for (i32 k = 0; k < ORDER; ++k) order[k] = orders[k * runs + run];
    f64 equity = capital, peak = capital, worst = 1.0, under = 0.0, longest = 0.0, lent = 0.0, downside = 0.0;
    const i64 before = rules[FILL] == AT_SIGNAL ? 0 : 1;
    i64 block = 0;
    for (i64 bar = 0; bar < bars; ++bar) {
        const u32 kind = kinds[bar], code = signals[bar * runs + run];
        const u32 signal = kind & REPEATED ? code | code >> 4 : code;
        const bool priced = kind & PRICED;
        if (priced) {
            const Candle candle = {prices[bar], prices[bars + bar], prices[2 * bars + bar], prices[3 * bars + bar]};
            f64 distances[ORDER] = {};
            if (before == 0 || account.want != side_of(account))
                for (i32 k = 0; k < ORDER; ++k)
                    if (given >> k & 1) distances[k] = series[k][run * bars + bar - before];
            run_orders(account, rules, order, distances, candle, signal, kind & SOLD, bar);
            if (rules[BORROW] != 0.0) {
                const f64 short_units = account.shares < 0.0 ? 0.0 - account.shares : 0.0;
                const f64 rent = short_units * (magnitude(candle.close) * rules[BORROW]);
                account.cash -= rent;
                lent += rent;
            }
            const f64 value = account.cash + account.shares * candle.close;
            const f64 step = value / equity - 1.0, square = step * step;
            sums[0] += step;
            sums[1] += square;
            sums[2] += square * step;
            sums[3] += square * square;
            downside += step < 0.0 ? square : 0.0;
            equity = value;
            const f64 low_water = worst * peak;
            if (value < low_water) {
                worst = value / peak;
                if (value <= 0.0) {
                    if (account.ruined == 0.0) ruin(account, value, candle.close, bar);
                    equity = account.cash;
                }
            }
            if (peak < value) peak = value;
        }
        under = equity < peak ? under + 1.0 : 0.0;
        if (longest < under) longest = under;
        if (before == 1 || !priced || kind & SOLD) read_signal(account, rules, signal);
        if (kind & BLOCK_ENDS) {
            for (i32 k = 0; k < 4; ++k) {
                blocks[(k * runs + run) * block_count + block] = sums[k];
                all[k] += sums[k];
                sums[k] = 0.0;
            }
            ++block;
        }
        if (capacity) {
            curve[bar] = equity;
            curve[bars + bar] = account.shares;
        }
    }
    const bool holds = account.shares != 0.0;
    const f64 numbers[COUNTED] = {equity, all[0], all[1], all[2], all[3], downside, worst, longest,
                                  account.costs + lent, account.held + (holds ? (f64)bars - account.since : 0.0),
                                  account.trades, account.wins, account.profit, account.loss, account.turnover,
                                  account.ruined};
    for (i32 k = 0; k < COUNTED; ++k) raw[k * runs + run] = numbers[k];
    if (capacity && holds) {
        i64 bar = bars - 1;
        while (!(kinds[bar] & PRICED)) --bar;
        f64* const row = log + (capacity - 1) * TRADE;
        row[ENTRY_BAR] = account.since;
        row[EXIT_BAR] = -1.0;
        row[SIDE] = side_of(account);
        row[SHARES_TRADED] = account.shares > 0.0 ? account.shares : -account.shares;
        row[ENTRY_PRICE] = account.entry;
        row[EXIT_PRICE] = prices[3 * bars + bar];
        row[GAIN] = equity - account.base;
        row[REASON] = STILL_OPEN;
    }
}
