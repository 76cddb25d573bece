// Collectives of a block. All threads of the block must call them; each begins and ends with a barrier or leaves the
// scratch safe to use again. blockDim.x is a multiple of 32 and at most 1024.
#pragma once
#include "warp.h"

namespace specrs {

// One word per warp and one for the result. A kernel declares it in shared memory and hands it down.
struct BlockScratch {
  double number[32];
  unsigned long long word[32];
  float value[32];
  int id[32];
};

__device__ __forceinline__ int warp_count() { return int(blockDim.x) >> 5; }

// `slots` is one word per warp.
template <class T>
__device__ __forceinline__ T block_sum(T v, T (&slots)[32]) {
  v = warp_sum(v);
  if (lane_id() == 0) slots[warp_id()] = v;
  __syncthreads();
  const T total = warp_sum(lane_id() < warp_count() ? slots[lane_id()] : T(0));
  __syncthreads();
  return total;
}
__device__ __forceinline__ double block_sum(double v, BlockScratch& scratch) { return block_sum(v, scratch.number); }
__device__ __forceinline__ int block_sum(int v, BlockScratch& scratch) { return block_sum(v, scratch.id); }
__device__ __forceinline__ unsigned long long block_sum(unsigned long long v, BlockScratch& scratch) {
  return block_sum(v, scratch.word);
}

__device__ __forceinline__ float block_max(float v, BlockScratch& scratch) {
  v = warp_max(v);
  if (lane_id() == 0) scratch.value[warp_id()] = v;
  __syncthreads();
  const float largest = warp_max(lane_id() < warp_count() ? scratch.value[lane_id()] : negative_infinity());
  __syncthreads();
  return largest;
}

__device__ __forceinline__ int block_min(int v, BlockScratch& scratch) {
  v = warp_min(v);
  if (lane_id() == 0) scratch.id[warp_id()] = v;
  __syncthreads();
  const int smallest = warp_min(lane_id() < warp_count() ? scratch.id[lane_id()] : NO_ID);
  __syncthreads();
  return smallest;
}

// `values` are the words of the scratch that hold a V.
template <class V>
__device__ __forceinline__ BestOf<V> block_best(BestOf<V> v, V (&values)[32], BlockScratch& scratch) {
  v = warp_best(v);
  if (lane_id() == 0) {
    values[warp_id()] = v.value;
    scratch.id[warp_id()] = v.id;
  }
  __syncthreads();
  const int warp = lane_id() < warp_count() ? lane_id() : 0;  // a warp that is counted twice changes nothing
  const BestOf<V> best = warp_best(BestOf<V>{values[warp], scratch.id[warp]});
  __syncthreads();
  return best;
}
__device__ __forceinline__ Best block_best(Best v, BlockScratch& scratch) { return block_best(v, scratch.value, scratch); }

// Whether any thread's predicate holds.
__device__ __forceinline__ bool block_any(bool predicate, BlockScratch& scratch) { return block_min(predicate ? 0 : 1, scratch) == 0; }

// Exclusive prefix sum over the threads, and the total. `slots` is one word per warp.
template <class T>
__device__ __forceinline__ T block_scan(T v, T (&slots)[32], T& total) {
  const T inclusive = warp_scan(v);
  if (lane_id() == 31) slots[warp_id()] = inclusive;
  __syncthreads();
  const T warps = warp_scan(lane_id() < warp_count() ? slots[lane_id()] : T(0));
  total = __shfl_sync(FULL_WARP, warps, warp_count() - 1);
  const T before = __shfl_sync(FULL_WARP, warps, warp_id() ? warp_id() - 1 : 0);
  __syncthreads();
  return inclusive - v + (warp_id() ? before : T(0));
}

}  // namespace specrs
