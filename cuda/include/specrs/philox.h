// Counter-based coins: Philox4x32-10 keyed by (seed, request, position, purpose, index), bit for bit those of
// specrs::uniforms, so that a verdict does not depend on where it was computed.
// Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once
#include "portable.h"

namespace specrs {

enum Purpose : unsigned { PURPOSE_DRAFT = 1, PURPOSE_ACCEPT = 2, PURPOSE_EMIT = 3, PURPOSE_POLICY = 4 };

// A multiple of 2^-53 in [0, 1).
__device__ __forceinline__ double coin(unsigned long long seed, unsigned request, unsigned position, unsigned purpose, unsigned index) {
  unsigned c0 = position, c1 = purpose, c2 = request, c3 = index;
  unsigned k0 = unsigned(seed), k1 = unsigned(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const unsigned long long wide = (unsigned long long)c0 << 32 | c1;
  return double(wide >> 11) * (1.0 / 9007199254740992.0);
}

}  // namespace specrs
