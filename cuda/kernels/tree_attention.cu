// Attention of draft trees over a cache, without a mask in memory: shared prefix and tree suffix in one sweep of splits.
//
// Maths. Row i of request b sees every slot s < P (its committed prefix, P = lengths[b]) and slot P + j where bit j of its
//   visibility is set. out = softmax(q k / sqrt(D)) v. The slots of a request are cut into splits; each split keeps its
//   own softmax (running maximum and sum), and merge_attention joins them: w_i = 2^(lse_i - max), out = sum w_i out_i / sum w_i.
//   Prefix tiles test no bit; only tiles that reach into the suffix do. Rows of several branches that share one prefix
//   (D2SD, SSD) are one request whose bits keep the branches apart: the prefix is read once for all of them.
//   A split has least_part slots at least, so a request takes the splits that it would take alone, whatever a longer
//   neighbour makes of the grid; of those it leaves, the log-sum-exp says so.
// Shapes. q (R, Hq, D), R rows anchor first; keys and values in slots: address = base + page * page_stride + head * head_stride
//   + (slot % page_size) * slot_stride (elements), page from block_table (B, pages) or b itself. Or each request has tensors
//   (Hkv, slots[b], D) of its own, whose addresses (2, B) are those of the keys, then of the values; nobody checks these, nor
//   slots (B,) int64: they are the host's own, not values of a round. The rows' own keys lie in slots P + row; visibility
//   (R, words) 64-bit; partial (splits, R, Hq, D) float32, lse (splits, R, Hq) float32 (log2).
//   Nothing is seen, out 0 and lse -inf, by a request whose slots pass the cache, by one whose row_ptr is no range of rows, by
//   rows that no request owns, and by rows of a request from most_rows on; of a page that is none of `pages`, no slot is seen.
//   A query that is NaN, or a key that is and is seen, makes a row's out and lse NaN. With tensor cores a slot that a row does
//   not see has weight 0, not no part: a value that is NaN in a tree's slot reaches all rows of its request.
// Blocks. tree_attention_T_D: grid (splits * m_tiles, Hkv, B), 128 threads. A block takes 64 (row, head of the group) pairs,
//   16 per warp, against 64 keys at a time (32 at D = 256): tensor-core products of 16 x 8 x 16, keys and values two
//   stages deep through asynchronous copies. tree_attention_plain_T: one warp per (row, head, split), any D up to 256 that is a
//   multiple of 32; the branch for float32 and the yardstick in tests. merge_attention_T: one block of 256 threads per (row, head),
//   of which D work.
// Bytes. Per request and kv head the prefix once from memory, 2 * P * D * 2 B, and once more from L2 for each further 64 of its
//   rows * group; q and out beside it; partials of splits * R * Hq * (D + 1) * 4 written and read again, in L2 while they fit.
//   Plain: 2 * P * D * size for every row and query head, Hq / Hkv * R times the cache, from L1 and L2 where neighbours share.
// Operations. 4 R Hq P D in tensor cores, R Hq P exponentials; plain: 4 R Hq P D in float32, five shuffles per key.
// Floor. B * Hkv * 4 P D / bandwidth: P = 32k, 8 heads of 128, one request: 134 MB, 28 us at 4.8 TB/s, and for 16 rows of 32
//   heads in 32 splits 8.5 MB of partials each way. The products of 64 x 32k x 128 x 4 x 8 heads are 8.6 GFLOP, 15 us at 590
//   TFLOP/s, which is what mma.sync reaches on sm_90 (60 % of the 989 of wgmma): bound by memory up to 64 rows * group per head.
// Budget. tree_attention_64: 168 registers, 0 KB; tree_attention_128: 220 registers, 0 KB; tree_attention_256: 255 registers, 0 KB;
//   tree_attention_plain: 72 registers, 0 KB; merge_attention: 48 registers, 0 KB (and 46 / 87 / 101 KB that a launch asks for).
#include "../include/specrs/law.h"
#include "../include/specrs/tensor_core.h"

