// How the attention bodies read: q = g * S + s is a query of one group, or where FUSE is 1 (sum) or 2 (greatest) the
// logits of the group as one. HIDE: 0 nothing, 1 rows after a query's own, 2 its own too, 3 newer than old.
#define VQX_Q (FUSE ? S : G * S)
#define VQX_HIDES(s, i) (HIDE == 1 ? position[size_t(vqx_row) * n + (i)] > start + (s) \
  : HIDE == 2 ? position[size_t(vqx_row) * n + (i)] >= (start + (s) > 1 ? start + (s) : 1) \
  : HIDE == 3 ? position[size_t(vqx_row) * n + (i)] > start + S - 1 - sizes[1] : false)
#define VQX_LOGIT(q, s, i) (VQX_HIDES(s, i) ? VQX_HIDDEN \
  : FUSE ? vqx_group<FUSE>(logits + size_t(vqx_row) * (G * S) * n + size_t(q) * n + (i), G, size_t(S) * n) \
  : VQX_ADJUST(logits[(size_t(vqx_row) * (G * S) + (q)) * n + (i)], size_t(vqx_row) * n + (i)))
#define VQX_SINK(q) (FUSE ? vqx_group<FUSE>(sinks + (vqx_row % H) * G, G, size_t(1)) : sinks[(vqx_row % H) * G + (q) / S])
// P is a pointer: Metal keeps small arrays in another space than large ones.
template <int HOW, typename P> VQX_FN float vqx_group(P each, int count, size_t step) {
  float one = each[0];
  for (int g = 1; g < count; g++) one = HOW == 1 ? one + each[g * step] : vqx_max(one, each[g * step]);
  return one;
}
