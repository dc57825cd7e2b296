// Runs emitted CUDA text on a CPU: a fiber per thread of a cluster of blocks, checked memory, and several orders of
// threads. The copies that a cluster's blocks have of a shared array are one; who may read an element is checked.
//
// Every element of global and shared memory has a cell that says who wrote and read it last and at which barrier. From
// it follow accesses out of bounds, reads of what nothing wrote, and races: two accesses, one of them a write, with no
// barrier between them. A fault ends the process with one line: kernel, block, thread and reason, parted by tabs.
//
// Asynchronous copies are made at once in the forward order, and as late as they may in the others: a thread's own when
// it waits for them, a bulk copy when no thread can go on without. Who reads a place before its copy is waited for, or
// copies where others may still read, is at fault in every order.
#pragma once
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
#if !defined(__x86_64__) && !defined(HOST_UCONTEXT)
#define HOST_UCONTEXT  // elsewhere the C library switches stacks, which is slower
#endif
#ifdef HOST_UCONTEXT
#include <ucontext.h>
#endif

namespace host {

enum { kMaxBarriers = 512, kMaxCluster = 16, kMaxThreads = kMaxCluster * 1024, kWarp = 32, kMaxParameters = 512, kStackBytes = 64 * 1024, kFault = 3 };
enum Order { kForward, kReverse, kRandom };

struct Kernel {
  const char* name;
  int threads, block_threads, blocks;  // of a cluster, of a block, and clusters
  void (*body)(void* arguments);
};

// Who accessed an element; -1 stands for several threads, warps, blocks of a cluster, or clusters. A later access is
// ordered after it if a barrier of both, or the end of the launch, lies between.
struct Stamp {  // there are two for every element
  int block, epoch;
  uint16_t launch, warp_epoch, cluster_epoch;
  int16_t thread, warp;
  int8_t rank;
  bool atomic, for_all;
};
struct Cell {
  Stamp write, read;  // launch 0: never
  uint16_t coming, full, fill, uses;  // a copy on its way; of bulk copies the mbarrier (from 1), its phase, and releases
};
struct Region {
  const char* name;
  char* base;
  long long count;
  int bytes;
  bool filled, shared;
  Cell* cells;
  Region* next;
  Region *root, *owner;  // of memory with several names: the first of them, and which of them it serves as now
  Stamp last;
};
struct Barrier {  // an mbarrier: arrivals and bytes that its phase waits for, and how many phases are over
  int expected, missing, bytes, over;
  uint16_t id;
  Barrier* pair;  // of the copies of a slot: that of its releases
};
struct Flight {  // a copy on its way
  Region *to_region, *from_region;
  char *to, *from;  // from 0: zeros
  int bytes, group;
  Barrier* full;
};
struct Flights {
  Flight* items;
  int begin, end, room;
};

struct Fiber {
  void* stack_pointer;
  bool done, arrived;
  uint16_t warp_epoch, cluster_epoch;
  int epoch, line;
  const char* waits;
};
struct Meeting {  // a barrier or a collective: the threads that have arrived, and where
  int arrived, generation, line;
  const char* what;
};
struct Warp {
  Meeting meeting;
  uint64_t in[kWarp], out[kWarp];
};

static Kernel kernel;
static int block_index, current, alive, progress, order_kind;
static uint16_t launch_index;
static uint64_t random_state;
static Fiber fibers[kMaxThreads];
static Warp warps[kMaxThreads / kWarp];
static Meeting block_meetings[kMaxCluster], cluster_meeting;
static Region* shared_regions;
static Barrier* all_barriers[kMaxBarriers];
static int barriers_made;
static uint16_t seen[kMaxThreads][kMaxBarriers], arrivals[kMaxThreads][kMaxBarriers];
static Flights own_flights[kMaxThreads], bulk_flights;
static int groups[kMaxThreads];  // that a thread has committed
static char* stacks;
static void* scheduler;
static void* arguments;

[[noreturn]] static void fault(const char* format, ...) {
  char reason[400];
  va_list list;
  va_start(list, format);
  vsnprintf(reason, sizeof reason, format, list);
  va_end(list);
  printf("%s\t%d\t%d\t%s\n", kernel.name, block_index, current, reason);
  fflush(stdout);
  _exit(kFault);
}

// ---- fibers

#ifndef HOST_UCONTEXT
extern "C" void host_switch(void** save, void* to);
asm(R"(
.text
host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static void* prepared(char* stack, void (*entry)()) {
  void** top = (void**)(stack + kStackBytes);
  *--top = 0;
  *--top = (void*)entry;
  for (int k = 0; k < 6; ++k) *--top = 0;
  return top;
}
#else
static void host_switch(void** save, void* to) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, (ucontext_t*)to);
}
static ucontext_t contexts[kMaxThreads];
static void* prepared(char* stack, void (*entry)()) {
  ucontext_t* c = &contexts[(stack - stacks) / kStackBytes];
  getcontext(c);
  c->uc_stack.ss_sp = stack;
  c->uc_stack.ss_size = kStackBytes;
  c->uc_link = 0;
  makecontext(c, entry, 0);
  return c;
}
#endif

