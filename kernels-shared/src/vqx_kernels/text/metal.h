// Metal. Some of Apple's compilers contract a * b + c in every math mode, so it is forbidden here.
#pragma METAL fp contract(off)
typedef uint vqx_u32;
typedef long vqx_i64;
#define VQX_FN inline
#define VQX_DEV device
#define VQX_TG threadgroup
#define VQX_THREAD thread
#define VQX_UNROLL _Pragma("clang loop unroll(full)")
#define VQX_SHARED(T, name, n) threadgroup T name[n]
#define VQX_BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)
#define VQX_BARRIER_ALL() threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
VQX_FN float vqx_fma(float a, float b, float c) { return metal::fma(a, b, c); }
VQX_FN float vqx_rint(float a) { return metal::rint(a); }
VQX_FN float vqx_asfloat(vqx_u32 u) { return as_type<float>(u); }
VQX_FN vqx_u32 vqx_asbits(float a) { return as_type<uint>(a); }
VQX_FN float vqx_xor(float v, vqx_u32 m) { return simd_shuffle_xor(v, ushort(m)); }
VQX_FN vqx_u32 vqx_xor(vqx_u32 v, vqx_u32 m) { return simd_shuffle_xor(v, ushort(m)); }
