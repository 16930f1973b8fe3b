// CUDA.
typedef unsigned int vqx_u32;
typedef long long vqx_i64;
#define VQX_FN static __device__ __forceinline__
#define VQX_DEV
#define VQX_TG
#define VQX_THREAD
#define VQX_UNROLL _Pragma("unroll")
#define VQX_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define VQX_BARRIER() __syncthreads()
#define VQX_BARRIER_ALL() __syncthreads()
VQX_FN float vqx_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
VQX_FN float vqx_rint(float a) { return rintf(a); }
VQX_FN float vqx_asfloat(vqx_u32 u) { return __uint_as_float(u); }
VQX_FN vqx_u32 vqx_asbits(float a) { return __float_as_uint(a); }
VQX_FN float vqx_xor(float v, vqx_u32 m) { return __shfl_xor_sync(0xffffffffu, v, int(m)); }
VQX_FN vqx_u32 vqx_xor(vqx_u32 v, vqx_u32 m) { return __shfl_xor_sync(0xffffffffu, v, int(m)); }