static void leave() { host_switch(&fibers[current].stack_pointer, scheduler); }
static void run_thread() {
  kernel.body(arguments);
  fibers[current].done = true;
  --alive;
  ++progress;
  leave();
}

static uint64_t random_bits() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

// ---- barriers and collectives

static void meet(Meeting& m, int members, const char* what, int line, void (*all_here)(void*), void* with) {
  if (m.arrived && (m.line != line || m.what != what))
    fault("divergent: arrives at the %s of line %d while others wait at the %s of line %d", what, line, m.what, m.line);
  m.line = line, m.what = what;
  ++progress;
  const int generation = m.generation;
  if (++m.arrived == members) {
    if (all_here) all_here(with);
    m.arrived = 0;
    ++m.generation;
    return;
  }
  fibers[current].waits = what, fibers[current].line = line;
  while (m.generation == generation) leave();
  fibers[current].waits = 0;
}
static int lanes(int warp) { return kernel.threads - warp * kWarp < kWarp ? kernel.threads - warp * kWarp : kWarp; }

static int rank() { return current / kernel.block_threads; }
static void barrier(int line) {
  meet(block_meetings[rank()], kernel.block_threads, "barrier", line, 0, 0);
  ++fibers[current].epoch;
}
static void cluster_arrive(int line) {  // a thread that arrives again without a wait is undefined: PTX, barrier.cluster
  if (fibers[current].arrived) fault("line %d arrives at the barrier of the cluster and has not waited for it", line);
  fibers[current].arrived = true;
}
static void cluster_barrier(int line) {
  cluster_arrive(line);
  fibers[current].arrived = false;
  meet(cluster_meeting, kernel.threads, "cluster barrier", line, 0, 0);
  ++fibers[current].cluster_epoch;
}
static void cluster_gather(int line) {
  cluster_arrive(line);
  fibers[current].arrived = false;
  meet(cluster_meeting, kernel.threads, "gathering of the cluster", line, 0, 0);
  if (!rank()) ++fibers[current].cluster_epoch;
}
static void cluster_begun(int line) {
  if (!fibers[current].arrived) fault("line %d waits for the cluster and has not arrived at its barrier", line);
  fibers[current].arrived = false;
  meet(cluster_meeting, kernel.threads, "wait for the cluster", line, 0, 0);
}
static void warp_barrier(int line) {
  const int warp = current / kWarp;
  meet(warps[warp].meeting, lanes(warp), "warp barrier", line, 0, 0);
  ++fibers[current].warp_epoch;
}
template <class T>
static T shuffle_xor(int line, T value, int mask) {
  const int index = current / kWarp, lane = current % kWarp;
  Warp& warp = warps[index];
  if ((lane ^ mask) >= lanes(index)) fault("shuffle of line %d reads lane %d, which the warp lacks", line, lane ^ mask);
  memcpy(&warp.in[lane], &value, sizeof value);
  const auto exchange = [](void* w) { memcpy(((Warp*)w)->out, ((Warp*)w)->in, sizeof ((Warp*)w)->in); };
  meet(warp.meeting, lanes(index), "shuffle", line, exchange, &warp);
  memcpy(&value, &warp.out[lane ^ mask], sizeof value);
  return value;
}

