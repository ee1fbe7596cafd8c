// Tridiagonal systems in batches: solutions, and the diagonals of inverses. A thread goes through the rows of one system.
//
// Systems lie side by side ("interleaved"): number i of system s is at [i * systems + s], so that the threads of a warp
// read neighbours. A complex number has two such rows, of real and of imaginary parts. `turn` makes and undoes that.
//   turn               a matrix transposed, by squares of 32 x 32 in shared memory
//   solve_real, solve_complex       forward to u, c/u and y, backward to x and its residual; x takes the place of b
//   inverse_real, inverse_complex   forward to u, backward to w, and 1 / (u + w - d) of both
// The steps and their order are those of loops.py, so bytes are too. Numbers as given are REAL, all others float64.
//
// Launch. turn: 32 x 4 threads for each square, any number of blocks. The others: a thread for each system.
// Per row of a real system in float64, solve moves 15 numbers of 8 bytes with some 40 operations and one division, and
// inverse 10 with 50 and three: bound by memory where there are enough systems to fill the GPU, some 50,000; with fewer,
// by the latency of the division. Shared memory 8.25 KiB in turn. Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/elementary.cuh"

#define SIDE 32
#define SIDE_ROWS 4
#define MOST_THREADS 128  // four such blocks leave 128 registers a thread, so that none spills

// As in spec.py.
enum State { SIGN, SIGN_IMAGINARY, EXPONENT, GROWTH, DOMINANT, NORM, PIVOT_ROW, GAP_ROW, GIVEN, FOUND, ERROR, TAINT };
const f64 PIVOT_RATIO = 1e-12, PIVOT_LEAST = 0x1p-500, PIVOT_MOST = 0x1p+500, UNIT = 0x1p-53, ROUNDINGS = 9.0;
const f64 LEAST_FLOAT32 = 0x1p-126;

// out[(start + column * apart) * rows + row] = in[row][column]
extern "C" __global__ void __launch_bounds__(SIDE* SIDE_ROWS)
    turn(const REAL* in, u64 rows, u64 columns, u32 start, u32 apart, REAL* out) {
    __shared__ REAL square[SIDE][SIDE + 1];
    const u64 across = (columns + SIDE - 1) / SIDE;
    const u64 first_row = blockIdx.x / across * SIDE, first_column = blockIdx.x % across * SIDE;
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u64 row = first_row + y, column = first_column + threadIdx.x;
        if (row < rows && column < columns) square[y][threadIdx.x] = in[row * columns + column];
    }
    __syncthreads();
    for (u32 y = threadIdx.y; y < SIDE; y += SIDE_ROWS) {
        const u64 row = first_row + threadIdx.x, column = first_column + y;
        if (row < rows && column < columns) out[(start + column * apart) * rows + row] = square[threadIdx.x][y];
    }
}

#ifdef FLOAT32
__device__ __forceinline__ f64 wide(f32 x) { return widened(x); }
__device__ __forceinline__ f32 narrow(f64 x) { return (f32)((x < 0.0 ? 0.0 - x : x) < LEAST_FLOAT32 ? x * 0.0 : x); }
#else
__device__ __forceinline__ f64 wide(f64 x) { return x; }
__device__ __forceinline__ f64 narrow(f64 x) { return x; }
#endif

__device__ __forceinline__ f64 magnitude(f64 x) { return x < 0.0 ? 0.0 - x : x; }
__device__ __forceinline__ f64 larger(f64 x, f64 y) { return x < y ? y : x; }

// e of m * 2^e, and 2^-e; of normal numbers.
__device__ __forceinline__ u32 exponent_bits(f64 x) { return (u32)__double2hiint(x) >> 20 & 0x7ffu; }
__device__ __forceinline__ f64 exponent(f64 x) { return (f64)exponent_bits(x) - 1023.0; }
__device__ __forceinline__ f64 unscale(f64 x) { return __hiloint2double((i32)((2046u - exponent_bits(x)) << 20), 0); }

// Real numbers, and complex ones: what numbers.py says. `size` is |x| or |x|^2, and length(size) is |x|.
struct Real {
    f64 re;
    __device__ static Real zero() { return {0.0}; }
    __device__ static Real one() { return {1.0}; }
    __device__ static Real of(f64 re, f64) { return {re}; }
    __device__ static f64 length(f64 size) { return size; }
    __device__ static f64 limit(f64 length) { return length; }
    __device__ static Real get(const REAL* x, u64 row, u64 systems, u64 s) { return {wide(x[row * systems + s])}; }
    __device__ static Real get_wide(const f64* x, u64 row, u64 systems, u64 s) { return {x[row * systems + s]}; }
    __device__ void put(REAL* x, u64 row, u64 systems, u64 s) const { x[row * systems + s] = narrow(re); }
    __device__ void put_wide(f64* x, u64 row, u64 systems, u64 s) const { x[row * systems + s] = re; }
    __device__ Real minus(Real y) const { return {re - y.re}; }
    __device__ Real times(Real y) const { return {re * y.re}; }
    __device__ Real scaled(f64 y) const { return {re * y}; }
    __device__ Real inverse() const { return {1.0 / re}; }
    __device__ f64 size() const { return magnitude(re); }
    __device__ f64 largest() const { return magnitude(re); }
    __device__ f64 nothing() const { return re * 0.0; }  // NaN if it is not finite
    __device__ f64 imaginary() const { return 0.0; }
};

