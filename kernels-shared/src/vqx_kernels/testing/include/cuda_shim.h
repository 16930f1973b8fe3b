// CUDA kernel text on the same fiber engine: enough for kernels of 32-thread warps; tensor cores are one function.
#pragma once
#include "msl_engine.h"
inline float rintf(float a) { return __builtin_rintf(a); }
extern "C" const msl_tctx* msl_self(void);
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __align__(n)
#define MAX_NDIM 10
#define INFINITY (__builtin_inff())
struct Shape { int v[10]; int operator[](int i) const { return v[i]; } };
struct Strides { int64_t v[10]; int64_t operator[](int i) const { return v[i]; } };
struct msl_dim3 { unsigned x, y, z; };
#define threadIdx (msl_dim3{msl_self()->tpit[0], msl_self()->tpit[1], msl_self()->tpit[2]})
#define blockIdx (msl_dim3{msl_self()->tgpig[0], msl_self()->tgpig[1], msl_self()->tgpig[2]})
#define blockDim (msl_dim3{msl_self()->dtptg[0], msl_self()->dtptg[1], msl_self()->dtptg[2]})
#define gridDim (msl_dim3{msl_self()->tgpg[0], msl_self()->tgpg[1], msl_self()->tgpg[2]})
typedef _Float16 __half; typedef __bf16 __nv_bfloat16;
inline void __syncthreads(int l = __builtin_LINE()) { msl_barrier(l); }
inline void __syncwarp(unsigned = ~0u, int l = __builtin_LINE()) { msl_simd_sync(nullptr, 0, l); }
template <class T> inline T msl_shfl(T v, int src, int l, unsigned mask) { msl_simd_view s = msl_simd_sync(&v, sizeof v, l); T r; if (src < 0 || src > 31 || !(s.active >> src & 1)) return v; __builtin_memcpy(&r, s.slots + 16 * src, sizeof r); return r; }
template <class T> inline T __shfl_xor_sync(unsigned m, T v, int x, int = 32, int l = __builtin_LINE()) { return msl_shfl(v, int(msl_self()->lane) ^ x, l, m); }
template <class T> inline T __shfl_sync(unsigned m, T v, int x, int = 32, int l = __builtin_LINE()) { return msl_shfl(v, x & 31, l, m); }
template <class T> inline T __shfl_down_sync(unsigned m, T v, int x, int = 32, int l = __builtin_LINE()) { return msl_shfl(v, int(msl_self()->lane) + x, l, m); }
inline int __any_sync(unsigned, int p, int l = __builtin_LINE()) { msl_simd_view s = msl_simd_sync(&p, sizeof p, l); int r = 0; for (int i = 0; i < 32; i++) if (s.active >> i & 1) { int q; __builtin_memcpy(&q, s.slots + 16 * i, sizeof q); r |= q; } return r; }
inline float log2f(float a) { return __builtin_log2f(a); }
// mma.m16n8k16: every lane shows its words of both operands, and takes the numbers of its own four sums.
template <class T> inline void msl_mma(float* d, const unsigned* a, const unsigned* b, int l = __builtin_LINE()) {
  T rows[2][16], columns[2][16];
  msl_simd_view s = msl_simd_sync(a, 16, l);
  for (int q = 0; q < 4; q++) for (int w = 0; w < 4; w++) __builtin_memcpy(&rows[w & 1][2 * q + (w >> 1) * 8], s.slots + 16 * (s.lane / 4 * 4 + q) + 4 * w, 4);
  s = msl_simd_sync(b, 8, l);
  for (int j = 0; j < 2; j++) for (int q = 0; q < 4; q++) for (int w = 0; w < 2; w++) __builtin_memcpy(&columns[j][2 * q + w * 8], s.slots + 16 * ((s.lane % 4 * 2 + j) * 4 + q) + 4 * w, 4);
  for (int e = 0; e < 4; e++) { float sum = 0.0f; for (int k = 0; k < 16; k++) sum += float(rows[e / 2][k]) * float(columns[e % 2][k]); d[e] += sum; }
}
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