// ---- checked memory

static Stamp now() {
  const Fiber& f = fibers[current];
  return {block_index,     f.epoch,          launch_index,  f.warp_epoch, f.cluster_epoch, (int16_t)current,
          (int16_t)(current / kWarp), (int8_t)rank(), false, false};
}
static bool ordered(const Stamp& s) {
  if (s.launch != launch_index) return true;
  if (s.block != block_index) return false;
  const Fiber& f = fibers[current];
  return s.thread == current || (s.rank == rank() && s.epoch < f.epoch) || s.cluster_epoch < f.cluster_epoch ||
         (s.warp == current / kWarp && s.warp_epoch < f.warp_epoch);
}
static Stamp both(const Stamp& before, Stamp after) {
  if (before.block != after.block) after.block = -1;
  if (before.rank != after.rank) after.rank = -1;
  if (before.warp != after.warp) after.warp = -1;
  if (before.thread != after.thread) after.thread = -1;
  return after;
}

static long long place(Region* r, const void* p) {
  const long long offset = (const char*)p - r->base;
  return (offset < 0 ? offset - r->bytes + 1 : offset) / r->bytes;
}
static Cell& cell(Region* r, const void* p, const char* what) {
  const long long k = place(r, p);
  if (k < 0 || k >= r->count) fault("%s element %lld of %s, which has %lld", what, k, r->name, r->count);
  return r->cells[k];
}
[[noreturn]] static void race(const char* what, Region* r, const void* p, const char* did, const Stamp& s) {
  char who[64] = "threads of several blocks";
  const char* const format = s.thread < 0 ? "threads of block %d" : "block %d thread %d";
  if (s.block >= 0) snprintf(who, sizeof who, format, s.block, s.thread);
  fault("race: %s element %lld of %s, which %s %s with no barrier between", what, place(r, p), r->name, who, did);
}
static void empty(Region* r) {
  memset(r->base, 0xff, r->count * r->bytes);
  memset(r->cells, 0, r->count * sizeof(Cell));
}
// Memory with several names serves as one of them at a time: what it held under another is gone.
static void take(Region* r) {
  Region* const root = r->root;
  if (root->owner != r) {
    if (root->owner && root->last.launch && !ordered(root->last))
      fault("race: uses %s, whose memory served as %s with no barrier between", r->name, root->owner->name);
    if (root->owner) empty(r);
    root->owner = r, root->last = Stamp{};
  }
  root->last = !root->last.launch || ordered(root->last) ? now() : both(root->last, now());
}
static void check_arrived(Region* r, const void* p, Cell& c) {
  if (c.coming || (c.full && seen[current][c.full - 1] < c.fill))
    fault("element %lld of %s is touched before the copy into it is waited for", place(r, p), r->name);
}
static void check_read(Region* r, const void* p, bool atomic) {
  Cell& c = cell(r, p, "reads");
  if (r->root) take(r);
  check_arrived(r, p, c);
  if (c.full) {
    const uint16_t use = arrivals[current][all_barriers[c.full - 1]->pair->id] + 1;
    if (c.uses < use) c.uses = use;
    return;
  }
  if (!c.write.launch && !r->filled) fault("reads element %lld of %s, which nothing has written", place(r, p), r->name);
  if (r->shared && c.write.rank != rank() && !c.write.for_all)
    fault("reads element %lld of %s, which only block %d of the cluster has", place(r, p), r->name, c.write.rank);
  if (!(atomic && c.write.atomic) && !ordered(c.write)) race("reads", r, p, "wrote", c.write);
  if (!atomic) c.read = ordered(c.read) ? now() : both(c.read, now());
}
// Threads may write the same value side by side.
static void check_write(Region* r, const void* p, const void* value, bool atomic) {
  Cell& c = cell(r, p, "writes");
  if (r->root) take(r);
  check_arrived(r, p, c);
  const bool free = (atomic && c.write.atomic) || ordered(c.write) || !memcmp(p, value, r->bytes);
  if (!free) race("writes", r, p, "wrote", c.write);
  if (!ordered(c.read)) race("writes", r, p, "read", c.read);
  c.write = now(), c.write.atomic = atomic;
}

