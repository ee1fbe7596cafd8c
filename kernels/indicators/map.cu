// Arithmetic steps of an indicator's program (stages.py), bar by bar, with operands some bars earlier: an interpreter.
//
// Registers are (rows, time) in device memory, `size` numbers each, one after another in `file`. A block of up to 256
// threads has a tile of bars of a row. It computes the stage's steps one after another, and what stands between them in
// shared memory: `places` stretches of halo + tile numbers. Of a step that later ones read with a lag it also computes the
// bars before the tile that they need, at most `halo`; blocks repeat these, so that no block waits for another. Before a row
// there is nothing: NaN. A thread has the same bars in every step; it waits for the others only where a step reads what they
// wrote (`barrier`).
//
// A step is eleven numbers: operation, place, register (or -1), need, barrier, and three operands, each with its lag.
//
// Bytes per bar: itemsize times the registers read and written, each once but for the halo. Instructions per step and bar:
// some 20, uniform in a block but for the lags. An H200 issues about 200 while it moves 32 bytes of float64: stages of up to
// ten steps are bound by memory bandwidth, longer ones by instructions. Registers: up to 48 a thread (58 on sm_120), no spills. Shared
// memory: up to 40 KiB a block, so that five fit an H200's multiprocessor; with three places, a halo of 13 and a tile of
// 1,024 it is 25 KiB. Which tile a stage has shows in no byte.
// Not yet measured on a GPU.

#include "device/types.cuh"
#include "device/elementary.cuh"

#define GLOBAL (1 << 20)
#define STEP 11
// Blocks that a multiprocessor should hold, as far as registers go: those of sm_100 take a few more for the same code, and
// those of sm_120 have little shared memory.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define BLOCKS 2
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define BLOCKS 4
#else
#define BLOCKS 5
#endif

enum { ADD, SUB, MUL, DIV, ABS, SQRT, LOG, EXP, FLOOR, MAX, MIN, BELOW, AT_MOST, EQUAL, MISSING, RATIO, SELECT, COPY };

__device__ __forceinline__ REAL logarithm(REAL x) {
    const bool wide = sizeof(REAL) == 8;
    const REAL least = wide ? (REAL)0x1p-1022 : (REAL)0x1p-126;
    const REAL most = wide ? (REAL)1.7976931348623157e308 : (REAL)3.4028234663852886e38;
    return x >= least && x <= most ? (REAL)log64((f64)x) : (REAL)__int_as_float(0x7fc00000);
}

__device__ __forceinline__ REAL computed(i32 op, REAL a, REAL b, REAL c) {
    switch (op) {
        case ADD: return a + b;
        case SUB: return a - b;
        case MUL: return a * b;
        case ABS: return a <= 0 ? (REAL)0 - a : a;
        case SQRT: return sqrt(a);
        case LOG: return logarithm(a);
        case EXP: return a == a ? (REAL)exp64((f64)a) : a;
        case FLOOR: return floor(a);
        case MAX: return a == a ? (b < a ? a : b) : a;
        case MIN: return a == a ? (a < b ? a : b) : a;
        case BELOW: return a < b ? 1 : 0;
        case AT_MOST: return a <= b ? 1 : 0;
        case EQUAL: return a == b ? 1 : 0;
        case MISSING: return a == a ? c : b;
        case DIV: return a / b;
        case SELECT: return a != 0 && a == a ? b : c;  // NaN is false
        default: return a;
    }
}

// Copy an input to its register.
extern "C" __global__ void __launch_bounds__(256)
place(const REAL* x, i64 size, REAL* to) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) to[i] = x[i];
}

// The mean distance of the last `period` bars from `middle`, added from the newest to the oldest. A thread per bar: neighbours
// read the same bars, which the first-level cache has.
extern "C" __global__ void __launch_bounds__(256)
spread(const REAL* x, const REAL* middle, i64 size, i64 time, i32 period, REAL part, REAL nan, REAL* out) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    if (i % time < period - 1) {
        out[i] = nan;
        return;
    }
    REAL centre = middle[i], total = 0;
    for (i32 k = 0; k < period; ++k) {
        REAL distance = x[i - k] - centre;
        total = total + (distance <= 0 ? (REAL)0 - distance : distance);
    }
    out[i] = total * part;
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
map(REAL* file, i64 size, i64 time, i64 tiles, const i32* steps, i32 count, i32 tile, i32 halo, const REAL* constants, REAL nan) {
    extern __shared__ REAL space[];
    i64 row = blockIdx.x / tiles * time, start = blockIdx.x % tiles * tile - halo;
    i32 length = halo + tile, end = time - start < length ? (i32)(time - start) : length;
    for (i32 k = 0; k < count; ++k) {
        const i32* step = steps + k * STEP;
        i32 op = step[0], to = step[1], out = step[2], begin = halo - step[3];
        if (step[4]) __syncthreads();
        for (i32 j = (i32)threadIdx.x; j < end; j += (i32)blockDim.x) {
            if (j < begin) continue;
            i64 bar = start + j;
            REAL value = nan;
            if (bar >= 0) {
                REAL given[3];
#pragma unroll
                for (i32 e = 0; e < 3; ++e) {
                    i32 at = step[5 + 2 * e], lag = step[6 + 2 * e];
                    if (at < 0)
                        given[e] = constants[-1 - at];
                    else if (at < GLOBAL)
                        given[e] = space[at * length + j - lag];
                    else
                        given[e] = bar >= lag ? file[(at - GLOBAL) * size + row + bar - lag] : nan;
                }
                // A ratio chooses here: one more division in `computed` would leave too few registers on sm_70.
                bool other = op == RATIO && given[1] == 0;
                value = computed(op == RATIO ? DIV : op, given[0], given[1], given[2]);
                if (other) value = given[2];
            }
            space[to * length + j] = value;
            if (out >= 0 && j >= halo) file[out * size + row + bar] = value;
        }
    }
}