struct Complex {
    f64 re, im;
    __device__ static Complex zero() { return {0.0, 0.0}; }
    __device__ static Complex one() { return {1.0, 0.0}; }
    __device__ static Complex of(f64 re, f64 im) { return {re, im}; }
    __device__ static f64 length(f64 size) { return sqrt(size); }
    __device__ static f64 limit(f64 length) { return length * length; }
    __device__ static Complex get(const REAL* x, u64 row, u64 systems, u64 s) {
        return {wide(x[2 * row * systems + s]), wide(x[(2 * row + 1) * systems + s])};
    }
    __device__ static Complex get_wide(const f64* x, u64 row, u64 systems, u64 s) {
        return {x[2 * row * systems + s], x[(2 * row + 1) * systems + s]};
    }
    __device__ void put(REAL* x, u64 row, u64 systems, u64 s) const {
        x[2 * row * systems + s] = narrow(re);
        x[(2 * row + 1) * systems + s] = narrow(im);
    }
    __device__ void put_wide(f64* x, u64 row, u64 systems, u64 s) const {
        x[2 * row * systems + s] = re;
        x[(2 * row + 1) * systems + s] = im;
    }
    __device__ Complex minus(Complex y) const { return {re - y.re, im - y.im}; }
    __device__ Complex times(Complex y) const { return {re * y.re - im * y.im, re * y.im + im * y.re}; }
    __device__ Complex scaled(f64 y) const { return {re * y, im * y}; }
    __device__ Complex inverse() const {
        const f64 over = 1.0 / (re * re + im * im);
        return {re * over, 0.0 - im * over};
    }
    __device__ f64 size() const { return re * re + im * im; }
    __device__ f64 largest() const { return larger(magnitude(re), magnitude(im)); }
    __device__ f64 nothing() const { return re * 0.0 + im * 0.0; }
    __device__ f64 imaginary() const { return im; }
};

// What is known of a system between two rows.
template <class N>
struct Facts {
    N product = N::one();  // the determinant, without 2^exponents
    f64 exponents = 0.0, growth = 1.0, dominant = 1.0, norm = 0.0, pivot_row = -1.0, gap_row = -1.0;

    __device__ void judge(f64 row, N d, N u, N over) {
        const f64 ours = u.size(), theirs = d.size(), first = pivot_row < 0.0 ? row : pivot_row;
        if (!(ours >= N::limit(PIVOT_LEAST) && ours <= N::limit(PIVOT_MOST) && ours >= N::limit(PIVOT_RATIO) * theirs))
            pivot_row = first;
        growth = larger(growth, theirs * over.size());
    }

    __device__ void watch(f64 row, N a, N d, N c, N u, N over, f64 beside) {
        product = product.times(u);
        const f64 largest = product.largest();
        product = product.scaled(unscale(largest));
        exponents = exponents + exponent(largest);
        judge(row, d, u, over);
        const f64 others = N::length(a.size()) + N::length(c.size()), own = N::length(d.size());
        dominant = own >= others ? dominant : 0.0;
        norm = larger(norm, others + own);
        const f64 finite = a.nothing() + d.nothing() + c.nothing() + beside;
        gap_row = finite == 0.0 ? gap_row : gap_row < 0.0 ? row : gap_row;
    }

    __device__ void keep(f64* state, u64 systems) const {
        state[SIGN * systems] = product.re;
        state[SIGN_IMAGINARY * systems] = product.imaginary();
        state[EXPONENT * systems] = exponents;
        state[GROWTH * systems] = N::length(growth);
        state[DOMINANT * systems] = dominant;
        state[NORM * systems] = norm;
        state[PIVOT_ROW * systems] = pivot_row;
        state[GAP_ROW * systems] = gap_row;
    }
};

