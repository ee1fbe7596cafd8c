// Run CUDA threads on a CPU: one fiber per thread, one OS thread per resident block, three orders of execution.
//
// A block's fibers are swept in order; each runs until it waits for others (barrier, warp collective) or for memory
// (__nanosleep). Blocks run on OS threads and so are preemptive among themselves: one that waits for another truly waits.
// This file is never compiled with a sanitizer; where one is loaded, it is told about fibers and barriers.
#include "fiber.h"
#include "thread.h"

#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <string>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#define FLUSH_DENORMALS() _mm_setcsr(_mm_getcsr() | 0x8040u)  // flush to zero and denormals are zero
#else
#define FLUSH_DENORMALS() ((void)0)
#endif

namespace {

constexpr unsigned IDLE_SWEEPS = 5000;      // all resident blocks only waiting, this many times round: a livelock
constexpr unsigned MASKS = 40;              // different masks a warp may use in one block
constexpr unsigned EVENTS_PER_TURN = 64;    // atomics before other threads of the block get a turn

// ---------------------------------------------------------------- a block and its threads

struct Block;

enum State { READY, WAITING, DONE };

struct Meeting {   // one (warp, mask): lanes come together, generation counts how often they did
    unsigned mask = 0, arrived = 0;
    int kind = 0, line = 0;
    const char* file = "";
    unsigned long long generation = 0;
    CudasimSlots slots[2];
};

struct Warp {
    unsigned live = 0, masks = 0;
    Meeting* meetings = nullptr;   // MASKS of them, allocated before the fibers: to ThreadSanitizer malloc is a write
};

struct Fiber {
    CudasimThread identity;   // first: cudasim_self() returns a pointer to it
    Block* block;
    Context context;
    State state;
    bool slept;
    unsigned events;
    const unsigned long long* awaited;
    unsigned long long generation;
    const char* waits_in;
    const char* file;
    int line;
    void* tsan_fiber;
    void* asan_stack;
    char* stack;
};

struct Launch {
    const CudasimKernel* kernel;
    void** arguments;
    uint3 grid, block;
    unsigned threads, workers;
    int order;   // 0 forward, 1 backward, 2 random
    int flush;   // whether denormals become 0
    unsigned long long seed;
    size_t dynamic_shared;
    void (*touch)();
    char* plain_shared;   // under AddressSanitizer __shared__ is static: where it lies
    size_t plain_shared_size;
    int poison;           // the byte that shared memory holds before a block writes it
    unsigned long long blocks;
    std::atomic<unsigned long long> next{0}, finished{0};
    std::atomic<unsigned> running{0};
    std::atomic<unsigned> ready{0};   // workers that have a block to run
    std::atomic<int> stop{0};
    std::atomic<unsigned long long> events{0};        // anything that could end another block's wait
    std::atomic<unsigned> idle[64];                   // sweeps in which a worker's block only waited
    std::atomic<unsigned long long> sweeps[64];
    std::vector<Stacks> stacks;
    char defect[4096] = "";
};

struct Worker { Launch* launch; unsigned index; };

struct Block {
    Launch* launch;
    Worker* worker;
    uint3 index;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    unsigned live;
    Context scheduler;
    void* tsan_scheduler;
    void* asan_stack;
    const void* scheduler_bottom;
    size_t scheduler_size;
    char* dynamic_shared;
    // the block-wide barrier
    unsigned arrived = 0, acc_count = 0;
    int kind = 0, line = 0;
    const char* file = "";
    unsigned long long generation = 0;
    unsigned results[2];
    char barrier_sync[2];   // what ThreadSanitizer hangs happens-before on, by phase
};

thread_local Fiber* current = nullptr;

unsigned long long mix(unsigned long long& state) {   // splitmix64 (Steele, Lea and Flood 2014)
    unsigned long long z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

const char* BARRIERS[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count"};
const char* COLLECTIVES[] = {"__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
                             "__ballot_sync", "__any_sync", "__all_sync", "__reduce_sync", "__match_any_sync"};

std::string name(const Fiber& fiber) {
    char text[160];
    const auto& t = fiber.identity;
    snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)", t.thread.x, t.thread.y, t.thread.z, t.block.x,
             t.block.y, t.block.z);
    return text;
}

std::string place(const char* file, int line) { return std::string(file) + ":" + std::to_string(line); }

void report(Launch* launch, const std::string& text) {
    int expected = 0;
    if (launch->stop.compare_exchange_strong(expected, 1)) snprintf(launch->defect, sizeof launch->defect, "%s", text.c_str());
}

void to_scheduler(Fiber* fiber) {
    Block* block = fiber->block;
    if (asan()) __sanitizer_start_switch_fiber(&fiber->asan_stack, block->scheduler_bottom, block->scheduler_size);
    if (tsan()) __tsan_switch_to_fiber(block->tsan_scheduler, TSAN_NO_SYNC);
    cudasim_switch(&fiber->context, &block->scheduler);
    if (asan()) __sanitizer_finish_switch_fiber(fiber->asan_stack, nullptr, nullptr);
}

void to_fiber(Block* block, Fiber* fiber) {
    current = fiber;
    if (asan()) __sanitizer_start_switch_fiber(&block->asan_stack, fiber->stack, STACK - 4096);
    if (tsan()) __tsan_switch_to_fiber(fiber->tsan_fiber, TSAN_NO_SYNC);
    cudasim_switch(&block->scheduler, &fiber->context);
    if (asan()) __sanitizer_finish_switch_fiber(block->asan_stack, nullptr, nullptr);
}

[[noreturn]] void abandon(Fiber* fiber) {   // the block is given up; its fibers are never entered again
    for (;;) to_scheduler(fiber);
}

void wait(Fiber* fiber, const unsigned long long* generation, const char* in, const char* file, int line) {
    fiber->state = WAITING;
    fiber->awaited = generation;
    fiber->generation = *generation;
    fiber->waits_in = in;
    fiber->file = file;
    fiber->line = line;
    to_scheduler(fiber);
    fiber->state = READY;
}

void complete(Meeting& meeting) {
    meeting.slots[meeting.generation & 1].present = meeting.arrived;
    meeting.arrived = 0;
    meeting.generation++;
}

const Fiber* any_in(const Block* block, State state) {
    for (const Fiber& fiber : block->fibers)
        if (fiber.state == state) return &fiber;
    return nullptr;
}

void leave(Fiber* fiber) {   // the kernel returned in this thread
    Block* block = fiber->block;
    fiber->state = DONE;
    block->live--;
    if (block->arrived) {
        const Fiber* other = any_in(block, WAITING);
        for (const Fiber& candidate : block->fibers)
            if (candidate.state == WAITING && candidate.awaited == &block->generation) other = &candidate;
        report(block->launch, name(*fiber) + " has returned while " + name(*other) + " waits in " + BARRIERS[block->kind] + ", " +
                                  place(block->file, block->line) + ": every thread of the block must reach a barrier");
    }
    unsigned index = static_cast<unsigned>(fiber - block->fibers.data());
    Warp& warp = block->warps[index / 32];
    warp.live &= ~(1u << fiber->identity.lane);
    for (Meeting* meeting = warp.meetings; meeting < warp.meetings + warp.masks; ++meeting)
        if (meeting->arrived && (meeting->mask & warp.live & ~meeting->arrived) == 0) complete(*meeting);
}

void enter() {
    Fiber* fiber = current;
    if (asan())
        __sanitizer_finish_switch_fiber(nullptr, &fiber->block->scheduler_bottom, &fiber->block->scheduler_size);
    fiber->block->launch->kernel->call(fiber->block->launch->arguments);
    if (tsan()) __tsan_release(fiber->block);
    leave(fiber);
    abandon(fiber);
}

std::string waiting_list(const Block& block) {
    struct Group { std::string where; unsigned count; const Fiber* first; };
    std::vector<Group> groups;
    unsigned returned = 0;
    for (const Fiber& fiber : block.fibers) {
        if (fiber.state == DONE) { returned++; continue; }
        std::string where = std::string(fiber.waits_in) + ", " + place(fiber.file, fiber.line);
        bool found = false;
        for (Group& group : groups)
            if (group.where == where) { group.count++; found = true; }
        if (!found) groups.push_back({where, 1, &fiber});
    }
    std::string text;
    for (const Group& group : groups)
        text += (text.empty() ? "" : "; ") + std::to_string(group.count) + " in " + group.where + " (first " + name(*group.first) + ")";
    if (returned) text += "; " + std::to_string(returned) + " have returned";
    return text;
}

// True when no resident block can be helped by another: all have only waited for long, and all still turn round.
bool livelocked(Block& block, unsigned long long& seen_events, std::vector<unsigned long long>& snapshot) {
    Launch* launch = block.launch;
    unsigned me = block.worker->index;
    unsigned long long events = launch->events.load();
    if (events != seen_events) {
        seen_events = events;
        launch->idle[me] = 0;
        snapshot.clear();
        return false;
    }
    unsigned idle = ++launch->idle[me];
    if (idle < IDLE_SWEEPS) return false;
    if (snapshot.empty()) {
        for (unsigned w = 0; w < launch->workers; ++w) snapshot.push_back(launch->sweeps[w].load());
        return false;
    }
    if (launch->next.load() < launch->blocks && launch->running.load() < launch->workers) return false;
    for (unsigned w = 0; w < launch->workers; ++w) {
        if (launch->sweeps[w].load() == ~0ull) continue;   // that worker has no block left to run
        if (launch->idle[w].load() < IDLE_SWEEPS || launch->sweeps[w].load() < snapshot[w] + 4) return false;
    }
    return launch->events.load() == seen_events;
}

void run(Block& block) {
    Launch* launch = block.launch;
    unsigned count = launch->threads, me = block.worker->index;
    std::vector<unsigned> order(count);
    for (unsigned i = 0; i < count; ++i) order[i] = launch->order == 1 ? count - 1 - i : i;
    unsigned long long random = launch->seed * 0x9E3779B97F4A7C15ull + block.index.x + 1000003ull * block.index.y +
                                1000000007ull * block.index.z;
    unsigned long long seen_events = ~0ull;
    std::vector<unsigned long long> snapshot;
    while (block.live) {
        if (launch->order == 2)
            for (unsigned i = count - 1; i > 0; --i) std::swap(order[i], order[mix(random) % (i + 1)]);
        unsigned ran = 0, advanced = 0;
        for (unsigned i : order) {
            Fiber& fiber = block.fibers[i];
            if (fiber.state == DONE || (fiber.state == WAITING && *fiber.awaited == fiber.generation)) continue;
            fiber.slept = false;
            to_fiber(&block, &fiber);
            ran++;
            advanced += !fiber.slept;
            if (launch->stop.load(std::memory_order_relaxed)) return;
        }
        launch->sweeps[me].fetch_add(1, std::memory_order_relaxed);
        if (!ran && block.live) {
            report(launch, "deadlock: no thread of the block can go on: " + waiting_list(block));
            return;
        }
        if (advanced) {
            launch->idle[me].store(0, std::memory_order_relaxed);
            snapshot.clear();
            continue;
        }
        if (block.live) {
            if (livelocked(block, seen_events, snapshot)) {
                report(launch, "livelock: every resident block only waits for memory that nobody changes: " + waiting_list(block));
                return;
            }
            sched_yield();
        }
    }
}

struct Segment { void* address; void* found; size_t size; };

int find_segment(dl_phdr_info* info, size_t, void* data) {
    auto* segment = static_cast<Segment*>(data);
    bool here = false;
    size_t size = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        auto start = info->dlpi_addr + header.p_vaddr, at = reinterpret_cast<ElfW(Addr)>(segment->address);
        if (header.p_type == PT_LOAD && start <= at && at < start + header.p_memsz) here = true;
        if (header.p_type == PT_TLS) size = header.p_memsz;
    }
    if (!here) return 0;
    segment->found = size ? info->dlpi_tls_data : nullptr;
    segment->size = segment->found ? size : 0;
    return 1;
}

