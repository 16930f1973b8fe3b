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
template <int QB, typename T>
VQX_FN void vqx_dots(float* dots, const T* key, vqx_i64 stride, const float* asked, int width) {
  vqx_eight sum[QB];
  float s[8];
  int d = 0;
  for (int q = 0; q < QB; q++) sum[q] = vqx_none();
  for (; stride == 1 && d + 8 <= width; d += 8) {
    vqx_eight x = vqx_load(key + d);
    for (int q = 0; q < QB; q++) sum[q] = vqx_add(x, vqx_load(asked + q * width + d), sum[q]);
  }
  for (int q = 0; q < QB; q++) {
    vqx_store(s, sum[q]);
    for (int e = d; e < width; e++) s[(e - d) & 7] = vqx_fma(float(key[e * stride]), asked[q * width + e], s[(e - d) & 7]);
    dots[q] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}
#define VQX_EACH(i, first, last) for (int i = (first); i < (last); i++)
#define VQX_ONCE
#define VQX_KEYS 1
#define VQX_KEY 0
#define VQX_LANE 0
#define VQX_DOTS(dots, key, stride, asked) vqx_dots<QB>(dots, key, stride, asked, D)
#define VQX_SCRATCH
#define VQX_BLOCK_SUM(dst, i, n, expr) float dst; { alignas(64) float vqx_a[VQX_THREADS]; for (int t = 0; t < VQX_THREADS; t++) vqx_a[t] = 0.0f; \
  for (int b = 0; b < (n); b += VQX_THREADS) { int m = vqx_min(VQX_THREADS, (n) - b); for (int t = 0; t < m; t++) { int i = b + t; vqx_a[t] = vqx_a[t] + (expr); } } dst = vqx_tree(vqx_a); }
#define VQX_BLOCK_MAX(dst, i, n, expr) float dst = -INFINITY; { alignas(64) float vqx_a[16]; for (int t = 0; t < 16; t++) vqx_a[t] = -INFINITY; \
  int b = 0; for (; b + 16 <= (n); b += 16) for (int t = 0; t < 16; t++) { int i = b + t; vqx_a[t] = vqx_max(vqx_a[t], (expr)); } \
  for (; b < (n); b++) { int i = b; dst = vqx_max(dst, (expr)); } for (int t = 0; t < 16; t++) dst = vqx_max(dst, vqx_a[t]); }
#define VQX_BLOCK_COUNT(dst, i, n, expr) vqx_u32 dst = 0u; for (int i = 0; i < (n); i++) dst = dst + ((expr) ? 1u : 0u)
#define VQX_BLOCK_FIRST(dst, i, n, score, place) int dst = 0x7fffffff; { float vqx_s = INFINITY; int vqx_p = 0x7fffffff; \
  for (int i = 0; i < (n); i++) { float vqx_t = (score); int vqx_o = (place); if (vqx_before(vqx_t, vqx_o, i, vqx_s, vqx_p, dst)) { vqx_s = vqx_t; vqx_p = vqx_o; dst = i; } } }