template <class T>
struct Ref {
  T* p;
  Region* r;
  operator T() const {
    check_read(r, p, false);
    return *p;
  }
  void operator=(T value) const {
    check_write(r, p, &value, false);
    *p = value;
  }
};
template <class T>
struct View {
  T* p;
  Region* r;
  View operator+(long long n) const { return {p + n, r}; }
  View operator-(long long n) const { return {p - n, r}; }
  Ref<T> operator[](long long n) const { return {p + n, r}; }
};
template <class T>
struct View<const T> {
  const T* p;
  Region* r;
  View operator+(long long n) const { return {p + n, r}; }
  View operator-(long long n) const { return {p - n, r}; }
  T operator[](long long n) const {
    check_read(r, p + n, false);
    return p[n];
  }
};

template <class T, long long N>
struct Shared {
  alignas(16) T data[N];
  Cell cells[N];
  Region region;
  explicit Shared(const char* name, bool several = false)
      : region{name, (char*)data, N, (int)sizeof(T), false, true, cells, shared_regions} {
    if (several) region.root = &region;
    shared_regions = &region;
    empty(&region);
  }
  operator View<T>() { return {data, &region}; }
  View<T> operator+(long long n) { return {data + n, &region}; }
  Ref<T> operator[](long long n) { return {data + n, &region}; }
};
template <class T, long long N>
struct Alias : Shared<T, N> {  // the copies of its elements are its own, but used only while its root serves as it
  template <class Root>
  Alias(const char* name, Root& root) : Shared<T, N>(name) {
    if (N * sizeof(T) > root.region.count * root.region.bytes) fault("%s is larger than %s", name, root.region.name);
    this->region.root = root.region.root;
  }
};
template <class T>
static void poison(T& registers) {
  memset((void*)&registers, 0xff, sizeof registers);
}

template <class P>
static void check_alignment(P p, const char* what, int width) {
  if ((uintptr_t)p.p % (width * p.r->bytes))
    fault("misaligned: %s %d elements at element %lld of %s", what, width, place(p.r, p.p), p.r->name);
}
template <int N, class T, class P>
static void load(T* v, P p) {
  check_alignment(p, "loads", N);
  for (int k = 0; k < N; ++k) v[k] = p[k];
}
template <int N, class T>
static void store(View<T> p, const T* v) {
  check_alignment(p, "stores", N);
  for (int k = 0; k < N; ++k) p[k] = v[k];
}
template <class T, class V>
static void store_all(View<T> p, V v) {
  const T value = (T)v;
  check_write(p.r, p.p, &value, false);
  cell(p.r, p.p, "writes").write.for_all = true;
  *p.p = value;
}
template <class T, class V>
static void store_first(View<T> p, V v) {
  const T value = (T)v;
  check_write(p.r, p.p, &value, false);
  Stamp& write = cell(p.r, p.p, "writes").write;
  if (write.rank) write.rank = 0, write.epoch = INT_MAX;  // no barrier of a block orders it
  *p.p = value;
}
template <class T, class F>
static void atomically(View<T> p, F f) {
  check_read(p.r, p.p, true);
  const T value = f(*p.p);
  check_write(p.r, p.p, &value, true);
  *p.p = value;
}

// ---- asynchronous copies