namespace specrs {

struct CacheView {
  const void* keys;
  const void* values;
  const int* block_table;
  int table_width, pages, page_size;
  long long page_stride, head_stride, slot_stride;
};

// One cache for all requests, or the addresses and slots of each one's own.
struct Caches {
  CacheView common;
  const long long* addresses;
  const long long* slots;
};

// Where request b's slots lie. Those of a cache of its own are one page.
__device__ __forceinline__ CacheView cache_of(const Caches& caches, int requests, int b, int dim) {
  if (!caches.addresses) return caches.common;
  const int page_size = int(caches.slots[b]);
  return CacheView{reinterpret_cast<const void*>(caches.addresses[b]),
                   reinterpret_cast<const void*>(caches.addresses[requests + b]),
                   nullptr, 0, b + 1, page_size, 0, row_offset(page_size, dim), dim};
}

// Negative where the block table names no page of the cache.
__device__ __forceinline__ long long slot_offset(const CacheView& cache, int b, int head, long long slot) {
  const unsigned number = unsigned(slot) / unsigned(cache.page_size), place = unsigned(slot) % unsigned(cache.page_size);
  const long long page = cache.block_table ? cache.block_table[row_offset(b, cache.table_width) + number] : b;
  if (page < 0 || page >= cache.pages) return -1;
  return row_offset(page, cache.page_stride) + row_offset(head, cache.head_stride) + row_offset(place, cache.slot_stride);
}

// Slots of a request that may be read: none where its lengths pass the cache.
__device__ __forceinline__ long long slots_in_use(const CacheView& cache, long long prefix, long long rows) {
  const long long capacity = (long long)cache.page_size * (cache.block_table ? cache.table_width : 1);
  return prefix >= 0 && prefix <= capacity - rows ? prefix + rows : 0;
}

// Splits that a request's slots are cut into, of those of the launch.
__device__ __forceinline__ int splits_of(long long total, int splits, int least_part) {
  return int(min(max(unsigned(total) / unsigned(least_part), 1u), unsigned(splits)));
}

__device__ __forceinline__ bool sees(const unsigned long long* bits, int words, long long node) {
  return node >> 6 < words && bits[node >> 6] >> (node & 63) & 1;
}

template <int D>
struct AttentionShape {
  static constexpr int ROWS = 64, THREADS = 128;
  static constexpr int KEYS = D == 256 ? 32 : 64;
  static constexpr int PITCH = D + 8;  // elements; 16 bytes more than a row, so that 8 rows start in 8 different banks.
                                       // Behind a key of a paged cache they say whether there is one.
  static constexpr int STAGE = 2 * KEYS * PITCH;
  static constexpr int BYTES = 2 * (ROWS * PITCH + 2 * STAGE);
};

template <class T, int D>
__device__ __forceinline__ void tree_attention(const void* q_, const Caches& caches, const long long* lengths,
                                               const long long* row_ptr, const unsigned long long* visibility, int words,
                                               int q_heads, int kv_heads, float scale, int splits, int least_part, int m_tiles,
                                               long long rows_total, float* partial, float* lse, T* shared) {
  using Shape = AttentionShape<D>;
  constexpr int KEYS = Shape::KEYS, PITCH = Shape::PITCH, CHUNKS = D / 8, KEY_TILES = KEYS / 8, DIM_TILES = D / 8;
  const int split = int(blockIdx.x) / m_tiles, m_first = int(blockIdx.x) % m_tiles * Shape::ROWS;
  const int head = blockIdx.y, b = blockIdx.z, group = q_heads / kv_heads;
  const long long first_row = row_ptr[b], prefix = lengths[b];
  const int rows = has_rows(row_ptr, rows_total, b) ? int(row_ptr[b + 1] - first_row) : 0, pairs = rows * group;
  if (m_first >= pairs) return;
  const CacheView cache = cache_of(caches, int(gridDim.z), b, D);
  const long long total = slots_in_use(cache, prefix, rows), stride = row_offset(splits_of(total, splits, least_part), KEYS);
  const long long per_split = (total + stride - 1) / stride * KEYS;
  const long long begin = per_split * split, end = begin + per_split < total ? begin + per_split : total;
  const auto place = [&](int m) {  // of a pair in lse
    return row_offset(split * rows_total + first_row + m / group, q_heads) + head * group + m % group;
  };
  if (begin >= end) {  // merge_attention reads no more of a split that saw nothing
    const int m = m_first + int(threadIdx.x);
    if (int(threadIdx.x) < Shape::ROWS && m < pairs) lse[place(m)] = negative_infinity();
    return;
  }

  T* q_tile = shared;
  T* stages = shared + Shape::ROWS * PITCH;
  const T* q = static_cast<const T*>(q_);
  for (int i = threadIdx.x; i < Shape::ROWS * CHUNKS; i += Shape::THREADS) {
    const int m = m_first + i / CHUNKS, column = i % CHUNKS * 8;
    Chunk c{{0, 0, 0, 0}};
    if (m < pairs)
      c = load_chunk(q + row_offset(first_row + m / group, (long long)q_heads * D) + (head * group + m % group) * D + column);
    store_chunk(q_tile + i / CHUNKS * PITCH + column, c);
  }
  const auto fetch = [&](long long slot, int stage) {
    T* keys = stages + stage * Shape::STAGE;
    T* values = keys + KEYS * PITCH;
    for (int i = threadIdx.x; i < KEYS * CHUNKS; i += Shape::THREADS) {
      const long long s = slot + i / CHUNKS;
      const int place = i / CHUNKS * PITCH + i % CHUNKS * 8;
      const long long from = s < end ? slot_offset(cache, b, head, s) : -1;
      if (from >= 0) {
        copy_async(keys + place, static_cast<const T*>(cache.keys) + from + i % CHUNKS * 8);
        copy_async(values + place, static_cast<const T*>(cache.values) + from + i % CHUNKS * 8);
      } else {  // weight 0 times what happens to lie in the values could be NaN
        store_chunk(keys + place, Chunk{{0, 0, 0, 0}});
        store_chunk(values + place, Chunk{{0, 0, 0, 0}});
      }
      if (cache.block_table && i % CHUNKS == 0) keys[place + D].bits = from >= 0;
    }
    commit_copies();
  };

  const int quad_row = lane_id() / 4, quad_column = 2 * (lane_id() % 4);
  const int m_mine[2] = {m_first + warp_id() * 16 + quad_row, m_first + warp_id() * 16 + quad_row + 8};
  const unsigned long long* bits[2];
#pragma unroll
  for (int h = 0; h < 2; h++) bits[h] = visibility + row_offset(first_row + min(m_mine[h], pairs - 1) / group, words);
  float out[DIM_TILES][4];
#pragma unroll
  for (int n = 0; n < DIM_TILES; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) out[n][i] = 0.f;
  float largest[2] = {negative_infinity(), negative_infinity()}, sum[2] = {0.f, 0.f};

  fetch(begin, 0);
  int stage = 0;
  for (long long slot = begin; slot < end; slot += KEYS, stage ^= 1) {
    if (slot + KEYS < end) {
      fetch(slot + KEYS, stage ^ 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const T* keys = stages + stage * Shape::STAGE;
    const T* values = keys + KEYS * PITCH;
    float score[KEY_TILES][4];
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[n][i] = 0.f;
    const auto word = [](const T* at) { return *reinterpret_cast<const unsigned*>(at); };
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      const T* row = q_tile + (warp_id() * 16 + quad_row) * PITCH + k + quad_column;
      const FragmentA a{{word(row), word(row + 8 * PITCH), word(row + 8), word(row + 8 * PITCH + 8)}};
#pragma unroll
      for (int n = 0; n < KEY_TILES; n++) {
        const T* key = keys + (n * 8 + quad_row) * PITCH + k + quad_column;
        multiply_add<T>(score[n], a, FragmentB{{word(key), word(key + 8)}});
      }
    }
    const bool in_prefix = slot + KEYS <= prefix;
    float peak[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const long long s = slot + n * 8 + quad_column + (i & 1);
        bool seen = in_prefix || (s < end && (s < prefix || sees(bits[i >> 1], words, s - prefix)));
        if (cache.block_table) seen &= keys[int(s - slot) * PITCH + D].bits != 0;
        score[n][i] = seen ? score[n][i] * scale : negative_infinity();
        peak[i >> 1] = fmaxf(peak[i >> 1], score[n][i]);
      }
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      peak[h] = fmaxf(peak[h], __shfl_xor_sync(FULL_WARP, peak[h], 1));
      peak[h] = fmaxf(peak[h], __shfl_xor_sync(FULL_WARP, peak[h], 2));
      base[h] = peak[h] == negative_infinity() ? 0.f : peak[h];  // a row that has seen nothing yet keeps weights of 0
      const float shrink = exp2_nonpositive(largest[h] - base[h]);
      largest[h] = peak[h];
      sum[h] *= shrink;
#pragma unroll
      for (int n = 0; n < DIM_TILES; n++) {
        out[n][2 * h] *= shrink;
        out[n][2 * h + 1] *= shrink;
      }
    }
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        score[n][i] = exp2_or_nan(score[n][i] - base[i >> 1]);
        sum[i >> 1] += score[n][i];
      }
#pragma unroll
    for (int k = 0; k < KEY_TILES; k += 2) {
      const FragmentA a{{pack<T>(score[k][0], score[k][1]), pack<T>(score[k][2], score[k][3]),
                         pack<T>(score[k + 1][0], score[k + 1][1]), pack<T>(score[k + 1][2], score[k + 1][3])}};
#pragma unroll
      for (int n = 0; n < DIM_TILES; n += 2) {
        unsigned v[4];
        load_transposed(v, values + (k * 8 + lane_id() % 16) * PITCH + n * 8 + lane_id() / 16 * 8);
        multiply_add<T>(out[n], a, FragmentB{{v[0], v[1]}});
        multiply_add<T>(out[n + 1], a, FragmentB{{v[2], v[3]}});
      }
    }
    __syncthreads();  // the next fetch writes the stage that was just read
  }

#pragma unroll
  for (int h = 0; h < 2; h++) {
    sum[h] += __shfl_xor_sync(FULL_WARP, sum[h], 1);
    sum[h] += __shfl_xor_sync(FULL_WARP, sum[h], 2);
    if (m_mine[h] >= pairs) continue;
    const long long at = place(m_mine[h]);
    const float inverse = sum[h] == 0.f ? 0.f : 1.f / sum[h];
#pragma unroll
    for (int n = 0; n < DIM_TILES; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) partial[row_offset(at, D) + n * 8 + quad_column + i] = out[n][2 * h + i] * inverse;
    if (lane_id() % 4 == 0) lse[at] = sum[h] == 0.f ? negative_infinity() : largest[h] + log2f(sum[h]);
  }
}

