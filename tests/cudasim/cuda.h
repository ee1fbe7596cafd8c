// CUDA C as far as our kernels speak it, for g++: included before the kernel's text, which is compiled unchanged.
//
// Left out on purpose, so that using it is a compile error: the math library beyond what IEEE 754 rounds exactly (exp, log,
// sin: CUDA's and the host's differ in the last bit), float atomics (their order is not reproducible), inline PTX, textures.
#pragma once
#include "thread.h"

#include <type_traits>
#include <utility>

typedef decltype(sizeof 0) size_t;

#define WD_CPU_SHIM 1
#define warpSize 32

#ifndef CUDASIM_SCAN   // the scan for kernels' names and launch bounds sees these words as written
#define __global__
#define __launch_bounds__(...)
#endif
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#ifdef __SANITIZE_ADDRESS__
// Address sanitizer puts no red zones into thread-local memory: plain static, one resident block at a time.
#define __shared__ static __attribute__((section("cudasim_shared"), used))
#else
#define __shared__ static __thread
#endif

#define threadIdx (cudasim_self()->thread)
#define blockIdx (cudasim_self()->block)
#define blockDim (cudasim_self()->block_shape)
#define gridDim (cudasim_self()->grid_shape)

#define CUDASIM_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define CUDASIM_INLINE static inline __attribute__((always_inline, unused))

// ---------------------------------------------------------------- vector types, aligned as CUDA aligns them

#define CUDASIM_VECTOR(T, N, A2, A4)                                                            \
    struct N##1 { T x; };                                                                       \
    struct __attribute__((aligned(A2))) N##2 { T x, y; };                                       \
    struct N##3 { T x, y, z; };                                                                 \
    struct __attribute__((aligned(A4))) N##4 { T x, y, z, w; };                                 \
    CUDASIM_INLINE N##2 make_##N##2(T x, T y) { return {x, y}; }                                \
    CUDASIM_INLINE N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                        \
    CUDASIM_INLINE N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define uint3 cudasim_uint3   // thread.h has it
CUDASIM_VECTOR(unsigned char, uchar, 2, 4)
CUDASIM_VECTOR(short, short, 4, 8)
CUDASIM_VECTOR(unsigned short, ushort, 4, 8)
CUDASIM_VECTOR(int, int, 8, 16)
CUDASIM_VECTOR(unsigned, uint, 8, 16)
CUDASIM_VECTOR(long long, longlong, 16, 16)
CUDASIM_VECTOR(unsigned long long, ulonglong, 16, 16)
CUDASIM_VECTOR(float, float, 8, 16)
CUDASIM_VECTOR(double, double, 16, 16)
#undef uint3
#define make_uint3(x, y, z) (uint3{x, y, z})

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---------------------------------------------------------------- barriers, fences, collectives

CUDASIM_INLINE void __syncthreads(CUDASIM_HERE) { cudasim_barrier(CUDASIM_SYNC, 0, file, line); }
CUDASIM_INLINE int __syncthreads_or(int predicate, CUDASIM_HERE) {
    return static_cast<int>(cudasim_barrier(CUDASIM_SYNC_OR, predicate != 0, file, line));
}
CUDASIM_INLINE int __syncthreads_and(int predicate, CUDASIM_HERE) {
    return static_cast<int>(cudasim_barrier(CUDASIM_SYNC_AND, predicate != 0, file, line));
}
CUDASIM_INLINE int __syncthreads_count(int predicate, CUDASIM_HERE) {
    return static_cast<int>(cudasim_barrier(CUDASIM_SYNC_COUNT, predicate != 0, file, line));
}
CUDASIM_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
CUDASIM_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
CUDASIM_INLINE void __nanosleep(unsigned, CUDASIM_HERE) { cudasim_sleep(file, line); }
CUDASIM_INLINE void __syncwarp(unsigned mask = 0xFFFFFFFFu, CUDASIM_HERE) {
    cudasim_meet(CUDASIM_SYNCWARP, mask, 0, file, line);
}