static bool at_once() { return order_kind == kForward; }
static void push(Flights& f, const Flight& one) {
  if (f.begin == f.end) f.begin = f.end = 0;
  if (f.end == f.room) f.items = (Flight*)realloc(f.items, (f.room = f.room ? 2 * f.room : 64) * sizeof(Flight));
  f.items[f.end++] = one;
}
static Cell& target(const Flight& f, int at) { return cell(f.to_region, f.to + at, "copies to"); }
static void arrive(Flight f) {
  for (int at = 0; at < f.bytes; at += f.to_region->bytes) {
    static const char zeros[16] = {};
    const char* const from = f.from ? f.from + at : zeros;
    if (f.from) check_read(f.from_region, from, false);
    target(f, at).coming = 0;
    if (!f.full) check_write(f.to_region, f.to + at, from, false);
    memcpy(f.to + at, from, f.to_region->bytes);
  }
}
template <int bytes, class P, class Q>
static void begin_copy(P&& to_place, Q&& from_place, bool on) {
  const auto to = to_place + 0;
  const auto from = from_place + 0;
  if ((uintptr_t)to.p % bytes || (uintptr_t)from.p % bytes)
    fault("misaligned: copies %d bytes to element %lld of %s", bytes, place(to.r, to.p), to.r->name);
  const Flight f = {to.r, from.r, (char*)to.p, on ? (char*)from.p : 0, bytes, groups[current], 0};
  if (to.r->root) take(to.r);
  for (int at = 0; at < bytes; at += to.r->bytes) {
    Cell& c = target(f, at);
    check_arrived(to.r, f.to + at, c);
    if (!ordered(c.read)) race("copies to", to.r, f.to + at, "read", c.read);
    c.coming = !at_once();
  }
  at_once() ? arrive(f) : push(own_flights[current], f);
}
static void wait_copies(int pending) {
  Flights& mine = own_flights[current];
  while (mine.begin < mine.end && mine.items[mine.begin].group < groups[current] - pending) arrive(mine.items[mine.begin++]);
}
static void check_phase(Barrier* b) {
  if (b->missing < 0) fault("an mbarrier has more arrivals than it expects");
  if (b->missing || b->bytes) return;
  b->missing = b->expected;
  ++b->over, ++progress;
}
static void arrive_in_bulk(const Flight& f) {
  arrive(f);
  f.full->bytes -= f.bytes;
  check_phase(f.full);
}
template <class P, class Q>
static void begin_bulk_copy(P&& to_place, Q&& from_place, int bytes, Barrier* full) {
  const auto to = to_place + 0;
  const auto from = from_place + 0;
  if ((uintptr_t)to.p % 16 || (uintptr_t)from.p % 16 || bytes % 16 || bytes <= 0)
    fault("misaligned: a bulk copy of %d bytes to element %lld of %s", bytes, place(to.r, to.p), to.r->name);
  const Flight f = {to.r, from.r, (char*)to.p, (char*)from.p, bytes, 0, full};
  if (to.r->root) take(to.r);
  for (int at = 0; at < bytes; at += to.r->bytes) {
    Cell& c = target(f, at);
    if (c.coming) fault("copies to element %lld of %s, where a copy is on its way", place(to.r, f.to + at), to.r->name);
    if (c.uses > seen[current][full->pair->id])
      fault("copies to element %lld of %s, which may still be read", place(to.r, f.to + at), to.r->name);
    c.write = now(), c.coming = !at_once(), c.full = full->id + 1, c.fill = full->over + 1;
  }
  full->bytes += bytes;
  if (!at_once()) return push(bulk_flights, f);
  arrive(f);
  full->bytes -= bytes;
}
static void commit_bulk_copies(Barrier* full) { --full->missing, check_phase(full); }
static void wait_barrier(int line, Barrier* b, int phase) {
  fibers[current].waits = "mbarrier", fibers[current].line = line;
  while ((b->over & 1) == phase) leave();
  fibers[current].waits = 0;
  ++progress;
  seen[current][b->id] = b->over;
}
static void release_slot(Barrier* empty) {
  ++arrivals[current][empty->id];
  --empty->missing, check_phase(empty);
}
template <int N>
struct Barriers {
  Barrier all[N];
  explicit Barriers(const char* name) {
    if (barriers_made + N > kMaxBarriers) fault("%s: more than %d mbarriers", name, kMaxBarriers);
    for (int k = 0; k < N; ++k) {
      all[k] = Barrier{0, 0, 0, 0, (uint16_t)barriers_made, k < N / 2 ? &all[k + N / 2] : &all[k]};
      all_barriers[barriers_made++] = &all[k];
    }
  }
  Barrier* operator+(long long k) {
    if (k < 0 || k >= N) fault("mbarrier %lld of %d", k, N);
    return &all[k];
  }
};
template <int N>
static void ready_barriers(int line, Barriers<N>& b, int slots, int readers) {
  if (current % kernel.block_threads == 0)
    for (int k = 0; k < N; ++k) b.all[k].expected = b.all[k].missing = k < slots ? 1 : readers;
  barrier(line);
}
static void forget_copies(int threads) {
  for (int k = 0; k < barriers_made; ++k) {
    Barrier& b = *all_barriers[k];
    b.expected = b.missing = b.bytes = b.over = 0;
  }
  if (barriers_made) memset(seen, 0, threads * sizeof seen[0]), memset(arrivals, 0, sizeof arrivals);
  for (int k = 0; k < threads; ++k) own_flights[k].begin = own_flights[k].end = groups[k] = 0;
  for (Region* r = shared_regions; r; r = r->next) r->owner = 0, r->last = Stamp{};
}

