// Moves the accepted path's keys and values into place, all layers in one launch, and advances the committed lengths.
//
// Maths. The anchor lies in slot P = lengths[b], node i in slot P + 1 + i. For j = 0 .. accepted - 1: slot P + 1 + path[j] to
//   slot P + 1 + j. Parents precede children, so path is increasing and path[j] >= j: a destination can only be a source
//   that has been read. A path that does not increase from 0 or more, or is longer than S, is none: nothing is moved and the
//   length stays, by which it is known. A thread owns one 16-byte column of a head and moves its slots in ascending order, a few loads ahead
//   of their stores: no barrier, no scratch. Rotary positions stay right, because a node was scored at P + 1 + its depth.
// Shapes. tensors (T,): addresses of the key and value tensors of all layers, laid out alike; slot address = base +
//   page * page_stride + head * head_stride + (slot % page_size) * slot_stride (bytes), page from block_table (B, pages) or
//   b itself; path (B, S), accepted (B,) of a verdict; lengths (B,) int64. capacity: slots of a request; moves beyond it are
//   dropped (padding of a captured graph), as are moves from or to none of `pages`. The addresses and what lies there nobody
//   checks: they are the host's own, not values of a round.
// Blocks. Grid (B * ceil(heads * slot_bytes / 16 / 256), T), 256 threads.
// Bytes. Read and written once: 2 * T * accepted' * heads * slot_bytes, accepted' the nodes that are out of place.
// Operations. Per thread a comparison per node of the path; per 16 bytes two divisions and a table entry; none on the data.
// Floor. That / bandwidth: 64 tensors, 8 requests, 5 nodes, 8 heads of 256 B: 10.5 MB, 2.2 us at 4.8 TB/s.
// Budget. commit_cache: 48 registers, 0 KB; advance_lengths: 24 registers, 0 KB.
#include "../include/specrs/portable.h"

namespace specrs {

constexpr int AHEAD = 4;

// Whether a request's path can be one: nodes from 0 on, each above the last.
__device__ __forceinline__ bool is_path(const int* path, int accepted, int path_stride) {
  bool rises = accepted >= 0 && accepted <= path_stride;
  for (int j = 0; rises && j < accepted; j++) rises = path[j] > (j ? path[j - 1] : -1);
  return rises;
}

}  // namespace specrs

SPECRS_KERNEL(256, commit_cache)(const long long* tensors, const int* block_table, int table_width, int pages, int page_size,
                                 long long page_stride, long long head_stride, long long slot_stride, int heads, int slot_bytes,
                                 const long long* lengths, long long capacity, const int* path, const int* accepted,
                                 int path_stride, int blocks_per_request) {
  using namespace specrs;
  const int b = int(blockIdx.x) / blocks_per_request;
  const int unit = int(blockIdx.x) % blocks_per_request * int(blockDim.x) + int(threadIdx.x);
  const int chunks = slot_bytes / 16;
  if (unit >= heads * chunks) return;
  const int count = accepted[b];
  const long long first = lengths[b] + 1;
  path += row_offset(b, path_stride);
  char* base = reinterpret_cast<char*>(tensors[blockIdx.y]) + row_offset(unit / chunks, head_stride) + unit % chunks * 16;
  const auto address = [&](long long slot) -> char* {
    const unsigned number = unsigned(slot) / unsigned(page_size), place = unsigned(slot) % unsigned(page_size);
    const long long page = block_table ? block_table[row_offset(b, table_width) + number] : b;
    return page >= 0 && page < pages ? base + row_offset(page, page_stride) + row_offset(place, slot_stride) : nullptr;
  };
  if (!is_path(path, count, path_stride) || first < 1 || first + count > capacity) return;
  int begin = 0;
  while (begin < count && path[begin] == begin) begin++;  // already in place
  for (int j = begin; j < count; j += AHEAD) {
    Chunk moved[AHEAD];
    int live = 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (j + i >= count || live < i) continue;
      const int source = path[j + i];
      if (first + source >= capacity) continue;
      const char* from = address(first + source);
      if (!from || !address(first + j + i)) continue;
      moved[i] = load_chunk(from);
      live = i + 1;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (i < live) store_chunk(address(first + j + i), moved[i]);
    if (live < AHEAD) break;
  }
}
SPECRS_EXPORT(commit_cache, 256)

// Grid ceil(B / 256). lengths += accepted + 1 (the anchor and the path) where there is a bonus to be the next anchor;
// requests without one, without rows, or with what is no path stay.
SPECRS_KERNEL(256, advance_lengths)(long long* lengths, const int* path, const int* accepted, const long long* bonus,
                                    int path_stride, int requests) {
  using namespace specrs;
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= requests || bonus[b] < 0) return;
  if (is_path(path + row_offset(b, path_stride), accepted[b], path_stride)) lengths[b] += accepted[b] + 1;
}
SPECRS_EXPORT(advance_lengths, 256)
