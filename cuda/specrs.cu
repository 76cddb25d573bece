// Every kernel of specrs in one translation unit: one fatbin for nvcc, one stand-in driver for the emulator.
#include "kernels/row_statistics.cu"
#include "kernels/row_law.cu"
#include "kernels/round_coins.cu"
#include "kernels/verify_walk.cu"
#include "kernels/verify_chain.cu"
#include "kernels/residual.cu"
#include "kernels/verify_block.cu"
#include "kernels/verify_siblings.cu"
