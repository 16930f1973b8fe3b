// Loops and reductions of a block of VQX_WARPS times 32 threads, the same for Metal and CUDA. Sums are
// butterflies 1, 2, 4, 8, 16, so every lane ends with the same bits, then the warps one by one.
#define VQX_WARPS 8
#define VQX_THREADS (32 * VQX_WARPS)
VQX_FN float vqx_block_sum(float v, VQX_TG float* scratch, vqx_u32 lane, vqx_u32 warp) {
  for (vqx_u32 m = 1u; m < 32u; m <<= 1) v = v + vqx_xor(v, m);
  if (lane == 0u) scratch[warp] = v;
  VQX_BARRIER();
  v = scratch[0];
  for (int w = 1; w < VQX_WARPS; w++) v = v + scratch[w];
  VQX_BARRIER();
  return v;
}
VQX_FN float vqx_block_max(float v, VQX_TG float* scratch, vqx_u32 lane, vqx_u32 warp) {
  for (vqx_u32 m = 1u; m < 32u; m <<= 1) v = vqx_max(v, vqx_xor(v, m));
  if (lane == 0u) scratch[warp] = v;
  VQX_BARRIER();
  v = scratch[0];
  for (int w = 1; w < VQX_WARPS; w++) v = vqx_max(v, scratch[w]);
  VQX_BARRIER();
  return v;
}
VQX_FN vqx_u32 vqx_block_count(vqx_u32 v, VQX_TG vqx_u32* scratch, vqx_u32 lane, vqx_u32 warp) {
  for (vqx_u32 m = 1u; m < 32u; m <<= 1) v = v + vqx_xor(v, m);
  if (lane == 0u) scratch[warp] = v;
  VQX_BARRIER();
  v = scratch[0];
  for (int w = 1; w < VQX_WARPS; w++) v = v + scratch[w];
  VQX_BARRIER();
  return v;
}
// How many threads before this one say yes; `all`: how many of the block do.
VQX_FN vqx_u32 vqx_block_before(vqx_u32 v, VQX_THREAD vqx_u32& all, VQX_TG vqx_u32* scratch, vqx_u32 lane, vqx_u32 warp) {
  vqx_u32 before = 0u;
  for (vqx_u32 m = 1u; m < 32u; m <<= 1) {
    vqx_u32 other = vqx_xor(v, m);
    if (lane & m) before = before + other;
    v = v + other;
  }
  if (lane == 0u) scratch[warp] = v;
  VQX_BARRIER();
  all = 0u;
  for (int w = 0; w < VQX_WARPS; w++) {
    if (vqx_u32(w) < warp) before = before + scratch[w];
    all = all + scratch[w];
  }
  VQX_BARRIER();
  return before;
}
VQX_FN int vqx_block_first(float s, int p, int i, VQX_TG float* scores, VQX_TG vqx_u32* places, VQX_TG vqx_u32* slots, vqx_u32 lane, vqx_u32 warp) {
  for (vqx_u32 m = 1u; m < 32u; m <<= 1) {
    float os = vqx_xor(s, m);
    int op = int(vqx_xor(vqx_u32(p), m));
    int oi = int(vqx_xor(vqx_u32(i), m));
    if (vqx_before(os, op, oi, s, p, i)) { s = os; p = op; i = oi; }
  }
  if (lane == 0u) { scores[warp] = s; places[warp] = vqx_u32(p); slots[warp] = vqx_u32(i); }
  VQX_BARRIER();
  s = scores[0];
  p = int(places[0]);
  i = int(slots[0]);
  for (int w = 1; w < VQX_WARPS; w++)
    if (vqx_before(scores[w], int(places[w]), int(slots[w]), s, p, i)) { s = scores[w]; p = int(places[w]); i = int(slots[w]); }
  VQX_BARRIER();
  return i;
}
// The products of one key with QB queries: eight lanes share a key, each takes every eighth number.
template <int QB, int D, typename T>
VQX_FN void vqx_dots(VQX_THREAD float* dots, const VQX_DEV T* key, vqx_i64 stride, const VQX_TG float* asked, int lane) {
  for (int q = 0; q < QB; q++) dots[q] = 0.0f;
  for (int d = lane; d < D; d += 8) {
    float x = float(key[d * stride]);
    for (int q = 0; q < QB; q++) dots[q] = vqx_fma(x, asked[q * D + d], dots[q]);
  }
  for (int q = 0; q < QB; q++)
    for (vqx_u32 m = 1u; m < 8u; m <<= 1) dots[q] = dots[q] + vqx_xor(dots[q], m);
}
#define VQX_EACH(i, first, last) for (int i = (first) + int(vqx_tid); i < (last); i += VQX_THREADS)
#define VQX_EACH_OF(q, d, many, width) VQX_EACH(vqx_e, 0, (many) * (width)) \
  for (int q = vqx_e / (width), d = vqx_e % (width), vqx_once = 1; vqx_once; vqx_once = 0)