template <class T> CUDASIM_INLINE unsigned long long cudasim_bits(T value) {
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "a shuffle moves 4 or 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T>
CUDASIM_INLINE T cudasim_shuffle(int kind, unsigned mask, T value, int wanted, bool inside, const char* file, int line) {
    const CudasimSlots* slots = cudasim_meet(kind, mask, cudasim_bits(value), file, line);
    if (!inside) return value;
    if (!(slots->present >> wanted & 1))
        cudasim_defect(file, line, "a shuffle with mask 0x%08x reads lane %d, which does not take part", mask, wanted);
    T result;
    __builtin_memcpy(&result, &slots->value[wanted], sizeof result);
    return result;
}
#define CUDASIM_LANE static_cast<int>(cudasim_self()->lane)
template <class T> CUDASIM_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32, CUDASIM_HERE) {
    int base = CUDASIM_LANE & ~(width - 1);
    return cudasim_shuffle(CUDASIM_SHFL, mask, value, base + (lane & (width - 1)), true, file, line);
}
template <class T> CUDASIM_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_HERE) {
    int base = CUDASIM_LANE & ~(width - 1), from = CUDASIM_LANE - static_cast<int>(delta);
    return cudasim_shuffle(CUDASIM_SHFL_UP, mask, value, from, from >= base, file, line);
}
template <class T> CUDASIM_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_HERE) {
    int base = CUDASIM_LANE & ~(width - 1), from = CUDASIM_LANE + static_cast<int>(delta);
    return cudasim_shuffle(CUDASIM_SHFL_DOWN, mask, value, from, from < base + width, file, line);
}
template <class T> CUDASIM_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDASIM_HERE) {
    int from = CUDASIM_LANE ^ bits, end = (CUDASIM_LANE & ~(width - 1)) + width;   // lanes of earlier segments are readable
    return cudasim_shuffle(CUDASIM_SHFL_XOR, mask, value, from, from < end, file, line);
}

CUDASIM_INLINE unsigned cudasim_vote(int kind, unsigned mask, int predicate, const char* file, int line, unsigned* present) {
    const CudasimSlots* slots = cudasim_meet(kind, mask, predicate != 0, file, line);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (slots->present >> lane & 1 && slots->value[lane]) votes |= 1u << lane;
    *present = slots->present;
    return votes;
}
CUDASIM_INLINE unsigned __ballot_sync(unsigned mask, int predicate, CUDASIM_HERE) {
    unsigned present;
    return cudasim_vote(CUDASIM_BALLOT, mask, predicate, file, line, &present);
}
CUDASIM_INLINE int __any_sync(unsigned mask, int predicate, CUDASIM_HERE) {
    unsigned present;
    return cudasim_vote(CUDASIM_ANY, mask, predicate, file, line, &present) != 0;
}
CUDASIM_INLINE int __all_sync(unsigned mask, int predicate, CUDASIM_HERE) {
    unsigned present;
    return cudasim_vote(CUDASIM_ALL, mask, predicate, file, line, &present) == present;
}
template <class T> CUDASIM_INLINE unsigned __match_any_sync(unsigned mask, T value, CUDASIM_HERE) {
    const CudasimSlots* slots = cudasim_meet(CUDASIM_MATCH, mask, cudasim_bits(value), file, line);
    unsigned same = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (slots->present >> lane & 1 && slots->value[lane] == cudasim_bits(value)) same |= 1u << lane;
    return same;
}
// __reduce_*_sync need sm_80: a kernel that uses them does not compile for all our targets, so they are not here.

// ---------------------------------------------------------------- atomics: relaxed, as CUDA's are; integers only

#define CUDASIM_FETCH(NAME, T, BUILTIN)                                       \
    CUDASIM_INLINE T NAME(T* at, T value) {                                   \
        T before = BUILTIN(at, value, __ATOMIC_RELAXED);                      \
        cudasim_memory_event(1);                                              \
        return before;                                                        \
    }
#define CUDASIM_CAS(T)                                                                                        \
    CUDASIM_INLINE T atomicCAS(T* at, T expected, T value) {                                                  \
        bool done = __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
        cudasim_memory_event(done);                                                                           \
        return expected;                                                                                      \
    }
