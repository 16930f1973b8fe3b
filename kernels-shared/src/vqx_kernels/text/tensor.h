// Products of 16-bit numbers on CUDA's tensor cores, summed in float32, for a prompt's many queries. A warp's piece is
// 16 rows of one operand times 8 of the other: rows of both are D numbers long, and a row of the result is shared by
// the four threads of a quad. What is awaited comes by copies that go on beside the products.
#define VQX_WIDTH (D / 2 + 4)  // words of a row in shared memory: 16 bytes more than it has, so that no two of 8 meet
struct alignas(16) vqx_four { vqx_u32 word[4]; };
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
VQX_FN void vqx_copy(vqx_four* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(vqx_u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
#define VQX_COPIED() asm volatile("cp.async.commit_group;" ::: "memory")
#define VQX_AWAIT(later) asm volatile("cp.async.wait_group %0;" :: "n"(later) : "memory")
#else  // an emulated warp
template <typename T> VQX_FN void vqx_mma(T, float* d, const vqx_u32* a, const vqx_u32* b) { msl_mma<T>(d, a, b); }
VQX_FN float vqx_power(float x) { return __builtin_exp2f(x); }
VQX_FN void vqx_copy(vqx_four* to, const void* from) { *to = *(const vqx_four*)from; }
#define VQX_COPIED() ((void)0)
#define VQX_AWAIT(later) ((void)0)
#endif
template <typename T> struct vqx_plain;
template <typename T> struct vqx_plain<const T*> { typedef T type; };
template <typename T> VQX_FN vqx_u32 vqx_pair(const T* from, vqx_i64 along) {
  const unsigned short* bits = (const unsigned short*)from;
  return vqx_u32(bits[0]) | vqx_u32(bits[along]) << 16;
}
// Rows first + c of an array, as `at` places them, to shared memory; 0 behind the last one.
template <int D, int TN, typename T, typename At>
VQX_FN void vqx_bring(vqx_u32* tile, const T* array, At at, int first, int last, vqx_i64 along, bool aligned) {
  for (int e = int(threadIdx.x); e < TN * (D / 8); e += VQX_THREADS) {
    const int c = e / (D / 8);
    const int d = e % (D / 8);
    vqx_four* to = (vqx_four*)(tile + c * VQX_WIDTH + d * 4);
    const T* from = array + at(vqx_min(first + c, last - 1)) + d * 8 * along;
    if (first + c >= last) *to = vqx_four{{0u, 0u, 0u, 0u}};
    else if (aligned) vqx_copy(to, from);
    else for (int p = 0; p < 4; p++) to->word[p] = vqx_pair(from + 2 * p * along, along);
  }
}
// Whether rows of D numbers can be copied 16 bytes at a time.
template <typename T> VQX_FN bool vqx_aligned(const T* array, vqx_i64 a, vqx_i64 b, vqx_i64 along) {
  return along == 1 && (a | b) % 8 == 0 && size_t(array) % 16 == 0;
}
// A thread's part of 32 rows from `first` on: of the 16-row piece m, 16 numbers at a time, four words.
template <int D, typename T, typename At>
VQX_FN void vqx_take(vqx_u32* own, const T* array, At at, int first, int last, vqx_i64 along, int lane) {
  for (int m = 0; m < 2; m++)
    for (int h = 0; h < 2; h++) {
      const T* row = array + at(vqx_min(first + m * 16 + h * 8 + lane / 4, last - 1));
#pragma unroll
      for (int k = 0; k < D / 16; k++) {
        own[(m * (D / 16) + k) * 4 + h] = vqx_pair(row + (k * 16 + lane % 4 * 2) * along, along);
        own[(m * (D / 16) + k) * 4 + h + 2] = vqx_pair(row + (k * 16 + 8 + lane % 4 * 2) * along, along);
      }
    }
}
// 32 rows times 16 of the tile from row c on: of row 16 * m + 8 * h + lane / 4 and column 8 * o + 2 * (lane % 4) + j
// the product stands at dots[m][o][2 * h + j].
template <int D, typename T>
VQX_FN void vqx_multiply(float (*dots)[2][4], const vqx_u32* own, const vqx_u32* tile, int c, int lane) {
#pragma unroll
  for (int e = 0; e < 16; e++) dots[e / 8][e / 4 % 2][e % 4] = 0.0f;
#pragma unroll
  for (int k = 0; k < D / 16; k++)
#pragma unroll
    for (int o = 0; o < 2; o++) {
      const vqx_u32* row = tile + (c + o * 8 + lane / 4) * VQX_WIDTH + k * 8 + lane % 4;
      const vqx_u32 both[2] = {row[0], row[4]};
      vqx_mma(T(), dots[0][o], own + k * 4, both);
      vqx_mma(T(), dots[1][o], own + (D / 16 + k) * 4, both);
    }
}
// The first row that the query number s does not see: rows stand in their order, the queries' own last.
#define VQX_SEES(s) (HIDE == 0 ? n : HIDE == 1 ? n - S + (s) + 1 : (n - S + (s) < 1 ? 1 : n - S + (s)))
