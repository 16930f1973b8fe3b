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
    if (d * sizeof(T) % 64 == 0)  // the same of the next keys, which a processor does not foresee across pages
      for (int k = 0; k < KB; k++) __builtin_prefetch(key[k] + KB * across + d);
    for (int q = 0; q < QB; q++) {
      vqx_eight x = vqx_load(asked + q * width + d);
      for (int k = 0; k < KB; k++) sum[k * QB + q] = vqx_add(vqx_load(key[k] + d), x, sum[k * QB + q]);
    }
  }
  if (d == width && KB * QB % 4 == 0) {
    for (int k = 0; k < KB * QB; k += 4) vqx_fold(dots + k, sum + k);
    return;
  }
  for (int k = 0; k < KB * QB; k++) {
    float s[8];
    vqx_store(s, sum[k]);
    for (int e = d; e < width; e++) s[(e - d) & 7] = vqx_fma(float(key[k / QB][e * along]), asked[k % QB * width + e], s[(e - d) & 7]);
    dots[k] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}
#define VQX_SOME (QB < 2 ? 8 : QB < 4 ? 4 : QB < 8 ? 2 : 1)
#define VQX_EACH(i, first, last) for (int i = (first); i < (last); i++)
#define VQX_ONCE
#define VQX_KEYS 1
#define VQX_KEY 0
#define VQX_LANE 0
#define VQX_DOTS(dots) float vqx_some[VQX_SOME * QB]; const float* dots = vqx_some
#define VQX_EACH_KEY(i, first, last, dots, keys, across, along, asked) \
  for (int vqx_b = (first); vqx_b < (last); vqx_b += VQX_SOME) \
    for (int i = (vqx_dots<QB, VQX_SOME>(vqx_some, (keys) + vqx_b * (across), (last) - vqx_b, across, along, asked, D), vqx_b); \
         i < vqx_min(vqx_b + VQX_SOME, (last)) && (dots = vqx_some + (i - vqx_b) * QB, true); i++)
#define VQX_OWN(last) true
#define VQX_SCRATCH
#define VQX_BLOCK_SUM(dst, i, n, expr) float dst; { alignas(64) float vqx_a[VQX_THREADS]; for (int t = 0; t < VQX_THREADS; t++) vqx_a[t] = 0.0f; \
  for (int b = 0; b < (n); b += VQX_THREADS) { int m = vqx_min(VQX_THREADS, (n) - b); for (int t = 0; t < m; t++) { int i = b + t; vqx_a[t] = vqx_a[t] + (expr); } } dst = vqx_tree(vqx_a); }
#define VQX_BLOCK_MAX(dst, i, n, expr) float dst = -INFINITY; { alignas(64) float vqx_a[16]; for (int t = 0; t < 16; t++) vqx_a[t] = -INFINITY; \
  int b = 0; for (; b + 16 <= (n); b += 16) for (int t = 0; t < 16; t++) { int i = b + t; vqx_a[t] = vqx_max(vqx_a[t], (expr)); } \
  for (; b < (n); b++) { int i = b; dst = vqx_max(dst, (expr)); } for (int t = 0; t < 16; t++) dst = vqx_max(dst, vqx_a[t]); }
#define VQX_BLOCK_COUNT(dst, i, n, expr) vqx_u32 dst = 0u; for (int i = 0; i < (n); i++) dst = dst + ((expr) ? 1u : 0u)
#define VQX_BLOCK_FIRST(dst, i, n, score, place) int dst = 0x7fffffff; { float vqx_s = INFINITY; int vqx_p = 0x7fffffff; \
  for (int i = 0; i < (n); i++) { float vqx_t = (score); int vqx_o = (place); if (vqx_before(vqx_t, vqx_o, i, vqx_s, vqx_p, dst)) { vqx_s = vqx_t; vqx_p = vqx_o; dst = i; } } }
#define VQX_BLOCK_ORDER(i, first, last, yes, number, ...) { vqx_u32 number = 0u; for (int i = (first); i < (last); i++) if (yes) { __VA_ARGS__; number++; } }
