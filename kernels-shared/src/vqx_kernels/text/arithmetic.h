// Arithmetic with the same bits on every target: a product never feeds an addition but through fma, so
// that no compiler can contract anything; every sum has one written order; exp is written out.
#define VQX_HIDDEN -1e30f
#define VQX_LARGEST 3.40282347e38f
VQX_FN float vqx_max(float a, float b) { return a < b ? b : a; }  // a NaN in b is passed over
VQX_FN int vqx_min(int a, int b) { return b < a ? b : a; }
// e to the x, x at most 0. Apple's GPUs flush subnormal numbers in every mode, so what lies below e^-60
// (8.8e-27) is 0: then a weight of a row of fewer than 7e11 keys is a normal number.
VQX_FN float vqx_exp(float x) {
  float y = x < -60.0f ? -60.0f : x;
  float n = vqx_rint(y * 1.44269504f);
  float r = vqx_fma(n, -0.693359375f, y);  // ln 2 in two parts
  r = vqx_fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = vqx_fma(p, r, 1.3981999507e-3f);
  p = vqx_fma(p, r, 8.3334519073e-3f);
  p = vqx_fma(p, r, 4.1665795894e-2f);
  p = vqx_fma(p, r, 1.6666665459e-1f);
  p = vqx_fma(p, r, 5.0000001201e-1f);
  p = vqx_fma(p, r, 1.0f);
  p = vqx_fma(p, r, 1.0f);
  vqx_u32 e = vqx_u32(int(n) + 127) << 23;
  return x < -60.0f ? 0.0f : p * vqx_asfloat(e);
}
// The order in which rows go: the lower score, of equal ones the older row, of equal ones the lower slot.
VQX_FN bool vqx_before(float as, int ap, int ai, float bs, int bp, int bi) {
  return as < bs || (as == bs && (ap < bp || (ap == bp && ai < bi)));
}
// Floats as integers in the same order; -0 is 0.
VQX_FN vqx_u32 vqx_ordered(float a) {
  vqx_u32 u = vqx_asbits(a == 0.0f ? 0.0f : a);
  return u >> 31 ? ~u : u | 0x80000000u;
}
// A number in the type of an array, rounded to the nearest, of two to the even one.
template <typename T> VQX_FN void vqx_put(VQX_DEV T* to, size_t at, float x) { to[at] = T(x); }
