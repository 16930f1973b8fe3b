// Copies of 16 or 4 bytes to a block's shared memory on CUDA, which go on beside other work until they are awaited.
struct alignas(16) vqx_four { vqx_u32 word[4]; };
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
VQX_FN void vqx_copy(vqx_four* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(vqx_u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
VQX_FN void vqx_copy(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(vqx_u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
#define VQX_COPIED() asm volatile("cp.async.commit_group;" ::: "memory")
#define VQX_AWAIT(later) asm volatile("cp.async.wait_group %0;" :: "n"(later) : "memory")
#else  // Turing, and emulated: at once
VQX_FN void vqx_copy(vqx_four* to, const void* from) { *to = *(const vqx_four*)from; }
VQX_FN void vqx_copy(float* to, const float* from) { *to = *from; }
#define VQX_COPIED() ((void)0)
#define VQX_AWAIT(later) ((void)0)
#endif