__attribute__((optimize("no-tree-loop-distribute-patterns"))) void fill(char* at, int byte, size_t size) {
    // A loop of our own, not memset: that one is watched by AddressSanitizer, and red zones lie in between.
    for (size_t i = 0; i < size; ++i) *const_cast<volatile char*>(at + i) = static_cast<char>(byte);
}

void* work(void* data) {
    auto* worker = static_cast<Worker*>(data);
    Launch* launch = worker->launch;
    if (launch->flush) FLUSH_DENORMALS();
    launch->touch();
    Segment shared{reinterpret_cast<void*>(launch->touch), nullptr, 0};
    dl_iterate_phdr(find_segment, &shared);
    Block block;
    block.launch = launch;
    block.worker = worker;
    unsigned count = launch->threads;
    block.fibers.resize(count);
    block.warps.resize((count + 31) / 32);
    std::vector<Meeting> meetings(block.warps.size() * MASKS);
    for (size_t i = 0; i < block.warps.size(); ++i) block.warps[i].meetings = &meetings[i * MASKS];
    block.tsan_scheduler = tsan() ? __tsan_get_current_fiber() : nullptr;
    Stacks stacks = launch->stacks[worker->index];
    bool first = true;
    for (;;) {
        unsigned long long number = launch->next.fetch_add(1);
        if (number >= launch->blocks || launch->stop.load()) break;
        launch->running++;
        if (launch->order == 1) number = launch->blocks - 1 - number;
        else if (launch->order == 2) {   // an affine permutation of the blocks: the multiplier shares no factor with them
            unsigned long long state = launch->seed, n = launch->blocks, factor = 1;
            for (int tries = 0; tries < 64; ++tries) {
                unsigned long long a = mix(state) % n, b = n;
                factor = a;
                while (a) { unsigned long long r = b % a; b = a; a = r; }
                if (b == 1) break;
                factor = 1;
            }
            number = static_cast<unsigned long long>((static_cast<unsigned __int128>(number) * factor + mix(state)) % n);
        }
        block.index = {static_cast<unsigned>(number % launch->grid.x),
                       static_cast<unsigned>(number / launch->grid.x % launch->grid.y),
                       static_cast<unsigned>(number / launch->grid.x / launch->grid.y)};
        if (shared.size) memset(shared.found, launch->poison, shared.size);
        if (launch->plain_shared_size) fill(launch->plain_shared, launch->poison, launch->plain_shared_size);
        block.dynamic_shared = nullptr;
        if (launch->dynamic_shared) {
            void* memory = nullptr;
            if (posix_memalign(&memory, 128, launch->dynamic_shared)) abort();
            block.dynamic_shared = static_cast<char*>(memory);
            memset(memory, launch->poison, launch->dynamic_shared);
        }
        block.live = count;
        block.arrived = block.acc_count = 0;
        for (Warp& warp : block.warps) {
            warp.live = 0;
            warp.masks = 0;
        }
        for (unsigned i = 0; i < count; ++i) {
            Fiber& fiber = block.fibers[i];
            fiber.identity.thread = {i % launch->block.x, i / launch->block.x % launch->block.y,
                                     i / launch->block.x / launch->block.y};
            fiber.identity.block = block.index;
            fiber.identity.block_shape = launch->block;
            fiber.identity.grid_shape = launch->grid;
            fiber.identity.lane = i % 32;
            block.warps[i / 32].live |= 1u << (i % 32);
            fiber.block = &block;
            fiber.state = READY;
            fiber.events = 0;
            fiber.waits_in = "its start";
            fiber.file = launch->kernel->name;
            fiber.line = 0;
            fiber.asan_stack = nullptr;
            fiber.stack = stacks.base + i * STACK + 4096;
            if (asan()) __asan_unpoison_memory_region(fiber.stack, STACK - 4096);
            fiber.tsan_fiber = tsan() ? __tsan_create_fiber(0) : nullptr;
            prepare(&fiber.context, fiber.stack, STACK - 4096, enter);
        }
        if (tsan() && first) {
            // Blocks that run one after the other cannot race in its eyes: let all workers begin theirs together.
            first = false;
            launch->ready++;
            while (launch->ready.load() < launch->workers) sched_yield();
        }
        run(block);
        if (tsan()) {
            __tsan_acquire(&block);
            for (Fiber& fiber : block.fibers) __tsan_destroy_fiber(fiber.tsan_fiber);
        }
        free(block.dynamic_shared);
        launch->finished++;
        launch->running--;
        launch->events++;
        if (launch->stop.load()) break;
    }
    launch->sweeps[worker->index] = ~0ull;
    return nullptr;
}

}  // namespace