// ---- running launches

static void run_block() {
  memset(block_meetings, 0, sizeof block_meetings);
  cluster_meeting = Meeting{};
  memset(warps, 0, sizeof warps);
  for (Region* r = shared_regions; r; r = r->next) empty(r);
  forget_copies(kernel.threads);
  const int n = alive = kernel.threads;
  static int turn[kMaxThreads];
  for (int k = 0; k < n; ++k) {
    fibers[k] = Fiber{};
    fibers[k].stack_pointer = prepared(stacks + (size_t)k * kStackBytes, run_thread);
    turn[k] = order_kind == kReverse ? n - 1 - k : k;
  }
  for (int round = 0, last_progress = -1; alive; ++round) {
    uint64_t starved = order_kind == kRandom && round % 8 == 0 && last_progress != progress ? random_bits() : 0;
    if (order_kind == kRandom)
      for (int k = n - 1; k > 0; --k) {
        const int other = (int)(random_bits() % (k + 1)), t = turn[k];
        turn[k] = turn[other], turn[other] = t;
      }
    const int before = progress;
    for (int k = 0; k < n; ++k) {
      current = turn[k];
      Fiber& f = fibers[current];
      if (!f.done && !(starved >> current / kWarp % 64 & 1)) host_switch(&scheduler, f.stack_pointer);
    }
    if (progress == before && !starved && bulk_flights.begin < bulk_flights.end) {
      arrive_in_bulk(bulk_flights.items[bulk_flights.begin++]);
    } else if (progress == before && !starved) {
      int waiting = 0;
      for (int k = n - 1; k >= 0; --k)
        if (!fibers[k].done) ++waiting, current = k;
      const Fiber& f = fibers[current];
      fault("deadlock: %d threads wait at the %s of line %d, and %d have ended", waiting, f.waits, f.line, n - waiting);
    }
    last_progress = before;
  }
  if (bulk_flights.begin < bulk_flights.end) fault("a bulk copy is on its way when the block has ended");
}

static void launch(const Kernel& k, void* with) {
  kernel = k;
  arguments = with;
  ++launch_index;
  const int n = k.blocks, first = n && order_kind == kRandom ? (int)(random_bits() % n) : 0;
  for (int b = 0; b < n; ++b) {
    block_index = order_kind == kForward ? b : order_kind == kReverse ? n - 1 - b : (first + n - b) % n;
    run_block();
  }
}

static void on_signal(int number) {
  fault(number == SIGALRM  ? "over the time limit"
        : number == SIGILL ? "a register array is indexed out of its bounds"
        : number == SIGFPE ? "an integer division traps"
                           : "touches memory that is not mapped");
}