#define CUDASIM_UPDATE(NAME, T, NEXT)                                                                         \
    CUDASIM_INLINE T NAME(T* at, T value) {                                                                   \
        T before = __atomic_load_n(at, __ATOMIC_RELAXED);                                                     \
        while (!__atomic_compare_exchange_n(at, &before, NEXT, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {} \
        cudasim_memory_event((NEXT) != before);                                                               \
        return before;                                                                                        \
    }
#define CUDASIM_EACH(T)                                         \
    CUDASIM_FETCH(atomicAdd, T, __atomic_fetch_add)             \
    CUDASIM_FETCH(atomicExch, T, __atomic_exchange_n)           \
    CUDASIM_FETCH(atomicAnd, T, __atomic_fetch_and)             \
    CUDASIM_FETCH(atomicOr, T, __atomic_fetch_or)               \
    CUDASIM_FETCH(atomicXor, T, __atomic_fetch_xor)             \
    CUDASIM_CAS(T)                                              \
    CUDASIM_UPDATE(atomicMin, T, value < before ? value : before) \
    CUDASIM_UPDATE(atomicMax, T, value > before ? value : before)
CUDASIM_EACH(int)
CUDASIM_EACH(unsigned)
CUDASIM_EACH(unsigned long long)
CUDASIM_UPDATE(atomicMin, long long, value < before ? value : before)
CUDASIM_UPDATE(atomicMax, long long, value > before ? value : before)
CUDASIM_FETCH(atomicSub, int, __atomic_fetch_sub)
CUDASIM_FETCH(atomicSub, unsigned, __atomic_fetch_sub)
CUDASIM_UPDATE(atomicInc, unsigned, before >= value ? 0u : before + 1)
CUDASIM_UPDATE(atomicDec, unsigned, before == 0 || before > value ? value : before - 1)
float atomicAdd(float*, float) = delete;   // the order of additions would be part of the result
double atomicAdd(double*, double) = delete;

// The twins of device/sync.cuh.
template <class T> CUDASIM_INLINE T cudasim_load_acquire(const T* at) {
    T value = __atomic_load_n(at, __ATOMIC_ACQUIRE);
    cudasim_memory_event(0);
    return value;
}
template <class T> CUDASIM_INLINE void cudasim_store_release(T* at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    cudasim_memory_event(1);
}
template <class T> CUDASIM_INLINE T cudasim_add_acq_rel(T* at, T value) {
    T before = __atomic_fetch_add(at, value, __ATOMIC_ACQ_REL);
    cudasim_memory_event(1);
    return before;
}
template <class T> CUDASIM_INLINE T cudasim_load_relaxed(const T* at) {
    T value = __atomic_load_n(at, __ATOMIC_RELAXED);
    cudasim_memory_event(0);
    return value;
}
template <class T> CUDASIM_INLINE void cudasim_store_relaxed(T* at, T value) {
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
    cudasim_memory_event(1);
}
template <class T> CUDASIM_INLINE T cudasim_add_relaxed(T* at, T value) {
    T before = __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
    cudasim_memory_event(1);
    return before;
}

// ---------------------------------------------------------------- integers and bits

CUDASIM_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
CUDASIM_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
CUDASIM_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
CUDASIM_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
CUDASIM_INLINE int __ffs(int x) { return __builtin_ffs(x); }
CUDASIM_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
CUDASIM_INLINE unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
    return y;
}
CUDASIM_INLINE unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
CUDASIM_INLINE unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
CUDASIM_INLINE int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
CUDASIM_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
CUDASIM_INLINE long long __mul64hi(long long a, long long b) {
    return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
CUDASIM_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
CUDASIM_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
CUDASIM_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned choice = selector >> (4 * i);
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7))) & 0xFF;
        if (choice & 8) byte = byte & 0x80 ? 0xFF : 0;
        result |= byte << (8 * i);
    }
    return result;
}

