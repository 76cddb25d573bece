// Looks the outcomes of a round up in the speculation cache of SSD.
//
// Maths. hit(b) = the first entry n with keys[n] == queries[b] in all three of (sequence, accepted drafts, bonus token), or -1.
//   A negative sequence pads: as a query it never hits, as an entry it is never found.
// Shapes. keys (N, 3), queries (B, 3), hits (B,), all int64.
// Blocks. One warp per query; lanes take entries in turn, so the first match is the lowest.
// Bytes. B * N * 24 at most, from L2.
// Operations. 3 comparisons per entry and query.
// Floor. One launch.
// Budget. lookup_cache: 32 registers, 0 KB.
#include "../include/specrs/warp.h"

SPECRS_KERNEL(256, lookup_cache)(const long long* keys, int entries, const long long* queries, int requests, long long* hits) {
  using namespace specrs;
  const int b = blockIdx.x * (int(blockDim.x) >> 5) + warp_id();
  if (b >= requests) return;
  const long long sequence = queries[3 * b], accepted = queries[3 * b + 1], token = queries[3 * b + 2];
  int hit = -1;
  for (int base = 0; base < entries && hit < 0 && sequence >= 0; base += 32) {
    const int n = base + lane_id();
    const bool same = n < entries && keys[3LL * n] == sequence && keys[3LL * n + 1] == accepted && keys[3LL * n + 2] == token;
    const unsigned found = __ballot_sync(FULL_WARP, same);
    if (found) hit = base + __ffs(int(found)) - 1;
  }
  if (lane_id() == 0) hits[b] = hit;
}
SPECRS_EXPORT(lookup_cache, 256)