// `path` holds the arrays' bytes. The request on stdin: seconds and counts; arrays (offset in the file, element bytes,
// elements, filled, name); launches (kernel, order, seed, and for each parameter an array and the offset of its first element).
static int serve(const Kernel* kernels, const char* path) {
  static char alternate[64 * 1024];
  stack_t alt = {};
  alt.ss_sp = alternate, alt.ss_size = sizeof alternate;
  sigaltstack(&alt, 0);
  struct sigaction action = {};
  action.sa_handler = on_signal, action.sa_flags = SA_ONSTACK;
  const int signals[] = {SIGALRM, SIGILL, SIGFPE, SIGSEGV, SIGBUS};
  for (int number : signals) sigaction(number, &action, 0);
  int seconds, arrays, launches;
  long long size;
  if (scanf("%d %lld %d %d", &seconds, &size, &arrays, &launches) != 4) return 2;
  alarm(seconds);
  char* data = (char*)mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, open(path, O_RDWR), 0);
  const int lazily = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  stacks = (char*)mmap(0, (size_t)kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE, lazily, -1, 0);
  if (data == MAP_FAILED || stacks == MAP_FAILED) return 2;
  Region* regions = (Region*)calloc(arrays, sizeof(Region));
  for (Region* r = regions; r < regions + arrays; ++r) {
    char name[64];
    long long at;
    int filled;
    if (scanf("%lld %d %lld %d %63s", &at, &r->bytes, &r->count, &filled, name) != 5) return 2;
    r->name = strdup(name), r->base = data + at, r->filled = filled;
    r->cells = (Cell*)calloc(r->count, sizeof(Cell));
  }
  for (int l = 0; l < launches; ++l) {
    int which, parameters, array;
    long long offset;
    unsigned long long seed;
    if (scanf("%d %d %llu %d", &which, &order_kind, &seed, &parameters) != 4 || parameters > kMaxParameters) return 2;
    random_state = seed * 2654435761u + 88172645463325252ull;
    static View<char> views[kMaxParameters];
    for (int k = 0; k < parameters; ++k) {
      if (scanf("%d %lld", &array, &offset) != 2) return 2;
      views[k] = {regions[array].base + offset * regions[array].bytes, &regions[array]};
    }
    launch(kernels[which], views);
  }
  return 0;
}

template <class T>
static View<T> parameter(void* views, int k) {
  const View<char>& v = ((View<char>*)views)[k];
  return {(T*)v.p, v.r};
}

}  // namespace host

// ---- the names that emitted text uses

#define __device__
#define __forceinline__ inline
#define __syncthreads() host::barrier(__LINE__)
#define __syncwarp() host::warp_barrier(__LINE__)
#define cluster_barrier() host::cluster_barrier(__LINE__)
#define cluster_wait() host::cluster_begun(__LINE__)
#define cluster_gather() host::cluster_gather(__LINE__)
#define cluster_arrive() host::cluster_arrive(__LINE__)
#define after_earlier_kernels()
#define ready_barriers(b, slots, readers) host::ready_barriers(__LINE__, b, slots, readers)
#define begin_bulk_copy host::begin_bulk_copy
#define commit_bulk_copies host::commit_bulk_copies
#define wait_barrier(b, phase) host::wait_barrier(__LINE__, b, phase)
#define release_slot(b) host::release_slot(b)
#define commit_copies() ++host::groups[host::current]
using host::begin_copy;
template <int pending>
static void wait_copies() { host::wait_copies(pending); }
#define __shfl_xor_sync(lanes, value, mask) host::shuffle_xor(__LINE__, value, mask)
static struct {
  struct {
    operator int() const { return host::block_index * (host::kernel.threads / host::kernel.block_threads) + host::rank(); }
  } x;
} blockIdx;
static struct {
  struct {
    operator int() const { return host::current % host::kernel.block_threads; }
  } x;
} threadIdx;

template <class To, class From>
static To bits_as(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static float __int_as_float(int x) { return bits_as<float>(x); }
static float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static double __longlong_as_double(long long x) { return bits_as<double>(x); }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }
static int max(int a, int b) { return a > b ? a : b; }
static int min(int a, int b) { return a < b ? a : b; }
static long long max(long long a, long long b) { return a > b ? a : b; }
static long long min(long long a, long long b) { return a < b ? a : b; }
static float max_nan(float a, float b) { return a != a || a > b || (a == b && !signbit(a)) ? a : b; }
static float min_nan(float a, float b) { return a != a || a < b || (a == b && signbit(a)) ? a : b; }