template <class T>
__device__ __forceinline__ void tree_attention_plain(const void* q_, const Caches& caches, const long long* lengths,
                                                     const long long* row_ptr, int requests, const unsigned long long* visibility,
                                                     int words, int q_heads, int kv_heads, int dim, float scale, int splits,
                                                     int least_part, long long rows_total, float* partial, float* lse) {
  constexpr int MOST = 8;  // elements per lane: D <= 256
  const long long unit = (long long)blockIdx.x * (blockDim.x >> 5) + warp_id();
  if (unit >= rows_total * q_heads * splits) return;
  const int q_head = int(unit % q_heads);
  const long long row = unit / q_heads % rows_total, split = unit / q_heads / rows_total;
  const int b = request_of_row(row_ptr, requests, row), head = q_head / (q_heads / kv_heads), share = dim / 32;
  const CacheView cache = cache_of(caches, requests, b, dim);
  const long long prefix = lengths[b], rows = row_ptr[b + 1] - row_ptr[b];
  const long long total = is_among(row_ptr, rows_total, b, row) ? slots_in_use(cache, prefix, rows) : 0;
  const int own_splits = splits_of(total, splits, least_part);
  const long long per_split = (total + own_splits - 1) / own_splits, begin = per_split * split;
  const long long end = begin + per_split < total ? begin + per_split : total;
  const T* q = static_cast<const T*>(q_) + row_offset(row_offset(row, q_heads) + q_head, dim);
  float mine[MOST], out[MOST], largest = negative_infinity(), sum = 0.f;
#pragma unroll
  for (int i = 0; i < MOST; i++) {
    mine[i] = i < share ? to_float(q[i * 32 + lane_id()]) : 0.f;
    out[i] = 0.f;
  }
  for (long long s = begin; s < end; s++) {
    if (s >= prefix && !sees(visibility + row_offset(row, words), words, s - prefix)) continue;
    const long long from = slot_offset(cache, b, head, s);
    if (from < 0) continue;
    float dot = 0.f;
#pragma unroll
    for (int i = 0; i < MOST; i++)
      if (i < share) dot += mine[i] * to_float(static_cast<const T*>(cache.keys)[from + i * 32 + lane_id()]);
    const float score = warp_sum(dot) * scale, peak = fmaxf(largest, score);
    const float base = peak == negative_infinity() ? 0.f : peak;
    const float shrink = exp2_nonpositive(largest - base), weight = exp2_or_nan(score - base);
    largest = peak;
    sum = sum * shrink + weight;
#pragma unroll
    for (int i = 0; i < MOST; i++)
      if (i < share) out[i] = out[i] * shrink + weight * to_float(static_cast<const T*>(cache.values)[from + i * 32 + lane_id()]);
  }
  const long long at = row_offset(split * rows_total + row, q_heads) + q_head;
  const float inverse = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
  for (int i = 0; i < MOST; i++)
    if (i < share) partial[row_offset(at, dim) + i * 32 + lane_id()] = out[i] * inverse;
  if (lane_id() == 0) lse[at] = sum == 0.f ? negative_infinity() : largest + log2f(sum);
}

