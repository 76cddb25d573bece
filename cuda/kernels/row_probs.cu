// The sampling law of each row as probabilities: what a drafter hands over of the law that it drew from.
//
// Maths. probs[r][id] = law_weight(law of r, id) * inverse, see law.h: of the very weights that draw_rows draws from, so that
//   a drawn token has a positive probability here.
// Shapes. logits (R, V); laws (R,) from row_law; probs (R, V) float32, NaN in a row without a law.
// Blocks. One per row and tile of 8,192 ids, 256 threads; neighbouring threads read and write neighbouring ids.
// Bytes. R * V * (size + 4), the logits from L2 after row_law.
// Operations. Per id two comparisons, an exponential and 3 in float32.
// Floor. R * V * 4 / bandwidth: 8 rows of 151,936 are 4.9 MB, 1.0 us at 4.8 TB/s.
// Budget. row_probs: 32 registers, 0 KB.
#include "../include/specrs/law.h"
#include "../include/specrs/tile.h"

namespace specrs {

template <class T>
__device__ void row_probs(const void* logits, long long stride, int vocab, const RowLaw* laws, int tiles, float* probs) {
  const long long r = blockIdx.x / tiles;
  const int tile = blockIdx.x % tiles;
  const RowLaw law = laws[r];
  const T* row = static_cast<const T*>(logits) + row_offset(r, stride);
  probs += row_offset(r, vocab);
  const int end = min(vocab - tile * TILE, TILE);
  for (int i = threadIdx.x; i < end; i += blockDim.x) {
    const int id = tile * TILE + i;
    probs[id] = law.status == STATUS_OK ? law_prob(law, id, to_float(row[id])) : __uint_as_float(0x7fc00000u);
  }
}

}  // namespace specrs

#define SPECRS_ROW_PROBS(suffix, T)                                                                                     \
  SPECRS_KERNEL(256, row_probs_##suffix)(const void* logits, long long stride, int vocab, const void* laws, int tiles,  \
                                         float* probs) {                                                                \
    specrs::row_probs<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), tiles, probs);                \
  }                                                                                                                     \
  SPECRS_EXPORT(row_probs_##suffix, 256)
SPECRS_ROW_PROBS(f32, float)
SPECRS_ROW_PROBS(bf16, specrs::bf16)
SPECRS_ROW_PROBS(f16, specrs::f16)
