// Fiber engine: every GPU thread of a threadgroup is a fiber on one OS thread;
// a fiber runs until it meets a threadgroup barrier or a simdgroup operation.
// Checks: barrier divergence, simd divergence, deadlock, device-memory overrun
// (guard pages around every buffer), uninitialised threadgroup memory (poison).
#include "include/msl_engine.h"
// No C++ library: one need not be built or found, and a kernel's own names collide with none.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MSL_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define MSL_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define MSL_TSAN 1
#endif
#ifdef MSL_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned flags);   // flag 1: no happens-before
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif

extern "C" { msl_opts msl_o = {0, 1, 0, 0, 0, 0, 0}; }

namespace {
// A list of plain values, as far as it is used here.
template <class T> struct List {
  T* at = nullptr; size_t n = 0, room = 0;
  size_t size() const { return n; }
  T& operator[](size_t i) { return at[i]; }
  T* begin() { return at; }
  T* end() { return at + n; }
  void clear() { n = 0; }
  void resize(size_t m) { if (m > room) { room = m * 2; at = (T*)realloc((void*)at, room * sizeof(T)); } if (m > n) memset((void*)(at + n), 0, (m - n) * sizeof(T)); n = m; }
  void push_back(T v) { resize(n + 1); at[n - 1] = v; }
};
enum { READY = 0, W_SIMD = 1, W_TG = 2, DONE = 3 };
constexpr size_t STACK = 128 * 1024;

extern "C" void msl_switch(void** save_sp, void* load_sp);
#if defined(__x86_64__)
asm(R"(
.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
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
.size msl_switch,.-msl_switch
)");
#else  // aarch64 (same idea; not run on our machines)
asm(R"(
.text
.globl msl_switch
msl_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

struct Fiber {
  void* sp = nullptr;
  char* stack = nullptr;
  int line = 0;
  int state = DONE;
  msl_tctx tc;
#ifdef MSL_TSAN
  void* ts = nullptr;
#endif
};
struct Sg {
  uint32_t full = 0, ready = 0, arrived = 0, done = 0, tgwait = 0;
  uint32_t phase = 0, active[2] = {0, 0};
  int line = 0;
  alignas(16) unsigned char slots[2][32][16];
};
List<Fiber*> F;
List<Sg> S;
uint32_t nthreads, nsg, cur, n_tgwait, n_done;
Fiber mainf;
msl_entry_t entry;
void** g_bufs;
char err[4096]; size_t err_n;
bool failed;
uint32_t rng = 1;
uint32_t gen = 0;
struct Touched { void* first; uint32_t second; };
List<Touched> touched; size_t tg_bytes;
int barrier_obj[2], start_obj, end_obj; uint32_t bar_gen;   // identities for ThreadSanitizer
sigjmp_buf jb;
bool in_run = false;
void* fault_addr;
struct Buf { char* map; size_t maplen; char* p; size_t n; };
List<Buf> bufs_;

inline uint32_t xr() { rng ^= rng << 13; rng ^= rng >> 17; rng ^= rng << 5; return rng; }
inline uint32_t pick(uint32_t m) {
  switch (msl_o.order) {
    case 1: return 31 - __builtin_clz(m);
    case 2: { uint32_t k = xr() % __builtin_popcount(m); while (k--) m &= m - 1; return __builtin_ctz(m); }
    default: return __builtin_ctz(m);
  }
}
void fmt(const char* f, ...) { char b[512]; va_list a; va_start(a, f); vsnprintf(b, sizeof b, f, a); va_end(a); size_t k = strlen(b); if (err_n + k + 1 < sizeof err) { memcpy(err + err_n, b, k + 1); err_n += k; } failed = true; }

__attribute__((noinline)) void sw(Fiber* a, Fiber* b) {
#ifdef MSL_TSAN
  __tsan_switch_to_fiber(b->ts, 1);
#endif
  msl_switch(&a->sp, b->sp);
}

bool release_diverged();
// Leave the current fiber: go to any ready fiber, or back to the dispatcher.
void go_next(Fiber* self) {
  for (;;) {
    if (failed) { sw(self, &mainf); return; }
    uint32_t s0 = self == &mainf ? 0 : self->tc.sg;
    if (msl_o.order == 2 && nsg > 1) s0 = xr() % nsg;
    for (uint32_t k = 0; k < nsg; k++) {
      uint32_t s = msl_o.order == 1 ? (s0 + nsg - k) % nsg : (s0 + k) % nsg;
      if (S[s].ready) {
        uint32_t l = pick(S[s].ready);
        Fiber* n = F[s * 32 + l];
        cur = s * 32 + l;
        if (n == self) return;
        sw(self, n);
        return;
      }
    }
    if (n_done == nthreads) { if (self != &mainf) sw(self, &mainf); return; }
    if (msl_o.relaxed && release_diverged()) continue;
    fmt("deadlock: no thread can go on in threadgroup (%u,%u,%u):", F[0]->tc.tgpig[0], F[0]->tc.tgpig[1], F[0]->tc.tgpig[2]);
    for (uint32_t s = 0; s < nsg; s++) {
      for (uint32_t l = 0; l < 32; l++) if (S[s].full >> l & 1) {
        Fiber* f = F[s * 32 + l];
        if (l && F[s * 32 + l - 1]->state == f->state && F[s * 32 + l - 1]->line == f->line) continue;
        fmt(" sg%u lane%u+ %s@line %d;", s, l, f->state == W_SIMD ? "simd-op" : f->state == W_TG ? "barrier" : f->state == DONE ? "returned" : "ready", f->line);
      }
    }
  }
}
void sg_release(Sg& g, uint32_t who) {
  g.active[g.phase & 1] = who;
  g.phase++;
  g.ready |= who;
  g.arrived &= ~who;
}
bool release_diverged() {
  bool any = false;
  for (uint32_t s = 0; s < nsg; s++) {
    Sg& g = S[s];
    if (!g.arrived || g.ready) continue;
    // all lanes waiting on the same line as the lowest waiting lane
    int line = F[s * 32 + __builtin_ctz(g.arrived)]->line;
    uint32_t who = 0;
    for (uint32_t l = 0; l < 32; l++) if ((g.arrived >> l & 1) && F[s * 32 + l]->line == line) who |= 1u << l;
    for (uint32_t l = 0; l < 32; l++) if (who >> l & 1) F[s * 32 + l]->state = READY;
    sg_release(g, who);
    any = true;
    break;
  }
  return any;
}
void fiber_main() {
  for (;;) {
    Fiber* f = F[cur];
#ifdef MSL_TSAN
    __tsan_acquire(&start_obj);
#endif
    entry(g_bufs, &f->tc);
#ifdef MSL_TSAN
    __tsan_release(&end_obj);
#endif
    f = F[cur];
    Sg& g = S[f->tc.sg];
    uint32_t bit = 1u << f->tc.lane;
    f->state = DONE;
    g.ready &= ~bit; g.done |= bit; n_done++;
    if (g.arrived && (g.arrived | g.done) == g.full) {
      if (!msl_o.relaxed) fmt("simd divergence: lane %u of simdgroup %u returned while others wait in a simd operation at line %d;", f->tc.lane, f->tc.sg, g.line);
      else { for (uint32_t l = 0; l < 32; l++) if (g.arrived >> l & 1) F[f->tc.sg * 32 + l]->state = READY; sg_release(g, g.arrived); }
    }
    if (n_tgwait && n_tgwait + n_done == nthreads) fmt("barrier divergence: thread %u returned while others wait in threadgroup_barrier;", f->tc.tid);
    go_next(f);
  }
}
void prepare(Fiber* f, uint32_t idx) {
  if (!f->stack) {
    f->stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
#ifdef MSL_TSAN
    f->ts = __tsan_create_fiber(0);
#endif
  }
  char* top = f->stack + STACK - 64 - (idx % 61) * 320;   // coloured: equal offsets would all fall into one cache set
#if defined(__x86_64__)
  void** sp = (void**)top;           // 16-aligned; `ret` pops fiber_main, leaving rsp%16==8 as after a call
  *--sp = nullptr;
  *--sp = (void*)fiber_main;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  f->sp = sp;
#else
  char* sp = top - 160; memset(sp, 0, 160);
  ((void**)sp)[11] = (void*)fiber_main;   // x30
  f->sp = sp;
#endif
}
void on_segv(int, siginfo_t* si, void*) {
  if (in_run) { fault_addr = si->si_addr; siglongjmp(jb, 1); }
  signal(SIGSEGV, SIG_DFL); raise(SIGSEGV);
}
}  // namespace

// `cur` must be re-read after every switch; each wait sets it on resume.
extern "C" void msl_barrier(int line) {
  Fiber* f = F[cur]; uint32_t me = cur; Sg& g = S[f->tc.sg];
  f->line = line; f->state = W_TG;
  g.ready &= ~(1u << f->tc.lane);
  if (n_tgwait == 0) mainf.line = line;
  else if (mainf.line != line) { fmt("barrier divergence: threads wait at line %d and at line %d;", mainf.line, line); }
  uint32_t bg = bar_gen & 1; (void)bg;
#ifdef MSL_TSAN
  __tsan_release(&barrier_obj[bg]);
#endif
  bool all = ++n_tgwait + n_done == nthreads;
  if (all) {
    if (n_done) fmt("barrier divergence: %u threads returned before the barrier at line %d;", n_done, line);
    n_tgwait = 0; bar_gen++;
    for (uint32_t s = 0; s < nsg; s++) S[s].ready = S[s].full & ~S[s].done;
    for (uint32_t i = 0; i < nthreads; i++) if (F[i]->state == W_TG) F[i]->state = READY;
  }
  if (!all || msl_o.order || failed) go_next(f);
  cur = me;
#ifdef MSL_TSAN
  __tsan_acquire(&barrier_obj[bg]);
#endif
}
extern "C" msl_simd_view msl_simd_sync(const void* v, unsigned size, int line) {
  Fiber* f = F[cur]; uint32_t me = cur; Sg& g = S[f->tc.sg];
  uint32_t bit = 1u << f->tc.lane, ph = g.phase & 1;
  unsigned char* sl = g.slots[ph][f->tc.lane];
  if (size) memcpy(sl, v, size);
  if (!g.arrived) g.line = line;
  else if (g.line != line && !msl_o.relaxed) fmt("simd divergence: lanes of simdgroup %u are at line %d and at line %d;", f->tc.sg, g.line, line);
  g.arrived |= bit; g.ready &= ~bit; f->line = line; f->state = W_SIMD;
#ifdef MSL_TSAN
  if (size == 0) __tsan_release(g.slots[ph]);   // only simdgroup_barrier orders memory; a shuffle does not
#endif
  bool all = (g.arrived | g.done) == g.full;
  if (all && msl_o.relaxed) for (uint32_t l = 0; l < 32; l++) if ((g.arrived >> l & 1) && F[f->tc.sg * 32 + l]->line != line) all = false;
  if (all) {
    if (g.done && !msl_o.relaxed) fmt("simd divergence: some lanes of simdgroup %u returned before the simd operation at line %d;", f->tc.sg, line);
    uint32_t who = g.arrived;
    for (uint32_t m = who; m; m &= m - 1) F[f->tc.sg * 32 + __builtin_ctz(m)]->state = READY;
    sg_release(g, who);
  }
  if (!all || msl_o.order || failed) go_next(f);
  cur = me;
#ifdef MSL_TSAN
  if (size == 0) __tsan_acquire(g.slots[ph]);
#endif
  return msl_simd_view{&g.slots[ph][0][0], g.active[ph], f->tc.lane, (uint32_t)__builtin_popcount(g.full)};
}
extern "C" uint32_t msl_rand(void) { return xr(); }
extern "C" const msl_tctx* msl_self(void) { return &F[cur]->tc; }
extern "C" void msl_tg_touch(void* p, size_t n) {
#ifdef MSL_TSAN
  return;
#endif
  for (auto& t : touched) if (t.first == p && t.second == gen) return;
  bool known = false;
  for (auto& t : touched) if (t.first == p) { t.second = gen; known = true; }
  if (!known) touched.push_back(Touched{p, gen});
  memset(p, 0xff, n);
  const size_t most = msl_o.cuda_grid ? 49152 : 32768;
  if ((tg_bytes += n) > most) fmt("threadgroup memory: %zu bytes (%zu on %s GPUs);", tg_bytes, most, msl_o.cuda_grid ? "NVIDIA" : "Apple");
}

extern "C" const char* msl_error() { return err; }

extern "C" void* msl_alloc(size_t n, int right_align) {  // guard pages on both sides
  size_t pg = sysconf(_SC_PAGESIZE), body = (n + pg - 1) / pg * pg; if (!body) body = pg;
  char* m = (char*)mmap(nullptr, body + 2 * pg, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(m + pg, body, PROT_READ | PROT_WRITE);
  size_t off = right_align ? (body - n) & ~size_t(15) : 0;
  char* p = m + pg + off;
  memset(m + pg, 0xff, body);
  bufs_.push_back(Buf{m, body + 2 * pg, p, n});
  return p;
}
extern "C" void msl_free_all() { for (auto& b : bufs_) munmap(b.map, b.maplen); bufs_.clear(); }
extern "C" int msl_slack_dirty() {  // bytes between the end of a buffer and its guard page
  size_t pg = sysconf(_SC_PAGESIZE);
  for (size_t i = 0; i < bufs_.size(); i++) { auto& b = bufs_[i]; for (char* q = b.p + b.n; q < b.map + b.maplen - pg; q++) if ((unsigned char)*q != 0xff) return (int)i + 1; }
  return 0;
}

extern "C" int msl_dispatch(msl_entry_t e, void** bufs, const uint32_t* grid, const uint32_t* tg, const msl_opts* o) {
  err_n = 0; err[0] = 0; failed = false; entry = e; g_bufs = bufs; msl_o = *o; rng = o->seed * 2654435761u | 1;
  uint32_t t[3], ng[3], n = 1;
  for (int i = 0; i < 3; i++) {
    t[i] = tg[i] < grid[i] ? tg[i] : grid[i];   // MLX: group_dims = min(tg, grid) on Metal and CUDA
    ng[i] = o->cuda_grid ? (grid[i] + tg[i] - 1) / tg[i] : (grid[i] + t[i] - 1) / (t[i] ? t[i] : 1);
    n *= t[i];
  }
  if (n == 0) return 0;
  if (n > 1024) { fmt("threadgroup of %u threads (at most 1024)", n); return 1; }
  while (F.size() < n) { Fiber* f = (Fiber*)calloc(1, sizeof(Fiber)); f->state = DONE; F.push_back(f); }
  S.resize((n + 31) / 32);
  static bool once = false;
  struct sigaction sa, old; memset(&sa, 0, sizeof sa); sa.sa_sigaction = on_segv; sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  static char* alt = nullptr;
  if (!once) { once = true; alt = (char*)malloc(65536); }
  stack_t ss; memset(&ss, 0, sizeof ss); ss.ss_sp = alt; ss.ss_size = 65536; sigaltstack(&ss, nullptr);
  sigaction(SIGSEGV, &sa, &old);
#ifdef MSL_TSAN
  mainf.ts = __tsan_get_current_fiber();
#endif
  if (sigsetjmp(jb, 1)) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(0x1f80);
#endif
    in_run = false;
    const char* what = "unknown address (stack overflow, or far out of range)"; static char w[160];
    for (size_t i = 0; i < bufs_.size(); i++) { auto& b = bufs_[i];
      if ((char*)fault_addr >= b.map && (char*)fault_addr < b.map + b.maplen) { snprintf(w, sizeof w, "buffer %zu at byte offset %ld (size %zu)", i, (long)((char*)fault_addr - b.p), b.n); what = w; } }
    fmt("memory fault: %s, by thread %u at or after line %d;", what, cur, F[cur]->line);
    for (auto f : F) { if (f->stack) munmap(f->stack, STACK); free(f); } F.clear();
    sigaction(SIGSEGV, &old, nullptr);
    return 1;
  }
  in_run = true;
#if defined(__x86_64__)
  unsigned csr = __builtin_ia32_stmxcsr(); __builtin_ia32_ldmxcsr(o->ftz ? csr | 0x8040 : csr & ~0x8040u);
#endif
  for (uint32_t i = 0; i < n; i++) prepare(F[i], i);
  uint32_t gx, gy, gz;
  for (gz = 0; gz < ng[2] && !failed; gz++) for (gy = 0; gy < ng[1] && !failed; gy++) for (gx = 0; gx < ng[0] && !failed; gx++) {
    uint32_t gp[3] = {gx, gy, gz}, d[3];
    for (int i = 0; i < 3; i++) { d[i] = t[i]; if (!o->cuda_grid && (gp[i] + 1) * t[i] > grid[i]) d[i] = grid[i] - gp[i] * t[i]; }
#ifdef MSL_TSAN
    __tsan_acquire(&end_obj);
#endif
    nthreads = d[0] * d[1] * d[2]; nsg = (nthreads + 31) / 32; n_tgwait = n_done = 0; gen++; tg_bytes = 0;
    for (uint32_t s = 0; s < nsg; s++) { Sg& g = S[s]; uint32_t k = nthreads - s * 32; g.full = k >= 32 ? 0xffffffffu : (1u << k) - 1; g.ready = g.full; g.arrived = g.done = 0; memset(g.slots, 0xff, sizeof g.slots); }
    for (uint32_t i = 0; i < nthreads; i++) {
      Fiber* f = F[i]; f->state = READY; f->line = 0; msl_tctx& c = f->tc;
      c.tpit[0] = i % d[0]; c.tpit[1] = i / d[0] % d[1]; c.tpit[2] = i / (d[0] * d[1]);
      for (int k = 0; k < 3; k++) { c.tgpig[k] = gp[k]; c.tpig[k] = gp[k] * t[k] + c.tpit[k]; c.tptg[k] = d[k]; c.dtptg[k] = t[k]; c.tpg[k] = grid[k]; c.tgpg[k] = ng[k]; }
      c.tid = i; c.lane = i % 32; c.sg = i / 32; c.nsg = nsg;
    }
#ifdef MSL_TSAN
    __tsan_release(&start_obj);
#endif
    go_next(&mainf);
    if (failed) break;
  }
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(csr);
#endif
  in_run = false;
  if (failed) { for (auto f : F) { if (f->stack) munmap(f->stack, STACK); free(f); } F.clear(); }
  sigaction(SIGSEGV, &old, nullptr);
  return failed;
}

// libgcc 12 has no bfloat16 conversions; clang's compiler-rt may be absent too.
extern "C" __bf16 __truncsfbf2(float x) {
  uint32_t u; memcpy(&u, &x, 4);
  uint16_t h = (u & 0x7fffffff) > 0x7f800000 ? (uint16_t)(u >> 16 | 0x40) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
  __bf16 r; memcpy((void*)&r, &h, 2); return r;
}
extern "C" __bf16 __truncdfbf2(double x) { return __truncsfbf2((float)x); }
