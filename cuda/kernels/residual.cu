// Drawing from the residual of a rejection, or from the whole law, at one site per request.
//
// Maths. Weights max(0, a p(y) - b q(y)) without one excluded id (draw.h), normalised by their sum. An empty residual
//   (p equals q up to rounding) and a draft row that is no law fall back to p, with a status.
// Shapes. sites (S,) of 8 words; laws, law_masses from row_law; masses (S, tiles) float64; emit (R,) float64.
// Blocks. residual_masses: grid S * tiles, 256 threads; a site that draws from p itself copies the law's masses.
//   residual_draw: one block per request, which reads one tile again.
// Bytes. One row of p (L2 after row_partials) and one of q (V * 4, first read) per site; idle sites none.
// Operations. Per id of a site an exponential and 4 in float32, per 16 bytes of logits an addition in float64.
// Floor. S * V * 4 / bandwidth: 8 requests with V = 151,936 are 4.9 MB, 1.0 us at 4.8 TB/s.
// Budget. residual_masses: 64 registers, 1 KB; residual_draw: 80 registers, 1 KB.
#include "../include/specrs/draw.h"

namespace specrs {

__device__ __forceinline__ bool draws_whole_law(const DrawSite& s) { return s.draft_scale == 0.f && s.exclude < 0; }

template <class T>
__device__ void residual_mass(const void* logits, long long stride, int vocab, const RowLaw* laws, const double* law_masses,
                              int tiles, const DrawSite* sites, const DraftLaw& draft, double* masses, BlockScratch& scratch) {
  const long long s = blockIdx.x / unsigned(tiles);
  const int tile = int(blockIdx.x % unsigned(tiles));
  const DrawSite site = sites[s];
  if (site.row < 0 || is_taken(site)) return;
  const RowLaw law = laws[site.row];
  if (law.status != STATUS_OK) return;
  double mass;
  if (draws_whole_law(site)) {
    mass = law.rate == 0.f ? 1.0 : law_masses[row_offset(site.row, tiles) + tile];
  } else {
    const Tile<T> row(static_cast<const T*>(logits) + row_offset(site.row, stride), vocab);
    mass = tile_mass(row, law, site, draft, tile, scratch);
  }
  if (threadIdx.x == 0) masses[row_offset(s, tiles) + tile] = mass;
}

// Draws at site `s` of a request; every thread returns the id. `status` keeps a fault that was found before.
template <class T>
__device__ int residual_draw(const void* logits, long long stride, int vocab, const RowLaw* laws, const double* law_masses,
                             int tiles, DrawSite site, const DraftLaw& draft, const double* masses, const double* emit,
                             BlockScratch& scratch, int& status) {
  status = site.status;
  if (site.row < 0) return -1;
  RowLaw law = laws[site.row];
  if (law.status != STATUS_OK) {
    status = law.status;
    return -1;
  }
  if (is_taken(site)) return site.exclude;
  const Tile<T> row(static_cast<const T*>(logits) + row_offset(site.row, stride), vocab);
  double total = 0.0, before = 0.0;
  for (int i = 0; i < tiles; i++) total += masses[i];
  if (!(total > 0.0)) {
    if (status == STATUS_OK) status = is_nan(float(total)) ? STATUS_DRAFT_NAN : STATUS_RESIDUAL_EMPTY;
    site = DrawSite{site.row, -1, 1.f, 0.f, -1, status};
  }
  if (draws_whole_law(site)) {
    if (law.rate == 0.f) return law.argmax;
    law.inverse = 1.f;  // the law's masses are weights relative to its largest
    masses = law_masses + row_offset(site.row, tiles);
    total = 0.0;
    for (int i = 0; i < tiles; i++) total += masses[i];
  }
  const double goal = emit[site.row] * total;
  const int tile = find_tile(masses, tiles, goal, before);
  return draw_in_tile(row, law, site, draft, tile, before, goal, scratch);
}

}  // namespace specrs

#define SPECRS_RESIDUAL(suffix, T)                                                                                        \
  SPECRS_KERNEL_FEW(256, 4, residual_masses_##suffix)(const void* logits, long long stride, int vocab, const void* laws,  \
                                               const double* law_masses, int tiles, const void* sites, const float* dense, \
                                               const long long* sparse_ids, const float* sparse_probs, int width,         \
                                               double* masses) {                                                          \
    __shared__ specrs::BlockScratch scratch;                                                                              \
    specrs::residual_mass<T>(logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), law_masses, tiles,          \
                             static_cast<const specrs::DrawSite*>(sites),                                                 \
                             specrs::DraftLaw{dense, sparse_ids, sparse_probs, width}, masses, scratch);                  \
  }                                                                                                                       \
  SPECRS_EXPORT(residual_masses_##suffix, 256)                                                                            \
  /* site_of (B,): which site each request draws at, -1 - status for none; or null for its own number. */                 \
  SPECRS_KERNEL_FEW(256, 3, residual_draw_##suffix)(const void* logits, long long stride, int vocab, const void* laws,    \
                                             const double* law_masses, int tiles, const void* sites, const int* site_of,  \
                                             const float* dense, const long long* sparse_ids, const float* sparse_probs,  \
                                             int width, const double* masses, const double* emit, long long* bonus,       \
                                             int* status) {                                                               \
    __shared__ specrs::BlockScratch scratch;                                                                              \
    const int s = site_of ? site_of[blockIdx.x] : int(blockIdx.x);                                                        \
    int outcome = -1 - s;                                                                                                 \
    const int id = s < 0 ? -1 : specrs::residual_draw<T>(                                                                 \
        logits, stride, vocab, static_cast<const specrs::RowLaw*>(laws), law_masses, tiles,                               \
        static_cast<const specrs::DrawSite*>(sites)[s], specrs::DraftLaw{dense, sparse_ids, sparse_probs, width},         \
        masses + specrs::row_offset(s, tiles), emit, scratch, outcome);                                                   \
    if (threadIdx.x == 0) {                                                                                               \
      bonus[blockIdx.x] = id;                                                                                             \
      status[blockIdx.x] = outcome;                                                                                       \
    }                                                                                                                     \
  }                                                                                                                       \
  SPECRS_EXPORT(residual_draw_##suffix, 256)
SPECRS_RESIDUAL(f32, float)
SPECRS_RESIDUAL(bf16, specrs::bf16)
SPECRS_RESIDUAL(f16, specrs::f16)
