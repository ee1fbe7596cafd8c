// Publish data to other blocks and wait for it: acquire, release and relaxed at GPU scope (sm_70 and later).
//
// CUDA's volatile and __threadfence order nothing that a race detector can check; these orders are part of the
// PTX memory model (PTX ISA, section "Memory Consistency Model"). Rules of use:
//   - the writer stores its data, then store_release(flag, value); the reader sees load_acquire(flag) == value, then
//     reads the data. A whole block publishes as: all threads write, __syncthreads(), one thread releases.
//   - "the last block finishes the job" counts with add_acq_rel.
//   - a block may wait only for blocks that took an earlier ticket from a counter (add_relaxed(counter, 1u) by one thread):
//     CUDA does not promise that blocks start in the order of blockIdx.
//   - a relaxed word orders nothing but itself: for a ticket, and for a flag that is all of its message. Release and acquire
//     would cost a fence of the whole GPU, and what the multiprocessor's cache holds at each turn of a loop that waits.
//   - a loop that waits calls pause() each time round.
// The twins under WD_CPU_SHIM run the same kernels on a CPU.

#ifdef WD_CPU_SHIM

__device__ __forceinline__ unsigned int load_acquire(const unsigned int* at) { return cudasim_load_acquire(at); }
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* at) { return cudasim_load_acquire(at); }
__device__ __forceinline__ void store_release(unsigned int* at, unsigned int value) { cudasim_store_release(at, value); }
__device__ __forceinline__ void store_release(unsigned long long* at, unsigned long long value) {
    cudasim_store_release(at, value);
}
__device__ __forceinline__ unsigned int add_acq_rel(unsigned int* at, unsigned int value) {
    return cudasim_add_acq_rel(at, value);
}
__device__ __forceinline__ unsigned int load_relaxed(const unsigned int* at) { return cudasim_load_relaxed(at); }
__device__ __forceinline__ void store_relaxed(unsigned int* at, unsigned int value) { cudasim_store_relaxed(at, value); }
__device__ __forceinline__ unsigned int add_relaxed(unsigned int* at, unsigned int value) {
    return cudasim_add_relaxed(at, value);
}
__device__ __forceinline__ void pause(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    cudasim_sleep(file, line);
}

#else

__device__ __forceinline__ unsigned int load_acquire(const unsigned int* at) {
    unsigned int value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
    return value;
}
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* at) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
    return value;
}
__device__ __forceinline__ void store_release(unsigned int* at, unsigned int value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release(unsigned long long* at, unsigned long long value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "l"(value) : "memory");
}
__device__ __forceinline__ unsigned int add_acq_rel(unsigned int* at, unsigned int value) {
    unsigned int before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(at)), "r"(value)
                 : "memory");
    return before;
}
__device__ __forceinline__ unsigned int load_relaxed(const unsigned int* at) {
    unsigned int value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(at)) : "memory");
    return value;
}
__device__ __forceinline__ void store_relaxed(unsigned int* at, unsigned int value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned int add_relaxed(unsigned int* at, unsigned int value) {
    unsigned int before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(at)), "r"(value)
                 : "memory");
    return before;
}
__device__ __forceinline__ void pause() { __nanosleep(64); }

#endif