static float exp_coarse(float x) { return expf(x); }
static float sigmoid_coarse(float x) { return 1.0f / (1.0f + expf(-x)); }

// Float to integer saturates; NaN gives 0 from f32 to i32 and the least integer elsewhere (PTX ISA, cvt).
static int __double2int_rz(double x) {
  return x != x || x <= -2147483648.0 ? INT32_MIN : x >= 2147483647.0 ? INT32_MAX : (int)x;
}
static int __float2int_rz(float x) { return x != x ? 0 : __double2int_rz(x); }
static long long __double2ll_rz(double x) {
  return x != x || x <= -9223372036854775808.0 ? INT64_MIN : x >= 9223372036854775808.0 ? INT64_MAX : (long long)x;
}
static long long __float2ll_rz(float x) { return __double2ll_rz(x); }
static float __double2float_rz(double x) {
  const float r = (float)x;
  return fabs((double)r) > fabs(x) ? nextafterf(r, 0.0f) : r;
}
static unsigned short to_bf16(float x) {
  const unsigned b = __float_as_uint(x);
  return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
template <int size>
static void repack(unsigned short*) {}
#define HOST_PAIRS(op, dtype, of)                                            \
  static void op##2_##dtype(unsigned short* a, const unsigned short* b) {    \
    for (int k = 0; k < 2; ++k) a[k] = to_##dtype(op##_nan(of(a[k]), of(b[k]))); \
  }
template <int blocks, class P, class T>
static void store_all(P&& p, T v) { host::store_all(p + 0, v); }
template <class P, class T>
static void store_first(P&& p, T v) { host::store_first(p + 0, v); }
static float round_bf16(float x) { return __uint_as_float((unsigned)to_bf16(x) << 16); }
static unsigned short to_f16(float x) { return bits_as<unsigned short>((_Float16)x); }
static float from_f16(unsigned short x) { return bits_as<_Float16>(x); }
static float widened_bf16(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
HOST_PAIRS(max, bf16, widened_bf16)
HOST_PAIRS(min, bf16, widened_bf16)
HOST_PAIRS(max, f16, from_f16)
HOST_PAIRS(min, f16, from_f16)

#define HOST_ACCESS(width, suffix)                                                                        \
  template <class T, class P>                                                                             \
  static void load##width##suffix(T* v, P&& p) { host::load<width>(v, p + 0); }                           \
  template <class T, class P, class V>                                                                    \
  static void load##width##suffix##_or(T* v, P&& p, bool on, V other) {                                   \
    if (on) host::load<width>(v, p + 0);                                                                  \
    else for (int k = 0; k < width; ++k) v[k] = (T)other;                                                 \
  }                                                                                                       \
  template <class T, class P>                                                                             \
  static void store##width##suffix(P&& p, const T* v) { host::store<width, T>(p + 0, v); }
#define HOST_WIDTHS(suffix) \
  HOST_ACCESS(1, suffix) HOST_ACCESS(2, suffix) HOST_ACCESS(4, suffix) HOST_ACCESS(8, suffix) HOST_ACCESS(16, suffix)
HOST_WIDTHS()
HOST_WIDTHS(_stream)
HOST_WIDTHS(_keep)

#define HOST_ATOMIC(name, result)                                          \
  template <class T, class V>                                              \
  static void atomic_##name(host::View<T> p, V b) {                        \
    host::atomically(p, [=](T a) { return (T)(result); });                 \
  }
HOST_ATOMIC(add, a + b)
HOST_ATOMIC(max, a > b ? a : b)
HOST_ATOMIC(min, a < b ? a : b)
HOST_ATOMIC(and, a & b)
HOST_ATOMIC(or, a | b)
template <auto f, class T, class V>
static void atomic_update(host::View<T> p, V b) {
  host::atomically(p, [=](T a) { return f(a, b); });
}