template <class To, class From> CUDASIM_INLINE To cudasim_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
CUDASIM_INLINE unsigned __float_as_uint(float x) { return cudasim_cast<unsigned>(x); }
CUDASIM_INLINE int __float_as_int(float x) { return cudasim_cast<int>(x); }
CUDASIM_INLINE float __uint_as_float(unsigned x) { return cudasim_cast<float>(x); }
CUDASIM_INLINE float __int_as_float(int x) { return cudasim_cast<float>(x); }
CUDASIM_INLINE long long __double_as_longlong(double x) { return cudasim_cast<long long>(x); }
CUDASIM_INLINE double __longlong_as_double(long long x) { return cudasim_cast<double>(x); }
CUDASIM_INLINE int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
CUDASIM_INLINE int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
CUDASIM_INLINE double __hiloint2double(int high, int low) {
    return cudasim_cast<double>(static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low));
}
template <class T> CUDASIM_INLINE T __ldg(const T* at) { return *at; }
template <class T> CUDASIM_INLINE T __ldcs(const T* at) { return *at; }
template <class T> CUDASIM_INLINE void __stcs(T* at, T value) { *at = value; }

template <class T> CUDASIM_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> CUDASIM_INLINE T max(T a, T b) { return a < b ? b : a; }
CUDASIM_INLINE unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
CUDASIM_INLINE unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
CUDASIM_INLINE unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
CUDASIM_INLINE unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
CUDASIM_INLINE int abs(int x) { return x < 0 ? -x : x; }
CUDASIM_INLINE long long llabs(long long x) { return x < 0 ? -x : x; }

// ---------------------------------------------------------------- floats: what IEEE 754 rounds exactly