// ---------------------------------------------------------------- what kernels call

extern "C" CudasimThread* cudasim_self() { return &current->identity; }

extern "C" void* cudasim_dynamic_shared() { return current->block->dynamic_shared; }

extern "C" void cudasim_defect(const char* file, int line, const char* format, ...) {
    Fiber* fiber = current;
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    report(fiber->block->launch, name(*fiber) + ", " + place(file, line) + ": " + text);
    abandon(fiber);
}

extern "C" unsigned cudasim_barrier(int kind, unsigned predicate, const char* file, int line) {
    Fiber* fiber = current;
    Block* block = fiber->block;
    if (block->live < block->launch->threads) {
        const Fiber* gone = any_in(block, DONE);
        cudasim_defect(file, line, "waits in %s, but %s has returned: every thread of the block must reach a barrier",
                       BARRIERS[kind], name(*gone).c_str());
    }
    if (!block->arrived) {
        block->kind = kind;
        block->file = file;
        block->line = line;
        block->acc_count = 0;
    } else if (block->kind != kind || block->line != line || strcmp(block->file, file)) {
        cudasim_defect(file, line, "divergent barrier: waits in %s while others of its block wait in %s, %s:%d", BARRIERS[kind],
                       BARRIERS[block->kind], block->file, block->line);
    }
    unsigned phase = block->generation & 1;
    block->acc_count += predicate != 0;
    block->arrived++;
    if (tsan()) __tsan_release(&block->barrier_sync[phase]);
    if (block->arrived == block->launch->threads) {
        unsigned count = block->acc_count;
        block->results[phase] = kind == CUDASIM_SYNC_OR    ? count != 0
                                : kind == CUDASIM_SYNC_AND ? count == block->arrived
                                                           : count;
        block->arrived = 0;
        block->generation++;
    } else {
        wait(fiber, &block->generation, BARRIERS[kind], file, line);
    }
    if (tsan()) __tsan_acquire(&block->barrier_sync[phase]);
    return block->results[phase];
}

