// A warp's product on CUDA's tensor cores, and what goes with it.
#ifdef __CUDACC__
VQX_FN void vqx_mma(__half, float* d, const vqx_u32* a, const vqx_u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
VQX_FN void vqx_mma(__nv_bfloat16, float* d, const vqx_u32* a, const vqx_u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
VQX_FN float vqx_power(float x) {  // 2 to the x
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
VQX_FN vqx_i64 vqx_wide(int a, int b) {  // one instruction, where a compiler makes several of 64 bits times 64
  vqx_i64 c;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(c) : "r"(a), "r"(b));
  return c;
}
#else  // an emulated warp
VQX_FN vqx_i64 vqx_wide(int a, int b) { return vqx_i64(a) * b; }
template <typename T> VQX_FN void vqx_mma(T, float* d, const vqx_u32* a, const vqx_u32* b) { msl_mma<T>(d, a, b); }
VQX_FN float vqx_power(float x) { return __builtin_exp2f(x); }
#endif
template <typename T> struct vqx_plain;
template <typename T> struct vqx_plain<const T*> { typedef T type; };
template <typename T> VQX_FN vqx_u32 vqx_pair(const T* from, vqx_i64 along) {
  const unsigned short* bits = (const unsigned short*)from;
  return vqx_u32(bits[0]) | vqx_u32(bits[along]) << 16;
}
