// Products of 16-bit numbers on CUDA's tensor cores, summed in float32, for a prompt's many queries. A warp's piece is
// 16 rows of one operand times 8 of the other: rows of both are D numbers long, and a row of the result is shared by
// the four threads of a quad. What is awaited comes by copies that go on beside the products.
// A thread multiplies the numbers 4 * (lane % 4) to + 3 of each 16, of both operands: a sum minds no order.
#define VQX_WIDTH (D / 2 | 8)  // words of a row in shared memory: an odd number of eights, so that of 4 rows none meet
#define VQX_PIECES 2  // 8 columns each that a warp multiplies at once: few, for many warps at a time to have registers
#define VQX_PARTS 4  // of what a query sees, at most
struct alignas(8) vqx_two { vqx_u32 word[2]; };
#ifdef __CUDACC__
// How many blocks at a time a multiprocessor shall have registers for, which MLX does not say.
#undef __global__
#define __global__ __attribute__((global)) __launch_bounds__(VQX_THREADS, VQX_BLOCKS)
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
// Rows first + c of an array, as `at` places them, to shared memory; behind the last one it again, which nobody counts.
template <int D, int TN, typename T, typename At>
VQX_FN void vqx_bring(vqx_u32* tile, const T* array, At at, int first, int last, vqx_i64 along, bool aligned) {
  if (aligned) {
    constexpr int wide = D / 8;
    constexpr int rows = VQX_THREADS / wide;
    const int d = int(threadIdx.x) % wide;
#pragma unroll
    for (int b = 0; b < TN; b += rows) {
      const int c = b + int(threadIdx.x) / wide;
      if ((VQX_THREADS % wide == 0 || c < b + rows) && (TN % rows == 0 || c < TN))
        vqx_copy((vqx_four*)(tile + c * VQX_WIDTH + d * 4), array + at(vqx_min(first + c, last - 1)) + d * 8);
    }
  } else {
#pragma unroll 1
    for (int e = int(threadIdx.x); e < TN * (D / 2); e += VQX_THREADS)
      tile[e / (D / 2) * VQX_WIDTH + e % (D / 2)] = vqx_pair(array + at(vqx_min(first + e / (D / 2), last - 1)) + e % (D / 2) * 2 * along, along);
  }
}
// Whether rows of D numbers can be copied 16 bytes at a time.
template <typename T> VQX_FN bool vqx_aligned(const T* array, vqx_i64 a, vqx_i64 b, vqx_i64 along) {
  return along == 1 && (a | b) % 8 == 0 && size_t(array) % 16 == 0;
}
// A thread's part of a block's 128 rows from `first` on, brought through a tile: of the 16-row piece m of its warp's 32,
// 16 numbers at a time, four words.
template <int D, int TN, typename T, typename At>
VQX_FN void vqx_take(vqx_u32* own, vqx_u32* tile, const T* array, At at, int first, int last, vqx_i64 along, bool aligned) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int begin = 0; begin < 128; begin += TN) {
    if (begin) VQX_BARRIER();
    vqx_bring<D, TN>(tile, array, at, first + begin, last, along, aligned);
    VQX_COPIED();
    VQX_AWAIT(0);
    VQX_BARRIER();
    const int row = int(threadIdx.x) / 32 % 4 * 32 - begin;
    if (row >= 0 && row < TN) {
#pragma unroll
      for (int e = 0; e < D / 4; e++) {
        const int at = (row + e % 4 * 8 + lane / 4) * VQX_WIDTH + e / 4 * 8 + lane % 4 * 2;
        const vqx_two two = *(const vqx_two*)(tile + at);
        own[(e % 4 / 2 * (D / 16) + e / 4) * 4 + e % 2] = two.word[0];
        own[(e % 4 / 2 * (D / 16) + e / 4) * 4 + e % 2 + 2] = two.word[1];
      }
    }
  }
}
// A warp's 32 rows times columns of a tile, 8 * VQX_PIECES at a time; `use` takes a thread's products: of row
// 16 * m + 8 * h + lane / 4 and column c + 8 * o + 2 * (lane % 4) + j the one at [m][o][2 * h + j].
template <int D, typename T, typename Use>
VQX_FN void vqx_through(const vqx_u32* own, const vqx_u32* tile, int first, int last, int lane, Use use) {
#pragma unroll 1
  for (int c = first; c < last; c += 8 * VQX_PIECES) {
    float dots[2][VQX_PIECES][4];
#pragma unroll
    for (int e = 0; e < 8 * VQX_PIECES; e++) dots[e / (4 * VQX_PIECES)][e / 4 % VQX_PIECES][e % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
      for (int o = 0; o < VQX_PIECES; o++) {
        const vqx_two both = *(const vqx_two*)(tile + (c + o * 8 + lane / 4) * VQX_WIDTH + k * 8 + lane % 4 * 2);
        vqx_mma(T(), dots[0][o], own + k * 4, both.word);
        vqx_mma(T(), dots[1][o], own + (D / 16 + k) * 4, both.word);
      }
    use(dots, c);
  }
}
// The first row that the query number s does not see: rows stand in their order, the queries' own last.
#define VQX_SEES(s) (HIDE == 0 ? n : HIDE == 1 ? n - S + (s) + 1 : (n - S + (s) < 1 ? 1 : n - S + (s)))
