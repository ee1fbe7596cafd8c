// Stacks for CUDA threads and the switch between them, and what the sanitizers want to hear about both.
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#if !defined(__x86_64__) || defined(CUDASIM_UCONTEXT)
#include <ucontext.h>
#endif

#include <vector>

extern "C" {
// AddressSanitizer and ThreadSanitizer, when loaded with LD_PRELOAD.
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* save, const void** bottom, size_t* size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* at, size_t size);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
__attribute__((weak)) void __tsan_acquire(void* at);
__attribute__((weak)) void __tsan_release(void* at);
}

namespace {

constexpr size_t STACK = 128 << 10;         // per CUDA thread, lowest page unmapped
constexpr unsigned TSAN_NO_SYNC = 1;        // __tsan_switch_to_fiber_no_sync

bool tsan() { return __tsan_create_fiber != nullptr; }
bool asan() { return __sanitizer_start_switch_fiber != nullptr && __asan_unpoison_memory_region != nullptr; }

// ---------------------------------------------------------------- switching stacks
// swapcontext makes a system call at each switch, so on x86-64 we switch ourselves; -DCUDASIM_UCONTEXT takes the
// portable way there too.

#if defined(__x86_64__) && !defined(CUDASIM_UCONTEXT)
struct Context { void* stack_pointer; };
extern "C" void cudasim_switch(Context* from, Context* to);
asm(R"(
.text
.globl cudasim_switch
.hidden cudasim_switch
.type cudasim_switch, @function
cudasim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cudasim_switch, .-cudasim_switch
)");
void prepare(Context* context, char* bottom, size_t size, void (*entry)()) {
    void** top = reinterpret_cast<void**>(bottom + size);
    top[-1] = nullptr;                          // where a caller's return address would be
    top[-2] = reinterpret_cast<void*>(entry);   // popped by ret
    for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
    context->stack_pointer = top - 8;
}
#else
struct Context { ucontext_t registers; };
void cudasim_switch(Context* from, Context* to) { swapcontext(&from->registers, &to->registers); }
void prepare(Context* context, char* bottom, size_t size, void (*entry)()) {
    getcontext(&context->registers);
    context->registers.uc_stack.ss_sp = bottom;
    context->registers.uc_stack.ss_size = size;
    context->registers.uc_link = nullptr;
    makecontext(&context->registers, entry, 0);
}
#endif

// Stacks are kept between launches: mapping them costs more than most launches.
struct Stacks { char* base; unsigned count; };
pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
std::vector<Stacks>& pool() { static auto* kept = new std::vector<Stacks>; return *kept; }

Stacks take_stacks(unsigned count) {
    pthread_mutex_lock(&pool_lock);
    for (size_t i = 0; i < pool().size(); ++i)
        if (pool()[i].count >= count) {
            Stacks found = pool()[i];
            pool().erase(pool().begin() + i);
            pthread_mutex_unlock(&pool_lock);
            return found;
        }
    pthread_mutex_unlock(&pool_lock);
    unsigned rounded = 32;
    while (rounded < count) rounded *= 2;
    void* base = mmap(nullptr, rounded * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return {nullptr, 0};
    for (unsigned i = 0; i < rounded; ++i) mprotect(static_cast<char*>(base) + i * STACK, 4096, PROT_NONE);
    return {static_cast<char*>(base), rounded};
}
void give_stacks(Stacks stacks) {
    pthread_mutex_lock(&pool_lock);
    pool().push_back(stacks);
    pthread_mutex_unlock(&pool_lock);
}

}  // namespace
