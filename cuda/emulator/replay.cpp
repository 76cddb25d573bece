// Replays recorded launches under a sanitizer: each CUDA thread is an OS thread, each buffer exactly as large as it was.
//
// usage: replay IN OUT. IN holds per launch: name, grid, threads, dynamic shared bytes, arguments (a buffer with its bytes, or
// 8 bytes of a scalar). OUT receives the bytes of every buffer after each launch, in order. Words are 64-bit.
#ifndef SPECRS_KERNELS
#define SPECRS_KERNELS "../specrs.cu"
#endif
#include SPECRS_KERNELS
#include <fstream>

namespace {
uint64_t word(std::istream& in) {
  uint64_t w = 0;
  in.read(reinterpret_cast<char*>(&w), 8);
  return w;
}
}  // namespace

int main(int, char** argv) {
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);
  for (uint64_t left = word(in); left; left--) {
    std::string name(word(in), ' ');
    in.read(name.data(), std::streamsize(name.size()));
    const unsigned gx = unsigned(word(in)), gy = unsigned(word(in)), gz = unsigned(word(in)), threads = unsigned(word(in));
    const size_t shared = word(in), count = word(in);
    std::vector<uint64_t> values(count), sizes(count, 0);
    for (size_t i = 0; i < count; i++) {
      const bool is_buffer = word(in) == 1;
      if (is_buffer) {
        sizes[i] = word(in);
        char* buffer = static_cast<char*>(malloc(sizes[i]));
        in.read(buffer, std::streamsize(sizes[i]));
        values[i] = reinterpret_cast<uint64_t>(buffer);
      } else {
        values[i] = word(in);
      }
    }
    std::vector<void*> parameters(count);
    for (size_t i = 0; i < count; i++) parameters[i] = &values[i];
    const emu::Entry* entry = emu::find(name.c_str());
    if (!entry) {
      fprintf(stderr, "replay: no kernel %s\n", name.c_str());
      return 2;
    }
    entry->launch(dim3(gx, gy, gz), dim3(threads), shared, parameters.data());
    for (size_t i = 0; i < count; i++)
      if (sizes[i]) {
        out.write(reinterpret_cast<char*>(values[i]), std::streamsize(sizes[i]));
        free(reinterpret_cast<void*>(values[i]));
      }
  }
  return 0;
}
