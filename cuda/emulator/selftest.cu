// Kernels with one fault each, to show that the emulator reports it. Never compiled for a device.
#include "../include/specrs/block.h"

// Half of each warp waits for the block, the other half for the warp.
SPECRS_KERNEL(64, divergent_barrier)(int* out) {
  if (threadIdx.x & 1) __syncthreads();
  else __syncwarp();
  out[threadIdx.x] = 1;
}
SPECRS_EXPORT(divergent_barrier, 64)

// A lane leaves before a shuffle of the whole warp.
SPECRS_KERNEL(32, lane_leaves)(int* out) {
  if (threadIdx.x == 3) return;
  out[threadIdx.x] = __shfl_xor_sync(specrs::FULL_WARP, int(threadIdx.x), 1);
}
SPECRS_EXPORT(lane_leaves, 32)

// Lanes of one warp meet at different operations.
SPECRS_KERNEL(32, lanes_disagree)(int* out) {
  if (threadIdx.x & 1) out[threadIdx.x] = __shfl_sync(specrs::FULL_WARP, 1, 0);
  else __syncwarp();
}
SPECRS_EXPORT(lanes_disagree, 32)

// Shared memory is read before anything was written there.
SPECRS_KERNEL(32, reads_unwritten)(float* out) {
  __shared__ float value[32];
  out[threadIdx.x] = value[threadIdx.x];
}
SPECRS_EXPORT(reads_unwritten, 32)

// A value goes through shared memory to another warp without a barrier: right in one order of the threads, wrong in another.
SPECRS_KERNEL(64, missing_barrier)(int* out) {
  __shared__ int value[64];
  value[threadIdx.x] = int(threadIdx.x);
  __syncwarp();
  out[threadIdx.x] = value[threadIdx.x ^ 32];
}
SPECRS_EXPORT(missing_barrier, 64)

// Blocks depend on each other: the last one to run wins.
SPECRS_KERNEL(32, blocks_collide)(int* out) {
  if (threadIdx.x == 0) out[0] = int(blockIdx.x);
}
SPECRS_EXPORT(blocks_collide, 32)

SPECRS_KERNEL(32, loads_misaligned)(int* out) {
  out[threadIdx.x] = int(specrs::load_chunk(reinterpret_cast<char*>(out) + 4).word[0]);
}
SPECRS_EXPORT(loads_misaligned, 32)

// The last thread writes one element behind the end of 32.
SPECRS_KERNEL(32, writes_behind)(int* out) { out[threadIdx.x + 1] = 1; }
SPECRS_EXPORT(writes_behind, 32)