// Joins the splits of one (row, head). A split that saw nothing has lse -inf and is not read; of a row that nothing attended
// from, no split is.
template <class T>
__device__ __forceinline__ void merge_attention(const float* partial, const float* lse, int splits, long long rows, int heads,
                                                int dim, const long long* row_ptr, int requests, int most_rows, void* out,
                                                float* merged) {
  const long long at = blockIdx.x, row = at / heads, pairs = rows * heads;
  const int b = request_of_row(row_ptr, requests, row);
  if (!is_among(row_ptr, rows, b, row) || row - row_ptr[b] >= most_rows) splits = 0;
  float largest = negative_infinity(), sum = 0.f, value = 0.f;
  for (int s = 0; s < splits; s++) largest = fmaxf(largest, lse[row_offset(s, pairs) + at]);
  if (largest == negative_infinity()) largest = 0.f;  // no split saw anything, or what all of them saw is NaN
  for (int s = 0; s < splits; s++) {
    const float weight = exp2_or_nan(lse[row_offset(s, pairs) + at] - largest);
    sum += weight;
    if (weight != 0.f) value += weight * partial[row_offset(row_offset(s, pairs) + at, dim) + threadIdx.x];
  }
  static_cast<T*>(out)[row_offset(at, dim) + threadIdx.x] = from_float<T>(sum == 0.f ? 0.f : value / sum);
  if (merged && threadIdx.x == 0) merged[at] = sum == 0.f ? negative_infinity() : largest + log2f(sum);
}

}  // namespace specrs

