// A stand-in for libcuda.so.1: cuLaunchKernel runs the kernel's source on the CPU. The launcher under test opens this
// file instead of the driver and cannot tell the difference. The emu_* functions are for the tests.
#ifndef SPECRS_KERNELS
#define SPECRS_KERNELS "../specrs.cu"
#endif
#include SPECRS_KERNELS

namespace {
std::string last_fault;
std::string listing;
int launches = 0;
int refuse_next = 0;  // an error that the next driver call answers with
int refused() { return std::exchange(refuse_next, 0); }
constexpr int DEVICES = 2;
constexpr int DRIVER_VERSION = 13000;
constexpr int INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_IMAGE = 200, NOT_FOUND = 500, LAUNCH_FAILED = 719;
}  // namespace

extern "C" {

// No driver has it: says that kernels are given host memory.
extern const char specrs_takes_host_memory = 1;

int cuInit(unsigned) { return refused(); }
int cuDriverGetVersion(int* version) {
  *version = DRIVER_VERSION;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = DEVICES;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < DEVICES ? 0 : INVALID_DEVICE;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? 232448 : 0;  // 9.0, shared memory on request
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(intptr_t(device + 1));
  return refused();
}
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void** context) {
  *context = nullptr;
  return 0;
}
int cuLibraryLoadData(void** library, const void* code, void*, void**, unsigned, void*, void**, unsigned) {
  if (const int error = refused()) return error;
  if (reinterpret_cast<uintptr_t>(code) % 8) return INVALID_IMAGE;
  if (*static_cast<const unsigned*>(code) != 0xBA55ED50u && memcmp(code, "\x7f" "ELF", 4)) return INVALID_IMAGE;
  *library = &listing;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = const_cast<emu::Entry*>(emu::find(name));
  return *kernel ? 0 : NOT_FOUND;
}
int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return 0;
}
int cuFuncLoad(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuGetErrorName(int error, const char** name) {
  *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void*, void** parameters, void**) {
  if (const int error = refused()) return error;
  const auto* entry = static_cast<const emu::Entry*>(kernel);
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > entry->max_threads || shared > 232448) return INVALID_VALUE;
  launches++;
  try {
    entry->launch(dim3(gx, gy, gz), dim3(bx, by, bz), shared, parameters);
  } catch (const std::exception& e) {
    last_fault = e.what();
    return LAUNCH_FAILED;
  }
  return 0;
}

void emu_configure(int threads, int blocks, uint64_t seed, int poison) {
  emu::config = emu::Config{emu::Order(threads), emu::Order(blocks), seed ? seed : 1, poison != 0};
}
const char* emu_fault() { return last_fault.c_str(); }
int emu_launches() { return launches; }
void emu_refuse_next(int error) { refuse_next = error; }
// One line per kernel: name, signature, most threads of a block.
const char* emu_kernels() {
  listing.clear();
  for (const emu::Entry& e : emu::kernels()) listing += std::string(e.name) + " " + e.signature + " " + std::to_string(e.max_threads) + "\n";
  return listing.c_str();
}

}  // extern "C"