#define VQX_ONCE if (vqx_tid == 0u)
// A block takes VQX_KEYS keys at a time; the lanes of all go round together, or a shuffle would miss some.
#define VQX_KEYS (VQX_THREADS / 8)
#define VQX_KEY (int(vqx_tid) / 8)
#define VQX_LANE (int(vqx_tid) & 7)
#define VQX_DOTS(dots) float dots[QB]
#define VQX_BEGIN(first, last, keys, across, along)
#define VQX_EACH_KEY(i, first, last, dots, keys, across, along, asked) \
  for (int vqx_b = (first); vqx_b < (last); vqx_b += VQX_KEYS) \
    for (int i = vqx_min(vqx_b + VQX_KEY, (last) - 1), vqx_once = (vqx_dots<QB, D>(dots, (keys) + i * (across), along, asked, VQX_LANE), 1); vqx_once; vqx_once = 0)
// Whether this lane speaks for its key; behind the last one all repeat it.
#define VQX_OWN(last) (VQX_LANE == 0 && vqx_b + VQX_KEY < (last))
#define VQX_SCRATCH VQX_SHARED(float, vqx_floats, VQX_WARPS); VQX_SHARED(vqx_u32, vqx_words, VQX_WARPS); VQX_SHARED(vqx_u32, vqx_slots, VQX_WARPS)
// A thread takes `many` of its rows at a time, and waits for all that it reads of them together: VQX_AHEAD reads, behind
// its last row the first again, and VQX_WITHIN goes through those that there are, in their order.
#define VQX_BY(many, first, last) for (int vqx_b = (first) + int(vqx_tid), vqx_end = (last); vqx_b < vqx_end; vqx_b += (many) * VQX_THREADS)
#define VQX_AHEAD(u, i, many) VQX_UNROLL for (int u = 0; u < (many); u++) for (int i = vqx_b + u * VQX_THREADS < vqx_end ? vqx_b + u * VQX_THREADS : vqx_b, vqx_once = 1; vqx_once; vqx_once = 0)
#define VQX_WITHIN(u, i, many) VQX_UNROLL for (int u = 0; u < (many); u++) for (int i = vqx_b + u * VQX_THREADS, vqx_once = 1; vqx_once && i < vqx_end; vqx_once = 0)
#define VQX_MANY 11  // thrice is 8,192 rows and the one that comes
#define VQX_FEW 4
#define VQX_UP_TO(many) (many)
// Of several expressions at once, numbered q.
#define VQX_BLOCK_SUMS(dst, q, count, i, n, expr) float dst[count]; for (int q = 0; q < (count); q++) dst[q] = 0.0f; \
  VQX_BY(VQX_MANY, 0, n) { float vqx_v[VQX_MANY * (count)]; VQX_AHEAD(vqx_u, i, VQX_MANY) VQX_UNROLL for (int q = 0; q < (count); q++) vqx_v[vqx_u * (count) + q] = (expr); \
    VQX_WITHIN(vqx_u, i, VQX_MANY) VQX_UNROLL for (int q = 0; q < (count); q++) dst[q] = dst[q] + vqx_v[vqx_u * (count) + q]; } \
  for (int q = 0; q < (count); q++) dst[q] = vqx_block_sum(dst[q], vqx_floats, vqx_lane, vqx_warp)
#define VQX_BLOCK_MAXIMA(dst, q, count, i, n, expr) float dst[count]; for (int q = 0; q < (count); q++) dst[q] = -INFINITY; \
  VQX_BY(VQX_MANY, 0, n) VQX_AHEAD(vqx_u, i, VQX_MANY) VQX_UNROLL for (int q = 0; q < (count); q++) dst[q] = vqx_max(dst[q], (expr)); \
  for (int q = 0; q < (count); q++) dst[q] = vqx_block_max(dst[q], vqx_floats, vqx_lane, vqx_warp)
#define VQX_BLOCK_COUNT(dst, i, n, expr) vqx_u32 dst = 0u; VQX_BY(VQX_MANY, 0, n) { bool vqx_v[VQX_MANY]; VQX_AHEAD(vqx_u, i, VQX_MANY) vqx_v[vqx_u] = (expr); \
  VQX_WITHIN(vqx_u, i, VQX_MANY) dst = dst + (vqx_v[vqx_u] ? 1u : 0u); } dst = vqx_block_count(dst, vqx_words, vqx_lane, vqx_warp)
#define VQX_BLOCK_FIRST(dst, i, n, score, place) int dst = 0x7fffffff; { float vqx_s = INFINITY; int vqx_p = 0x7fffffff; \
  VQX_BY(VQX_MANY, 0, n) VQX_AHEAD(vqx_u, i, VQX_MANY) { float vqx_t = (score); int vqx_o = (place); if (vqx_before(vqx_t, vqx_o, i, vqx_s, vqx_p, dst)) { vqx_s = vqx_t; vqx_p = vqx_o; dst = i; } } \
  dst = vqx_block_first(vqx_s, vqx_p, dst, vqx_floats, vqx_words, vqx_slots, vqx_lane, vqx_warp); }
#define VQX_BLOCK_ORDER(i, first, last, yes, number, ...) { vqx_u32 vqx_base = 0u; for (int vqx_b = (first); vqx_b < (last); vqx_b += VQX_THREADS) { \
  const int i = vqx_b + int(vqx_tid); const bool vqx_own = i < (last) && (yes); vqx_u32 vqx_all = 0u; \
  const vqx_u32 number = vqx_base + vqx_block_before(vqx_own ? 1u : 0u, vqx_all, vqx_words, vqx_lane, vqx_warp); \
  if (vqx_own) { __VA_ARGS__; } vqx_base = vqx_base + vqx_all; } }