// Parameters of a kernel that say where keys and values lie, and what it makes of them.
#define SPECRS_CACHES                                                                                                     \
  const void *keys, const void *values, const int *block_table, int table_width, int pages, int page_size,                \
      long long page_stride, long long head_stride, long long slot_stride, const long long *addresses, const long long *slots
#define SPECRS_GIVEN_CACHES                                                                                               \
  specrs::Caches{{keys, values, block_table, table_width, pages, page_size, page_stride, head_stride, slot_stride},       \
                 addresses, slots}

#define SPECRS_TREE_ATTENTION(suffix, T, D, blocks)                                                                       \
  SPECRS_KERNEL_FEW(128, blocks, tree_attention_##suffix##_##D)(                                                          \
      const void* q, SPECRS_CACHES, const long long* lengths, const long long* row_ptr, const void* visibility,           \
      int words, int q_heads, int kv_heads, float scale, int splits, int least_part, int m_tiles, long long rows,         \
      float* partial, float* lse) {                                                                                       \
    SPECRS_DYNAMIC_SHARED(shared);                                                                                        \
    specrs::tree_attention<T, D>(q, SPECRS_GIVEN_CACHES, lengths, row_ptr,                                                \
                                 static_cast<const unsigned long long*>(visibility), words, q_heads, kv_heads, scale,     \
                                 splits, least_part, m_tiles, rows, partial, lse, reinterpret_cast<T*>(shared));          \
  }                                                                                                                       \
  SPECRS_EXPORT(tree_attention_##suffix##_##D, 128)
SPECRS_TREE_ATTENTION(bf16, specrs::bf16, 64, 3)
SPECRS_TREE_ATTENTION(bf16, specrs::bf16, 128, 2)
SPECRS_TREE_ATTENTION(bf16, specrs::bf16, 256, 1)
SPECRS_TREE_ATTENTION(f16, specrs::f16, 64, 3)
SPECRS_TREE_ATTENTION(f16, specrs::f16, 128, 2)
SPECRS_TREE_ATTENTION(f16, specrs::f16, 256, 1)

#define SPECRS_PLAIN_ATTENTION(suffix, T)                                                                                 \
  SPECRS_KERNEL(128, tree_attention_plain_##suffix)(                                                                      \
      const void* q, SPECRS_CACHES, const long long* lengths, const long long* row_ptr, int requests,                     \
      const void* visibility, int words, int q_heads, int kv_heads, int dim, float scale, int splits, int least_part,     \
      long long rows, float* partial, float* lse) {                                                                       \
    specrs::tree_attention_plain<T>(q, SPECRS_GIVEN_CACHES, lengths, row_ptr, requests,                                   \
                                    static_cast<const unsigned long long*>(visibility), words, q_heads, kv_heads, dim,    \
                                    scale, splits, least_part, rows, partial, lse);                                       \
  }                                                                                                                       \
  SPECRS_EXPORT(tree_attention_plain_##suffix, 128)                                                                       \
  SPECRS_KERNEL(256, merge_attention_##suffix)(const float* partial, const float* lse, int splits, long long rows,        \
                                               int heads, int dim, const long long* row_ptr, int requests,                \
                                               int most_rows, void* out, float* merged) {                                 \
    if (int(threadIdx.x) < dim)                                                                                           \
      specrs::merge_attention<T>(partial, lse, splits, rows, heads, dim, row_ptr, requests, most_rows, out, merged);      \
  }                                                                                                                       \
  SPECRS_EXPORT(merge_attention_##suffix, 256)
SPECRS_PLAIN_ATTENTION(f32, float)
SPECRS_PLAIN_ATTENTION(bf16, specrs::bf16)
SPECRS_PLAIN_ATTENTION(f16, specrs::f16)