extern "C" const CudasimSlots* cudasim_meet(int kind, unsigned mask, unsigned long long value, const char* file, int line) {
    Fiber* fiber = current;
    Block* block = fiber->block;
    unsigned bit = 1u << fiber->identity.lane;
    Warp& warp = block->warps[static_cast<unsigned>(fiber - block->fibers.data()) / 32];
    if (!(mask & bit))
        cudasim_defect(file, line, "lane %u calls %s with mask 0x%08x, which does not name it", fiber->identity.lane,
                       COLLECTIVES[kind], mask);
    Meeting *meeting = warp.meetings, *end = warp.meetings + warp.masks;
    while (meeting < end && meeting->mask != mask) ++meeting;
    if (meeting == end) {
        if (warp.masks == MASKS) cudasim_defect(file, line, "a warp may use %u different masks here", MASKS);
        warp.masks++;
        meeting->mask = mask;
        meeting->arrived = 0;
        meeting->generation = 0;
    }
    if (!meeting->arrived) {
        meeting->kind = kind;
        meeting->file = file;
        meeting->line = line;
    } else if (meeting->kind != kind || (kind != CUDASIM_SYNCWARP && (meeting->line != line || strcmp(meeting->file, file)))) {
        cudasim_defect(file, line, "divergent warp: lane %u is in %s while others of its mask 0x%08x are in %s, %s:%d",
                       fiber->identity.lane, COLLECTIVES[kind], mask, COLLECTIVES[meeting->kind], meeting->file, meeting->line);
    }
    CudasimSlots* slots = &meeting->slots[meeting->generation & 1];
    slots->value[fiber->identity.lane] = value;
    meeting->arrived |= bit;
    // Of the collectives only __syncwarp orders memory (CUDA C++ Programming Guide, warp shuffle and vote functions).
    bool ordered = tsan() && kind == CUDASIM_SYNCWARP;
    if (ordered) __tsan_release(slots);
    if ((mask & warp.live & ~meeting->arrived) == 0)
        complete(*meeting);
    else
        wait(fiber, &meeting->generation, COLLECTIVES[kind], file, line);
    if (ordered) __tsan_acquire(slots);
    return slots;
}

