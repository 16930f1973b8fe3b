// CUDA's way through many keys, in the place of gpu.h's: a block takes 256 at a time, 64 bytes of each come through
// shared memory while those before are multiplied, and four lanes share four keys. Sums are in the order of vqx_dots:
// a lane has the sums 2 j and 2 j + 1 of the eight of a key. Where rows do not lie 16 bytes by 16 bytes, gpu.h's way.
#define VQX_STAGES (D % 8 == 0 && QB * D <= 2000)  // as many queries as shared memory has room for
#define VQX_STRIDE 5  // pieces of 16 bytes between keys, so that those of eight keys meet in no bank
#define VQX_PLACE (int(vqx_tid) / 32 * 32 + (int(vqx_tid) & 3) * 8 + int(vqx_tid) % 32 / 4)
template <typename T> struct alignas(2 * sizeof(T)) vqx_both { T one, other; };
template <typename T> VQX_FN vqx_both<float> vqx_floats_of(const T* at) {
  const vqx_both<T> both = *(const vqx_both<T>*)at;
  return vqx_both<float>{float(both.one), float(both.other)};
}
VQX_FN vqx_both<float> vqx_floats_of(const __nv_bfloat16* at) {  // one instruction each
  const vqx_u32 word = *(const vqx_u32*)at;
  return vqx_both<float>{vqx_asfloat(word << 16), vqx_asfloat(word & 0xffff0000u)};
}
template <int D, typename T>
VQX_FN void vqx_stage(vqx_four* stage, const T* keys, int across, int count, int from) {
  const int row = int(threadIdx.x / 4u);
  const int part = int(threadIdx.x % 4u);
  const T* own = keys + from + part * int(16 / sizeof(T));
  if (from + part * int(16 / sizeof(T)) < D) {
#pragma unroll
    for (int k = 0; k < 4; k++)
      vqx_copy(stage + row * VQX_STRIDE + part + k * 64 * VQX_STRIDE, own + vqx_i64(vqx_min(row + k * 64, count - 1)) * across);
  }
}
template <int D, typename T>
VQX_FN void vqx_begin(vqx_four* stages, const T* keys, int across, int count) {
  vqx_stage<D>(stages, keys, across, count, 0);
  VQX_COPIED();
  vqx_stage<D>(stages + VQX_THREADS * VQX_STRIDE, keys, across, count, int(64 / sizeof(T)));
  VQX_COPIED();
}
template <int QB, int D, typename T>
VQX_FN void vqx_products(float* dots, vqx_four* stages, const T* keys, int across, int count, const float* asked) {
  constexpr int piece = 64 / sizeof(T);
  const int lane = int(threadIdx.x) % 32;
  const int row = int(threadIdx.x) / 32 * 32 + lane / 4;
  const int own = lane % 4 * 2;
  const bool busy = row - lane / 4 < count;  // behind the last key a warp has nothing to do
  float sum[4][QB][2];
#pragma unroll
  for (int e = 0; e < 8 * QB; e++) sum[e / (2 * QB)][e / 2 % QB][e % 2] = 0.0f;
  for (int from = 0; from < D; from += piece) {
    VQX_AWAIT(1);
    VQX_BARRIER();
    vqx_four* stage = stages + from / piece % 2 * VQX_THREADS * VQX_STRIDE;
    const T* tile = (const T*)(stage + row * VQX_STRIDE) + own;
#pragma unroll(QB > 4 ? 1 : 2)  // as far as registers for three blocks a multiprocessor allow
    for (int d = 0; d < piece && busy; d += 8) {
      if (D % piece != 0 && from + d >= D) break;
      vqx_both<float> key[4];
#pragma unroll
      for (int k = 0; k < 4; k++) key[k] = vqx_floats_of(tile + k * 8 * VQX_STRIDE * int(16 / sizeof(T)) + d);
#pragma unroll
      for (int q = 0; q < QB; q++) {
        const vqx_both<float> x = *(const vqx_both<float>*)(asked + q * D + from + d + own);
#pragma unroll
        for (int k = 0; k < 4; k++) {
          sum[k][q][0] = vqx_fma(key[k].one, x.one, sum[k][q][0]);
          sum[k][q][1] = vqx_fma(key[k].other, x.other, sum[k][q][1]);
        }
      }
    }
    VQX_BARRIER();
    if (D > 2 * piece) vqx_stage<D>(stage, keys, across, count, from + 2 * piece);
    VQX_COPIED();
  }
  // neighbours first, then lanes 1 and 2 apart, which hand each other half of what they have
  const bool odd = lane & 1;
  const bool far = lane & 2;
#pragma unroll
  for (int q = 0; q < QB; q++) {
    float each[4];
#pragma unroll
    for (int k = 0; k < 4; k++) each[k] = sum[k][q][0] + sum[k][q][1];
    const float low = (odd ? each[1] : each[0]) + vqx_xor(odd ? each[0] : each[1], 1u);
    const float high = (odd ? each[3] : each[2]) + vqx_xor(odd ? each[2] : each[3], 1u);
    dots[q] = (far ? high : low) + vqx_xor(far ? low : high, 2u);
  }
}
template <int QB, int D, typename T>
VQX_FN int vqx_key(float* dots, vqx_four* stages, bool staged, bool begun, const T* keys, int b, int last, vqx_i64 across, vqx_i64 along, const float* asked, int place, int lane) {
  const int i = vqx_min(b + place, last - 1);
  if (staged && !begun) vqx_begin<D>(stages, keys + b * across, int(across), last - b);
  if (staged) vqx_products<QB, D>(dots, stages, keys + b * across, int(across), last - b, asked);
  else vqx_dots<QB, D>(dots, keys + i * across, along, asked, lane);
  return i;
}
#undef VQX_DOTS
#undef VQX_BEGIN
#undef VQX_EACH_KEY
#undef VQX_OWN
#define VQX_DOTS(dots) float dots[QB]; VQX_SHARED(vqx_four, vqx_stages, VQX_STAGES ? 2 * VQX_THREADS * VQX_STRIDE : 1)
#define VQX_BEGIN(first, last, keys, across, along) \
  const bool vqx_staged = VQX_STAGES && (along) == 1 && (across) % 8 == 0 && (across) >> 31 == 0 && size_t(keys) % 16 == 0; \
  if (vqx_staged) vqx_begin<D>(vqx_stages, (keys) + (first) * (across), int(across), (last) - (first))
#define VQX_EACH_KEY(i, first, last, dots, keys, across, along, asked) \
  for (int vqx_b = (first); vqx_b < (last); vqx_b += vqx_staged ? VQX_THREADS : VQX_KEYS) \
    for (int i = vqx_key<QB, D>(dots, vqx_stages, vqx_staged, vqx_b == (first), keys, vqx_b, last, across, along, asked, vqx_staged ? VQX_PLACE : VQX_KEY, VQX_LANE), vqx_once = 1; vqx_once; vqx_once = 0)
#define VQX_OWN(last) (vqx_staged ? vqx_b + VQX_PLACE < (last) : VQX_LANE == 0 && vqx_b + VQX_KEY < (last))
