/* Eight floats at a time, from anywhere in memory. */

#define INLINE static inline __attribute__((always_inline))

typedef float v8 __attribute__((vector_size(32)));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias));

INLINE v8 load(const float *p) { return *(const loose *)p; }
INLINE void store(float *p, v8 x) { *(loose *)p = x; }