#define CUDASIM_FLOAT(T, SUFFIX)                                                                   \
    CUDASIM_INLINE T sqrt(T x) { return __builtin_sqrt##SUFFIX(x); }                               \
    CUDASIM_INLINE T fabs(T x) { return __builtin_fabs##SUFFIX(x); }                               \
    CUDASIM_INLINE T abs(T x) { return __builtin_fabs##SUFFIX(x); }                                \
    CUDASIM_INLINE T floor(T x) { return __builtin_floor##SUFFIX(x); }                             \
    CUDASIM_INLINE T ceil(T x) { return __builtin_ceil##SUFFIX(x); }                               \
    CUDASIM_INLINE T trunc(T x) { return __builtin_trunc##SUFFIX(x); }                             \
    CUDASIM_INLINE T rint(T x) { return __builtin_rint##SUFFIX(x); }                               \
    CUDASIM_INLINE T fma(T x, T y, T z) { return __builtin_fma##SUFFIX(x, y, z); }                 \
    CUDASIM_INLINE T copysign(T x, T y) { return __builtin_copysign##SUFFIX(x, y); }               \
    CUDASIM_INLINE T fmin(T x, T y) { return __builtin_fmin##SUFFIX(x, y); }                       \
    CUDASIM_INLINE T fmax(T x, T y) { return __builtin_fmax##SUFFIX(x, y); }                       \
    CUDASIM_INLINE T ldexp(T x, int n) { return __builtin_ldexp##SUFFIX(x, n); }                   \
    CUDASIM_INLINE bool isnan(T x) { return __builtin_isnan(x); }                                  \
    CUDASIM_INLINE bool isinf(T x) { return __builtin_isinf(x); }                                  \
    CUDASIM_INLINE bool isfinite(T x) { return __builtin_isfinite(x); }                            \
    CUDASIM_INLINE bool signbit(T x) { return __builtin_signbit(x); }
CUDASIM_FLOAT(float, f)
CUDASIM_FLOAT(double, )
CUDASIM_INLINE float sqrtf(float x) { return __builtin_sqrtf(x); }
CUDASIM_INLINE float fabsf(float x) { return __builtin_fabsf(x); }
CUDASIM_INLINE float floorf(float x) { return __builtin_floorf(x); }
CUDASIM_INLINE float ceilf(float x) { return __builtin_ceilf(x); }
CUDASIM_INLINE float truncf(float x) { return __builtin_truncf(x); }
CUDASIM_INLINE float rintf(float x) { return __builtin_rintf(x); }
CUDASIM_INLINE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
CUDASIM_INLINE float fminf(float x, float y) { return __builtin_fminf(x, y); }
CUDASIM_INLINE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
CUDASIM_INLINE float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
CUDASIM_INLINE float __fadd_rn(float x, float y) { return x + y; }
CUDASIM_INLINE float __fsub_rn(float x, float y) { return x - y; }
CUDASIM_INLINE float __fmul_rn(float x, float y) { return x * y; }
CUDASIM_INLINE float __fdiv_rn(float x, float y) { return x / y; }
CUDASIM_INLINE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
CUDASIM_INLINE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
CUDASIM_INLINE double __dadd_rn(double x, double y) { return x + y; }
CUDASIM_INLINE double __dsub_rn(double x, double y) { return x - y; }
CUDASIM_INLINE double __dmul_rn(double x, double y) { return x * y; }
CUDASIM_INLINE double __ddiv_rn(double x, double y) { return x / y; }
CUDASIM_INLINE double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
CUDASIM_INLINE double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
CUDASIM_INLINE double __int2double_rn(int x) { return x; }
CUDASIM_INLINE double __uint2double_rn(unsigned x) { return x; }
CUDASIM_INLINE double __ll2double_rn(long long x) { return static_cast<double>(x); }
CUDASIM_INLINE double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
CUDASIM_INLINE float __int2float_rn(int x) { return static_cast<float>(x); }
CUDASIM_INLINE float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
CUDASIM_INLINE float __double2float_rn(double x) { return static_cast<float>(x); }
CUDASIM_INLINE long long __double2ll_rn(double x) { return static_cast<long long>(__builtin_rint(x)); }
CUDASIM_INLINE int __double2int_rn(double x) { return static_cast<int>(__builtin_rint(x)); }
CUDASIM_INLINE int __float2int_rn(float x) { return static_cast<int>(__builtin_rintf(x)); }

extern "C" int printf(const char*, ...) __attribute__((format(printf, 1, 2)));
#define assert(condition) ((condition) ? (void)0 : cudasim_defect(__FILE__, __LINE__, "assertion failed: %s", #condition))
#define __trap() cudasim_defect(__FILE__, __LINE__, "__trap()")

// ---------------------------------------------------------------- the table of kernels, made from their types

template <class T> constexpr char cudasim_kind() {
    if (std::is_pointer<T>::value) return 'p';
    if (std::is_floating_point<T>::value) return 'f';
    if (std::is_same<T, bool>::value) return 'b';
    if (std::is_integral<T>::value) return std::is_signed<T>::value ? 'i' : 'u';
    return 's';
}
template <class T, bool known = !std::is_void<T>::value> struct CudasimSize { static constexpr unsigned of = sizeof(T); };
template <class T> struct CudasimSize<T, false> { static constexpr unsigned of = 0; };
template <class T> constexpr CudasimParameter cudasim_parameter() {
    using To = std::remove_cv_t<std::remove_pointer_t<T>>;
    bool pointer = std::is_pointer<T>::value;
    return {cudasim_kind<T>(), sizeof(T), pointer ? cudasim_kind<To>() : ' ', pointer ? CudasimSize<To>::of : 0};
}
template <auto kernel> struct CudasimEntry;
template <class... T, void (*kernel)(T...)> struct CudasimEntry<kernel> {
    static constexpr int count = sizeof...(T);
    static constexpr CudasimParameter parameters[sizeof...(T) + 1] = {cudasim_parameter<T>()..., {}};
    template <size_t... I> static void spread(void** arguments, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_cv_t<T>*>(arguments[I])...);
    }
    static void call(void** arguments) { spread(arguments, std::index_sequence_for<T...>{}); }
};
#define CUDASIM_KERNEL(NAME, BOUND) \
    {#NAME, CudasimEntry<NAME>::call, CudasimEntry<NAME>::parameters, CudasimEntry<NAME>::count, BOUND},
