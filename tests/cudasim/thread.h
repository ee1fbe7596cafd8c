// What the kernel's side (cuda.h) and the run time (runtime.cpp) of the CUDA emulation share.
#pragma once

struct uint3 { unsigned x, y, z; };

// One CUDA thread as its kernel sees it. A fiber's identity never changes while a block runs.
struct CudasimThread {
    uint3 thread, block, block_shape, grid_shape;
    unsigned lane;
};

// The values that the lanes of a warp brought to one collective, and which lanes came.
struct CudasimSlots {
    unsigned long long value[32];
    unsigned present;
};

enum CudasimBarrier { CUDASIM_SYNC, CUDASIM_SYNC_OR, CUDASIM_SYNC_AND, CUDASIM_SYNC_COUNT };

enum CudasimCollective {
    CUDASIM_SYNCWARP, CUDASIM_SHFL, CUDASIM_SHFL_UP, CUDASIM_SHFL_DOWN, CUDASIM_SHFL_XOR, CUDASIM_BALLOT, CUDASIM_ANY,
    CUDASIM_ALL, CUDASIM_REDUCE, CUDASIM_MATCH,
};

extern "C" {
CudasimThread* cudasim_self() __attribute__((const));
unsigned cudasim_barrier(int kind, unsigned predicate, const char* file, int line);
const CudasimSlots* cudasim_meet(int kind, unsigned mask, unsigned long long value, const char* file, int line);
void cudasim_sleep(const char* file, int line);   // the thread waits for memory to change: run others
void cudasim_memory_event(int changed);           // an atomic, acquire or release happened; others may run now
void* cudasim_dynamic_shared();
[[noreturn]] void cudasim_defect(const char* file, int line, const char* format, ...) __attribute__((format(printf, 3, 4)));
}

struct CudasimParameter { char kind; unsigned size; char pointee; unsigned pointee_size; };

struct CudasimKernel {
    const char* name;
    void (*call)(void** arguments);
    const CudasimParameter* parameters;
    int parameter_count;
    unsigned max_threads;   // __launch_bounds__
};