template <class N>
__device__ __forceinline__ void solve(const REAL* lower, const REAL* diagonal, const REAL* upper, REAL* rhs, f64 shift_re,
                                      f64 shift_im, u64 systems, u32 rows, f64* ratios, f64* forward, f64* state) {
    const u64 s = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= systems) return;
    const N shift = N::of(shift_re, shift_im);
    Facts<N> facts;
    f64 given = 0.0;
    N g = N::zero(), y = N::zero();
    for (u32 i = 0; i < rows; i++) {
        const N a = N::get(lower, i, systems, s), d = N::get(diagonal, i, systems, s).minus(shift);
        const N c = N::get(upper, i, systems, s), b = N::get(rhs, i, systems, s);
        const N u = d.minus(a.times(g)), over = u.inverse();
        facts.watch(i, a, d, c, u, over, b.nothing());
        given = larger(given, b.largest());
        y = b.minus(a.times(y)).times(over);
        g = c.times(over);
        g.put_wide(ratios, i, systems, s);
        y.put_wide(forward, i, systems, s);
    }
    f64 found = 0.0, worst = 0.0, taint = 0.0;
    N x = y, after = N::zero();
    for (u32 j = 0; j < rows; j++) {
        const u32 i = rows - 1 - j;
        N before = N::zero();
        if (i > 0)
            before = N::get_wide(forward, i - 1, systems, s).minus(N::get_wide(ratios, i - 1, systems, s).times(x));
        N left = N::get(rhs, i, systems, s).minus(N::get(lower, i, systems, s).times(before));
        left = left.minus(N::get(diagonal, i, systems, s).minus(shift).times(x));
        left = left.minus(N::get(upper, i, systems, s).times(after));
        found = larger(found, x.largest());
        worst = larger(worst, left.largest());
        taint = taint + left.nothing();
        x.put(rhs, i, systems, s);
        after = x;
        x = before;
    }
    state += s;
    facts.keep(state, systems);
    state[GIVEN * systems] = given;
    state[FOUND * systems] = found;
    state[ERROR * systems] = worst;
    state[TAINT * systems] = taint;
}

template <class N>
__device__ __forceinline__ void inverse(const REAL* lower, REAL* diagonal, const REAL* upper, f64 shift_re, f64 shift_im,
                                        u64 systems, u32 rows, f64 nan, f64* pivots, f64* errors, f64* state) {
    const u64 s = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= systems) return;
    const N shift = N::of(shift_re, shift_im);
    const f64 most = ROUNDINGS * UNIT;
    Facts<N> facts;
    N g = N::zero();
    f64 e = 0.0;
    for (u32 i = 0; i < rows; i++) {
        const N a = N::get(lower, i, systems, s), d = N::get(diagonal, i, systems, s).minus(shift);
        const N c = N::get(upper, i, systems, s), t = a.times(g), u = d.minus(t), over = u.inverse();
        facts.watch(i, a, d, c, u, over, 0.0);
        const f64 error = N::length(t.size()) * (e + most) + UNIT * (N::length(u.size()) + N::length(d.size()));
        e = N::length(over.size()) * error;
        g = c.times(over);
        u.put_wide(pivots, i, systems, s);
        errors[i * systems + s] = error;
    }
    f64 worst = 0.0, taint = 0.0;
    N h = N::zero();
    e = 0.0;
    for (u32 j = 0; j < rows; j++) {
        const u32 i = rows - 1 - j;
        const N d = N::get(diagonal, i, systems, s).minus(shift), q = N::get(upper, i, systems, s).times(h);
        f64 error = N::length(q.size()) * (e + most);
        const N v = N::get_wide(pivots, i, systems, s).minus(q), found = v.inverse();
        worst = larger(worst, N::length(found.size()) * (errors[i * systems + s] + error));
        taint = taint + found.nothing();
        taint = v.size() >= N::limit(PIVOT_LEAST) ? taint : nan;
        found.put(diagonal, i, systems, s);
        const N w = d.minus(q), over = w.inverse();
        facts.judge(i, d, w, over);
        error = error + UNIT * (N::length(w.size()) + N::length(d.size()));
        e = N::length(over.size()) * error;
        h = N::get(lower, i, systems, s).times(over);
    }
    state += s;
    facts.keep(state, systems);
    state[GIVEN * systems] = 0.0;
    state[FOUND * systems] = 0.0;
    state[ERROR * systems] = worst + 5.0 * UNIT;
    state[TAINT * systems] = taint;
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 4)
solve_real(const REAL* lower, const REAL* diagonal, const REAL* upper, REAL* rhs, f64 shift_re, f64 shift_im, u64 systems,
           u32 rows, f64* ratios, f64* forward, f64* state) {
    solve<Real>(lower, diagonal, upper, rhs, shift_re, shift_im, systems, rows, ratios, forward, state);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 4)
solve_complex(const REAL* lower, const REAL* diagonal, const REAL* upper, REAL* rhs, f64 shift_re, f64 shift_im, u64 systems,
              u32 rows, f64* ratios, f64* forward, f64* state) {
    solve<Complex>(lower, diagonal, upper, rhs, shift_re, shift_im, systems, rows, ratios, forward, state);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 4)
inverse_real(const REAL* lower, REAL* diagonal, const REAL* upper, f64 shift_re, f64 shift_im, u64 systems, u32 rows, f64 nan,
             f64* pivots, f64* errors, f64* state) {
    inverse<Real>(lower, diagonal, upper, shift_re, shift_im, systems, rows, nan, pivots, errors, state);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 4)
inverse_complex(const REAL* lower, REAL* diagonal, const REAL* upper, f64 shift_re, f64 shift_im, u64 systems, u32 rows, f64 nan,
                f64* pivots, f64* errors, f64* state) {
    inverse<Complex>(lower, diagonal, upper, shift_re, shift_im, systems, rows, nan, pivots, errors, state);
}
