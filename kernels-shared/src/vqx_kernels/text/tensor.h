// Products of 16-bit numbers on CUDA's tensor cores, summed in float32, for a prompt's many queries. A warp holds 16 rows
// of one operand, D numbers long, and takes VQX_LOT of the other at a time from a tile in shared memory; a row of the
// result is shared by the four threads of a quad. Tiles come by copies that go on beside the products.
#define VQX_LOT (TN < 64 ? TN : 64)
#define VQX_PARTS 4  // of what a query sees, at most
// Where a tile has word w of row c: panels of as many numbers of every row as make 128, 64 or 32 bytes, in each of them
// pieces of 16 bytes in an order that changes from row to row, so that what is read at once meets in no bank.
#define VQX_PANEL (D % 64 == 0 ? 64 : D % 32 == 0 ? 32 : 16)
#define VQX_PLACE(c, w) ((w) / (VQX_PANEL / 2) * (TN * VQX_PANEL / 2) + (c) * (VQX_PANEL / 2) \
  + (((w) % (VQX_PANEL / 2) / 4) ^ ((c) * VQX_PANEL / 64 % (VQX_PANEL / 8))) * 4 + (w) % 4)
struct alignas(8) vqx_two { vqx_u32 word[2]; };
#ifdef __CUDACC__
struct alignas(1024) vqx_kilo { vqx_u32 word[256]; };
// How many blocks at a time a multiprocessor shall have registers for, which MLX does not say.
#undef __global__
#define __global__ __attribute__((global)) __launch_bounds__(VQX_THREADS, VQX_BLOCKS)
#else
struct alignas(16) vqx_kilo { vqx_u32 word[256]; };
#endif
// Rows first + c of an array, as `at` places them, to shared memory; behind the last one it again, which nobody counts.
template <int D, int TN, typename T, typename At>
VQX_FN void vqx_bring(vqx_u32* tile, const T* array, At at, int first, int last, vqx_i64 along, bool aligned) {
  if (aligned) {
    constexpr int wide = D / 8;
    constexpr int rows = VQX_THREADS / wide;
    const int d = int(threadIdx.x) % wide;
#pragma unroll 2
    for (int b = 0; b < TN; b += rows) {
      const int c = b + int(threadIdx.x) / wide;
      if ((VQX_THREADS % wide == 0 || c < b + rows) && (TN % rows == 0 || c < TN))
        vqx_copy((vqx_four*)(tile + VQX_PLACE(c, d * 4)), array + at(vqx_min(first + c, last - 1)) + d * 8);
    }
  } else {
#pragma unroll 1
    for (int e = int(threadIdx.x); e < TN * (D / 2); e += VQX_THREADS)
      tile[VQX_PLACE(e / (D / 2), e % (D / 2))] = vqx_pair(array + at(vqx_min(first + e / (D / 2), last - 1)) + e % (D / 2) * 2 * along, along);
  }
}
// Whether rows of D numbers can be copied 16 bytes at a time.
template <typename T> VQX_FN bool vqx_aligned(const T* array, vqx_i64 a, vqx_i64 b, vqx_i64 along) {
  return along == 1 && (a | b) % 8 == 0 && size_t(array) % 16 == 0;
}
// A thread's part of a block's 128 rows from `first` on, 16 of them its warp's, brought through a tile: of 16 numbers at a
// time four words.
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
    const int row = int(threadIdx.x) / 32 * 16 - begin;
    if (row >= 0 && row < TN) {
#pragma unroll
      for (int e = 0; e < D / 4; e++) own[e] = tile[VQX_PLACE(row + e % 2 * 8 + lane / 4, e / 4 * 8 + e % 4 / 2 * 4 + lane % 4)];
    }
  }
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// What a thread wrote, to be seen by Hopper's groups of four warps after a barrier.
#define VQX_SHOWN() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define VQX_EIGHT(a, b) "+f"(a[0]), "+f"(a[1]), "+f"(a[2]), "+f"(a[3]), "+f"(b[0]), "+f"(b[1]), "+f"(b[2]), "+f"(b[3])
#define VQX_ALL(d) VQX_EIGHT(d[0], d[1]), VQX_EIGHT(d[2], d[3]), VQX_EIGHT(d[4], d[5]), VQX_EIGHT(d[6], d[7])
#define VQX_GROUP_MMA(T, type) VQX_FN void vqx_group_mma(T, float (*d)[4], const vqx_u32* a, unsigned long long b, int more) { \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, " \
    "%25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }" \
    : VQX_ALL(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more)); }
VQX_GROUP_MMA(__half, "f16")
VQX_GROUP_MMA(__nv_bfloat16, "bf16")
// Multiplies as below, by such a group: the hardware reads panels of 128 bytes by itself, in the order that they have.
template <int D, int TN, typename T> VQX_FN void vqx_group_multiply(float (*d)[4], const vqx_u32* own, const vqx_u32* tile, int c) {
  const vqx_u32 at = vqx_u32(__cvta_generic_to_shared(tile + c * 32));
  const unsigned long long what = 1ull << 62 | 64ull << 32 | 1ull << 16 | at >> 4;  // 1,024 bytes from 8 rows to the next
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < D / 16; k++)
    vqx_group_mma(T(), d, own + k * 4, what + (k / 4 * (TN * 8) + k % 4 * 2), k > 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" : VQX_ALL(d) :: "memory");
}
#else
#define VQX_SHOWN() ((void)0)
#endif
// A warp's 16 rows times rows c to c + VQX_LOT of a tile: of row 8 * h + lane / 4 and column 8 * o + 2 * (lane % 4) + j
// the product stands at dots[o][2 * h + j].
template <int D, int TN, bool GROUPS, typename T>
VQX_FN void vqx_multiply(float (*dots)[4], const vqx_u32* own, const vqx_u32* tile, int c, int lane) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (GROUPS && VQX_LOT == 64 && VQX_PANEL == 64) return vqx_group_multiply<D, TN, T>(dots, own, tile, c);
#endif
#pragma unroll
  for (int e = 0; e < VQX_LOT / 2; e++) dots[e / 4][e % 4] = 0.0f;
#pragma unroll
  for (int k = 0; k < D / 16; k++)
#pragma unroll
    for (int o = 0; o < VQX_LOT / 8; o++) {
      const int row = c + o * 8 + lane / 4;
      const vqx_u32 both[2] = {tile[VQX_PLACE(row, k * 8 + lane % 4)], tile[VQX_PLACE(row, k * 8 + 4 + lane % 4)]};
      vqx_mma(T(), dots[o], own + k * 4, both);
    }
}
// The first row that the query number s does not see: rows stand in their order, the queries' own last.
#define VQX_SEES(s) (HIDE == 0 ? n : HIDE == 1 ? n - S + (s) + 1 : (n - S + (s) < 1 ? 1 : n - S + (s)))
