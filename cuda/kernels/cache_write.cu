// Writes the new rows of all requests behind their committed slots, keys and values of one layer in one launch.
//
// Maths. Row i of request b goes to slot lengths[b] + i of the request's own cache: a copy, of any element type.
// Shapes. keys and values of the new rows (R, H, slot_bytes), strides in bytes; request b owns rows row_ptr[b] to
//   row_ptr[b + 1]. Caches (H, slots[b], slot_bytes) without gaps; addresses (2, B): those of the keys, then of the values.
//   Nothing is written of rows that no request owns, nor of a request whose length is negative or whose rows pass its slots.
//   The addresses and slots nobody checks: they are the host's own, not values of a round.
// Blocks. Grid (ceil(R * H * slot_bytes / 16 / 256), 2), 256 threads: a thread copies 16 bytes; y is 0 for keys, 1 for values.
// Bytes. Read and written once: 4 * R * H * slot_bytes.
// Operations. Per 16 bytes four divisions and a search among B row pointers; none on the data.
// Floor. One launch: 8 requests of 8 rows, 8 heads of 256 B are 0.5 MB, 0.1 us at 4.8 TB/s.
// Budget. write_caches: 32 registers, 0 KB.
#include "../include/specrs/portable.h"
#include "../include/specrs/requests.h"

SPECRS_KERNEL(256, write_caches)(const void* keys, const void* values, long long key_row_stride, long long key_head_stride,
                                 long long value_row_stride, long long value_head_stride, const long long* addresses,
                                 const long long* slots, const long long* lengths, const long long* row_ptr, int requests,
                                 long long rows, int heads, int slot_bytes) {
  using namespace specrs;
  const int chunks = slot_bytes / 16;
  const long long unit = (long long)blockIdx.x * blockDim.x + threadIdx.x, row = unit / (heads * chunks);
  if (row >= rows) return;
  const int head = int(unit / chunks % heads), column = int(unit % chunks) * 16;
  const int b = request_of_row(row_ptr, requests, row);
  if (!is_among(row_ptr, rows, b, row)) return;
  const long long prefix = lengths[b], capacity = slots[b];
  if (prefix < 0 || prefix > capacity - (row_ptr[b + 1] - row_ptr[b])) return;
  const bool of_values = blockIdx.y != 0;
  const char* from = static_cast<const char*>(of_values ? values : keys) +
                     row_offset(row, of_values ? value_row_stride : key_row_stride) +
                     row_offset(head, of_values ? value_head_stride : key_head_stride);
  char* to = reinterpret_cast<char*>(addresses[(of_values ? requests : 0) + b]) +
             row_offset(row_offset(head, capacity) + prefix + row - row_ptr[b], slot_bytes);
  store_chunk(to + column, load_chunk(from + column));
}
SPECRS_EXPORT(write_caches, 256)
