// Attention of one query of each head of a group by a warp of tensor cores: rows are its columns, so that what it finds of
// them is what it multiplies their values by. Numbers of a row may be added up in any order, so each thread takes the 16
// bytes that lie together; those of the next tile are on their way while a tile is multiplied.
#define VQX_WARPS 8
#define VQX_THREADS (32 * VQX_WARPS)
#define VQX_LOTS (D > 64 ? 1 : 2)  // of 16 rows, in a tile: as many as registers hold twice
#define VQX_WIDE ((D + 63) / 64)
#define VQX_SLACK 8.0f  // a weight may grow to 2 to that before sums are told of a greater logit
#ifdef __CUDACC__
#undef __global__
#define __global__ __attribute__((global)) __launch_bounds__(VQX_THREADS, 1)
VQX_FN vqx_four vqx_once_read(const void* at) {
  vqx_four a;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a.word[0]), "=r"(a.word[1]), "=r"(a.word[2]), "=r"(a.word[3]) : "l"(at));
  return a;
}
VQX_FN vqx_u32 vqx_low(vqx_u32 a, vqx_u32 b) { return __byte_perm(a, b, 0x5410); }
VQX_FN vqx_u32 vqx_high(vqx_u32 a, vqx_u32 b) { return __byte_perm(a, b, 0x7632); }
VQX_FN vqx_u32 vqx_packed(__half, float a, float b) {
  vqx_u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
  return word;
}
VQX_FN vqx_u32 vqx_packed(__nv_bfloat16, float a, float b) {
  vqx_u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(b), "f"(a));
  return word;
}
#else
template <typename T> VQX_FN vqx_u32 vqx_packed(T, float a, float b) {
  const T both[2] = {T(a), T(b)};
  vqx_u32 word;
  __builtin_memcpy(&word, both, 4);
  return word;
}
VQX_FN vqx_four vqx_once_read(const void* at) { return *(const vqx_four*)at; }
VQX_FN vqx_u32 vqx_low(vqx_u32 a, vqx_u32 b) { return (a & 0xffffu) | b << 16; }
VQX_FN vqx_u32 vqx_high(vqx_u32 a, vqx_u32 b) { return a >> 16 | (b & 0xffff0000u); }
#endif
// Eight numbers of a row: at once where rows lie 16 bytes by 16 bytes.
template <bool EVEN, typename T> VQX_FN vqx_four vqx_eight_of(const T* from, int along) {
  vqx_four a;
  if constexpr (EVEN) a = vqx_once_read(from);
  else for (int w = 0; w < 4; w++) a.word[w] = vqx_pair(from + 2 * w * along, along);
  return a;
}
template <int D> struct vqx_tile { vqx_four key[VQX_LOTS][2][D / 32], value[VQX_LOTS][4][VQX_WIDE]; };
// A tile's rows from `first` on; behind the last one it again, which nobody counts.
template <int D, bool EVEN, typename T>
VQX_FN void vqx_read(vqx_tile<D>& tile, const T* keys, const T* values, int across, int over, int along, int beside, int first, int n, int lane) {
#pragma unroll
  for (int l = 0; l < VQX_LOTS; l++) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < D / 32; j++)
        tile.key[l][h][j] = vqx_eight_of<EVEN>(keys + vqx_wide(vqx_min(first + l * 16 + h * 8 + lane / 4, n - 1), across) + (j * 32 + lane % 4 * 8) * along, along);
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < VQX_WIDE; c++)
        tile.value[l][r][c] = vqx_eight_of<EVEN>(values + vqx_wide(vqx_min(first + l * 16 + r / 2 * 8 + lane % 4 * 2 + r % 2, n - 1), over) + vqx_min(c * 8 + lane / 4, D / 8 - 1) * 8 * beside, beside);
  }
}
// What a thread holds of its warp's sums: of its query the greatest logit so far and its own part of the total; of two
// queries and 2 * 4 * VQX_WIDE channels the values.
template <int D> struct vqx_sums { float most, total, value[4 * VQX_WIDE][4]; };
template <int D, typename T>
VQX_FN void vqx_multiply(vqx_sums<D>& sums, const vqx_tile<D>& tile, const vqx_u32* asked, float factor, int first, int n, int lane) {
  float logit[VQX_LOTS * 4];
  float most = VQX_HIDDEN;
#pragma unroll
  for (int e = 0; e < VQX_LOTS * 2; e++) {
    float dots[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      const vqx_u32 query[4] = {asked[k * 2], 0u, asked[k * 2 + 1], 0u};
      vqx_mma(T(), dots, query, tile.key[e / 2][e % 2][k / 2].word + k % 2 * 2);
    }
#pragma unroll
    for (int o = 0; o < 2; o++) {
      logit[e * 2 + o] = first + e * 8 + lane % 4 * 2 + o < n ? dots[o] * factor : -INFINITY;
      most = vqx_max(most, logit[e * 2 + o]);
    }
  }
  if (__any_sync(0xffffffffu, most > sums.most + VQX_SLACK)) {
    most = vqx_max(vqx_max(sums.most, most), vqx_xor(most, 1u));
    most = vqx_max(most, vqx_xor(most, 2u));
    const float less = vqx_power(sums.most - most);
    sums.most = most;
    sums.total = sums.total * less;
    const float one = __shfl_sync(0xffffffffu, less, lane % 4 * 8);
    const float other = __shfl_sync(0xffffffffu, less, lane % 4 * 8 + 4);
#pragma unroll
    for (int e = 0; e < 8 * VQX_WIDE; e++) {
      sums.value[e / 2][e % 2 * 2] = sums.value[e / 2][e % 2 * 2] * one;
      sums.value[e / 2][e % 2 * 2 + 1] = sums.value[e / 2][e % 2 * 2 + 1] * other;
    }
  }
#pragma unroll
  for (int l = 0; l < VQX_LOTS; l++) {
    vqx_u32 weight[2], rest[2];  // of 16 bits, and what they leave of a weight
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float one = vqx_power(logit[l * 4 + h * 2] - sums.most);
      const float other = vqx_power(logit[l * 4 + h * 2 + 1] - sums.most);
      sums.total = sums.total + (one + other);
      weight[h] = vqx_packed(T(), one, other);
      rest[h] = vqx_packed(T(), one - float(T(one)), other - float(T(other)));
    }
#pragma unroll
    for (int i = 0; i < 4 * VQX_WIDE; i++) {
      vqx_u32 row[4];
#pragma unroll
      for (int r = 0; r < 4; r++) row[r] = tile.value[l][r][i / 4].word[i % 4];
      const vqx_u32 value[4] = {vqx_low(row[0], row[1]), vqx_high(row[0], row[1]), vqx_low(row[2], row[3]), vqx_high(row[2], row[3])};
      vqx_mma(T(), sums.value[i], value, weight);
      vqx_mma(T(), sums.value[i], value, rest);
    }
  }
}
// A warp's tiles: of VQX_WARPS one after another one each.
template <int D, typename T>
VQX_FN void vqx_attend(vqx_sums<D>& sums, const T* keys, const T* values, const vqx_i64* across, const vqx_i64* over, bool even, const vqx_u32* asked, float factor, int n, int lane) {
  constexpr int step = VQX_WARPS * VQX_LOTS * 16;
  vqx_tile<D> one, other;
  int first = int(threadIdx.x) / 32 * VQX_LOTS * 16;
  if (!even) {
#pragma unroll 1
    for (; first < n; first += step) {
      vqx_read<D, false>(one, keys, values, int(across[2]), int(over[2]), int(across[3]), int(over[3]), first, n, lane);
      vqx_multiply<D, T>(sums, one, asked, factor, first, n, lane);
    }
    return;
  }
  const auto read = [&](vqx_tile<D>& tile, int first) {
    if (first < n) vqx_read<D, true>(tile, keys, values, int(across[2]), int(over[2]), 1, 1, first, n, lane);
  };
  read(one, first);
#pragma unroll 1
  for (; first < n; first += 2 * step) {
    read(other, first + step);
    vqx_multiply<D, T>(sums, one, asked, factor, first, n, lane);
    read(one, first + 2 * step);
    if (first + step < n) vqx_multiply<D, T>(sums, other, asked, factor, first + step, n, lane);
  }
}
