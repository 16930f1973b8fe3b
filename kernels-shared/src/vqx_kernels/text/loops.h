// Loops of the host, in the order of the GPU's threads.
#define VQX_THREADS 256
VQX_FN float vqx_tree(const float* a) {  // eight butterflies of 32, then one by one
  float sum = 0.0f;
  for (int w = 0; w < VQX_THREADS / 32; w++, a += 32) {
    float b[16], c[8], d[4];
    for (int i = 0; i < 16; i++) b[i] = a[2 * i] + a[2 * i + 1];
    for (int i = 0; i < 8; i++) c[i] = b[2 * i] + b[2 * i + 1];
    for (int i = 0; i < 4; i++) d[i] = c[2 * i] + c[2 * i + 1];
    float e = (d[0] + d[1]) + (d[2] + d[3]);
    sum = w ? sum + e : e;
  }
  return sum;
}
// The products of `count` keys with QB queries, each in eight sums that stand side by side; KB keys at a time, as
// many as registers hold, since a sum alone waits for itself.
template <int QB, int KB, typename T>
VQX_FN void vqx_dots(float* dots, const T* keys, int count, vqx_i64 across, vqx_i64 along, const float* asked, int width) {
  vqx_eight sum[KB * QB];
  const T* key[KB];
  int d = 0;
  for (int k = 0; k < KB; k++) key[k] = keys + vqx_min(k, count - 1) * across;
  for (int k = 0; k < KB * QB; k++) sum[k] = vqx_none();
  for (; along == 1 && d + 8 <= width; d += 8) {
    // as much of the next keys, if rows follow each other: a processor does not foresee them across pages
    for (int b = 0; b < int(8 * KB * sizeof(T)); b += 64) __builtin_prefetch((const char*)(keys + KB * across + d * KB) + b);
    for (int q = 0; q < QB; q++) {
      vqx_eight x = vqx_load(asked + q * width + d);
      for (int k = 0; k < KB; k++) sum[k * QB + q] = vqx_add(vqx_load(key[k] + d), x, sum[k * QB + q]);
    }
  }
  if (d == width && KB * QB % 4 == 0) {
    for (int k = 0; k < KB * QB; k += 4) vqx_fold(dots + k, sum + k);
    return;
  }
  float rest[KB * QB][8];
  for (int k = 0; k < KB * QB; k++) vqx_store(rest[k], sum[k]);
  for (int k = 0; k < KB * QB; k++) {
    float* s = rest[k];
    for (int e = d; e < width; e++) s[(e - d) & 7] = vqx_fma(float(key[k / QB][e * along]), asked[k % QB * width + e], s[(e - d) & 7]);
    dots[k] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}
#define VQX_SOME (QB < 2 ? 8 : QB < 4 ? 4 : QB < 8 ? 2 : 1)
#define VQX_EACH(i, first, last) for (int i = (first); i < (last); i++)
#define VQX_EACH_OF(q, d, many, width) for (int q = 0; q < (many); q++) for (int d = 0; d < (width); d++)
#define VQX_ONCE
#define VQX_BY(many, first, last) for (int vqx_b = (first); vqx_b < (last); vqx_b++)
#define VQX_AHEAD(u, i, many) for (int u = 0, i = vqx_b; u < 1; u++)
#define VQX_WITHIN VQX_AHEAD
#define VQX_UP_TO(many) 1
#define VQX_KEYS 1
#define VQX_KEY 0
#define VQX_LANE 0
#define VQX_DOTS(dots) float vqx_some[VQX_SOME * QB]; const float* dots = vqx_some
#define VQX_BEGIN(first, last, keys, across, along)
#define VQX_EACH_KEY(i, first, last, dots, keys, across, along, asked) \
  for (int vqx_b = (first); vqx_b < (last); vqx_b += VQX_SOME) \
    for (int i = (vqx_dots<QB, VQX_SOME>(vqx_some, (keys) + vqx_b * (across), (last) - vqx_b, across, along, asked, D), vqx_b); \
         i < vqx_min(vqx_b + VQX_SOME, (last)) && (dots = vqx_some + (i - vqx_b) * QB, true); i++)
#define VQX_OWN(last) true
#define VQX_SCRATCH
#define VQX_BLOCK_SUM(dst, i, n, expr) float dst; { alignas(64) float vqx_a[VQX_THREADS]; for (int t = 0; t < VQX_THREADS; t++) vqx_a[t] = 0.0f; \
  for (int b = 0; b < (n); b += VQX_THREADS) { int m = vqx_min(VQX_THREADS, (n) - b); for (int t = 0; t < m; t++) { int i = b + t; vqx_a[t] = vqx_a[t] + (expr); } } dst = vqx_tree(vqx_a); }
// The best of many is the same in any order, which compilers are told, and so put into vector registers.
#define VQX_TOLD(what) _Pragma(#what)
#define VQX_BLOCK_BEST(T, dst, best, with, none, i, n, expr) T dst = (none); \
  VQX_TOLD(omp simd reduction(best:dst)) for (int i = 0; i < (n); i++) dst = with(dst, (expr))
#define VQX_BLOCK_MAX(dst, i, n, expr) VQX_BLOCK_BEST(float, dst, max, vqx_max, -INFINITY, i, n, expr)
// one at a time, so that the loops stay vectors
#define VQX_BLOCK_SUMS(dst, q, count, i, n, expr) float dst[count]; for (int q = 0; q < (count); q++) { VQX_BLOCK_SUM(vqx_one, i, n, expr); dst[q] = vqx_one; }
#define VQX_BLOCK_MAXIMA(dst, q, count, i, n, expr) float dst[count]; for (int q = 0; q < (count); q++) { VQX_BLOCK_MAX(vqx_one, i, n, expr); dst[q] = vqx_one; }
#define VQX_BLOCK_COUNT(dst, i, n, expr) vqx_u32 dst = 0u; for (int i = 0; i < (n); i++) dst = dst + ((expr) ? 1u : 0u)
// The lowest score, the oldest row that has it, the first slot that has both.
#define VQX_BLOCK_FIRST(dst, i, n, score, place) VQX_BLOCK_BEST(float, dst##_score, max, vqx_max, -INFINITY, i, n, -(score)); \
  VQX_BLOCK_BEST(int, dst##_place, min, vqx_min, 0x7fffffff, i, n, (score) == -dst##_score ? (place) : 0x7fffffff); \
  VQX_BLOCK_BEST(int, dst, min, vqx_min, 0x7fffffff, i, n, (score) == -dst##_score && (place) == dst##_place ? i : 0x7fffffff)
#define VQX_BLOCK_ORDER(i, first, last, yes, number, ...) { vqx_u32 number = 0u; for (int i = (first); i < (last); i++) if (yes) { __VA_ARGS__; number++; } }
