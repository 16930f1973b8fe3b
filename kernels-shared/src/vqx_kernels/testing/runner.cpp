// Standalone run of one dispatch, for ThreadSanitizer: case file in, report on stderr.
#include "include/msl_engine.h"
#include <stdio.h>
#include <stdlib.h>
extern "C" void msl_entry(void**, const msl_tctx*);
extern "C" int msl_dispatch(msl_entry_t, void**, const uint32_t*, const uint32_t*, const msl_opts*);
extern "C" const char* msl_error();
int main(int, char** a) {
  FILE* f = fopen(a[1], "rb"); uint32_t h[14]; if (fread(h, 4, 14, f) != 14) return 2;
  void* b[64];
  for (uint32_t i = 0; i < h[0]; i++) { uint64_t n; if (fread(&n, 8, 1, f) != 1) return 2; void* p = malloc(n + 64); if (n && fread(p, 1, n, f) != n) return 2; b[i] = p; }
  msl_opts o = {h[7], h[8], h[9], h[10], h[11], h[12], h[13]};
  int rc = msl_dispatch(msl_entry, b, h + 1, h + 4, &o);
  if (rc) fprintf(stderr, "EMU %s\n", msl_error());
  fflush(nullptr); _Exit(rc);
}
