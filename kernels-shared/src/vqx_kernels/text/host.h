// The same bodies as plain loops: one call a block, no threads, no barriers. Sums keep the order of the
// GPU's 256 threads, so the bits agree, and the inner loops fit vector registers.
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(VQX_NO_FMA) || (!defined(__FMA__) && !defined(__aarch64__) && !defined(__ARM_FEATURE_FMA))
#error this processor has no fused multiply-add
#endif
#if defined(__x86_64__) && (!defined(__F16C__) || !defined(__AVX2__))
#error this processor has no AVX2 or F16C
#endif
typedef uint32_t vqx_u32;
typedef int64_t vqx_i64;
typedef _Float16 vqx_half;
struct vqx_bfloat {
  uint16_t bits;
  explicit vqx_bfloat(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    bits = f == f ? uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16) : uint16_t(0x7fc0);
  }
  operator float() const { uint32_t u = uint32_t(bits) << 16; float f; memcpy(&f, &u, 4); return f; }
};
struct vqx_tensor {  // DLPack's: strides count numbers
  char* data;
  int32_t device[2];
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t offset;
  void* first() const { return data + offset; }
  bool by_rows() const {
    int64_t step = 1;
    for (int axis = ndim - 1; strides && axis >= 0; step *= shape[axis--])
      if (shape[axis] > 1 && strides[axis] != step) return false;
    return true;
  }
};
// Eight numbers at a time, spelt out: compilers make of the plain loop what is four times slower.
#if defined(__x86_64__)
#include <immintrin.h>
typedef __m256 vqx_eight;
static inline vqx_eight vqx_none() { return _mm256_setzero_ps(); }
static inline vqx_eight vqx_load(const float* p) { return _mm256_loadu_ps(p); }
static inline vqx_eight vqx_load(const vqx_half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline vqx_eight vqx_load(const vqx_bfloat* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline vqx_eight vqx_add(vqx_eight a, vqx_eight b, vqx_eight c) { return _mm256_fmadd_ps(a, b, c); }
static inline void vqx_store(float* p, vqx_eight a) { _mm256_storeu_ps(p, a); }
// Four times the sum of eight, neighbours first.
static inline void vqx_fold(float* p, const vqx_eight* a) {
  const vqx_eight both = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
}
#else
struct vqx_eight { float v[8]; };
static inline vqx_eight vqx_none() { return vqx_eight{}; }
template <typename T> static inline vqx_eight vqx_load(const T* p) { vqx_eight r; for (int l = 0; l < 8; l++) r.v[l] = float(p[l]); return r; }
static inline vqx_eight vqx_add(vqx_eight a, vqx_eight b, vqx_eight c) { vqx_eight r; for (int l = 0; l < 8; l++) r.v[l] = __builtin_fmaf(a.v[l], b.v[l], c.v[l]); return r; }
static inline void vqx_store(float* p, vqx_eight a) { memcpy(p, a.v, 32); }
static inline void vqx_fold(float* p, const vqx_eight* a) {
  for (int k = 0; k < 4; k++) p[k] = ((a[k].v[0] + a[k].v[1]) + (a[k].v[2] + a[k].v[3])) + ((a[k].v[4] + a[k].v[5]) + (a[k].v[6] + a[k].v[7]));
}
#endif
#define VQX_FN static inline __attribute__((always_inline))
#define VQX_DEV
#define VQX_TG
#define VQX_THREAD
#define VQX_SHARED(T, name, n) alignas(64) T name[n]
#define VQX_BARRIER() ((void)0)
#define VQX_BARRIER_ALL() ((void)0)
VQX_FN float vqx_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
VQX_FN float vqx_rint(float a) { return __builtin_rintf(a); }
VQX_FN float vqx_asfloat(vqx_u32 u) { float f; memcpy(&f, &u, 4); return f; }
VQX_FN vqx_u32 vqx_asbits(float a) { vqx_u32 u; memcpy(&u, &a, 4); return u; }
