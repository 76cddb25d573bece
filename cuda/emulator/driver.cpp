// A stand-in for libcuda.so.1: cuLaunchKernel runs the kernel's source on the CPU. The launcher under test opens this
// file instead of the driver and cannot tell the difference. As in the driver, a launch needs a context, and dynamic
// shared memory over 48 KiB an attribute of the kernel on that device. The emu_* functions are for the tests.
#ifndef SPECRS_KERNELS
#define SPECRS_KERNELS "../specrs.cu"
#endif
#include SPECRS_KERNELS
#include <map>

namespace {
std::string last_fault;
std::string listing;
int launches = 0;
int refuse_next = 0;  // an error that the next driver call answers with
int refused() { return std::exchange(refuse_next, 0); }
constexpr int DEVICES = 2;
constexpr int DRIVER_VERSION = 13000;
constexpr int INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500,
              LAUNCH_FAILED = 719;
constexpr int MAX_DYNAMIC_SHARED = 8;            // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr unsigned SHARED_UNASKED = 48 * 1024;   // of a kernel without that attribute
unsigned shared_on_request = 227 * 1024;         // what the device grants with it: 9.0
std::map<std::pair<const void*, int>, unsigned> allowed;  // (kernel, device): what the attribute says
thread_local std::vector<int> current;                    // devices of the pushed contexts
void* last_stream = nullptr;
int last_device = -1;
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
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? int(shared_on_request) : 0;  // 9.0
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(intptr_t(device + 1));
  return refused();
}
int cuCtxPushCurrent_v2(void* context) {
  const auto number = reinterpret_cast<intptr_t>(context);
  if (number < 1 || number > DEVICES) return INVALID_CONTEXT;
  current.push_back(int(number) - 1);
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return INVALID_CONTEXT;
  *context = reinterpret_cast<void*>(intptr_t(current.back() + 1));
  current.pop_back();
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
  return current.empty() ? INVALID_CONTEXT : 0;
}
int cuFuncLoad(void*) { return current.empty() ? INVALID_CONTEXT : 0; }
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  if (attribute != MAX_DYNAMIC_SHARED || value < 0 || unsigned(value) > shared_on_request) return INVALID_VALUE;
  allowed[{kernel, device}] = unsigned(value);
  return 0;
}
int cuGetErrorName(int error, const char** name) {
  *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : error == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuLaunchKernel(void* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** parameters, void**) {
  if (const int error = refused()) return error;
  if (current.empty()) return INVALID_CONTEXT;
  last_stream = stream;
  last_device = current.back();
  const auto* entry = static_cast<const emu::Entry*>(kernel);
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > entry->max_threads) return INVALID_VALUE;
  const auto asked = allowed.find({kernel, last_device});
  if (shared > (asked == allowed.end() ? SHARED_UNASKED : std::max(SHARED_UNASKED, asked->second))) return INVALID_VALUE;
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
// Dynamic shared memory that the device grants on request; kernels loaded before are forgotten with what they asked for.
void emu_grant_shared(unsigned bytes) {
  shared_on_request = bytes;
  allowed.clear();
}
uint64_t emu_last_stream() { return reinterpret_cast<uint64_t>(last_stream); }
int emu_last_device() { return last_device; }
// One line per kernel: name, signature, most threads of a block.
const char* emu_kernels() {
  listing.clear();
  for (const emu::Entry& e : emu::kernels()) listing += std::string(e.name) + " " + e.signature + " " + std::to_string(e.max_threads) + "\n";
  return listing.c_str();
}

}  // extern "C"