extern "C" void cudasim_sleep(const char* file, int line) {
    Fiber* fiber = current;
    fiber->slept = true;
    fiber->events = 0;   // of a turn: a loop that sleeps is named by its sleep, not by a few loads
    fiber->waits_in = "__nanosleep";
    fiber->file = file;
    fiber->line = line;
    to_scheduler(fiber);
}

extern "C" void cudasim_memory_event(int changed) {
    Fiber* fiber = current;
    if (changed) fiber->block->launch->events.fetch_add(1, std::memory_order_relaxed);
    if (++fiber->events % EVENTS_PER_TURN == 0) {
        fiber->slept = !changed;
        fiber->waits_in = "a loop of atomics or loads";
        to_scheduler(fiber);
    }
}

// ---------------------------------------------------------------- what the host calls

// Returns 0, or 1 with `message` filled (a defect), or 2 (still running after `limit` seconds; its memory must stay).
extern "C" int cudasim_launch(int flush, int poison, const CudasimKernel* kernel, void (*touch)(), void** arguments,
                              const unsigned* grid, const unsigned* block, size_t dynamic_shared, int order, unsigned long long seed,
                              unsigned workers, char* plain_shared, size_t plain_shared_size, double limit, char* message,
                              size_t message_size) {
    auto* launch = new Launch;
    launch->kernel = kernel;
    launch->arguments = arguments;
    launch->touch = touch;
    launch->grid = {grid[0], grid[1], grid[2]};
    launch->block = {block[0], block[1], block[2]};
    launch->threads = block[0] * block[1] * block[2];
    launch->blocks = 1ull * grid[0] * grid[1] * grid[2];
    launch->order = order;
    launch->seed = seed;
    launch->dynamic_shared = dynamic_shared;
    launch->plain_shared = plain_shared;
    launch->plain_shared_size = plain_shared_size;
    launch->poison = poison;
    launch->workers = workers < launch->blocks ? workers : static_cast<unsigned>(launch->blocks);
    if (launch->workers > 64) launch->workers = 64;
    auto* team = new Worker[launch->workers];
    auto* threads = new pthread_t[launch->workers];
    for (unsigned w = 0; w < launch->workers; ++w) {
        launch->idle[w] = 0;
        launch->sweeps[w] = 0;
        launch->stacks.push_back(take_stacks(launch->threads));
        if (!launch->stacks.back().base) {
            snprintf(message, message_size, "no memory for the stacks of %u threads", launch->threads);
            return 1;
        }
    }
    launch->flush = flush;
    for (unsigned w = 0; w < launch->workers; ++w) {
        team[w] = {launch, w};
        if (pthread_create(&threads[w], nullptr, work, &team[w])) abort();
    }
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += static_cast<time_t>(limit);
    for (unsigned w = 0; w < launch->workers; ++w) {
        if (tsan()) pthread_join(threads[w], nullptr);
        else if (pthread_timedjoin_np(threads[w], nullptr, &until)) {
            snprintf(message, message_size,
                     "%s still runs after %.0f s: a loop that waits without __nanosleep, or too much work for an emulation",
                     kernel->name, limit);
            return 2;
        }
    }
    for (Stacks& stacks : launch->stacks) give_stacks(stacks);
    int stopped = launch->stop.load();
    if (stopped) snprintf(message, message_size, "%s: %s", kernel->name, launch->defect);
    delete[] threads;
    delete[] team;
    delete launch;
    return stopped ? 1 : 0;
}
