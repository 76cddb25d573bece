// Replays recorded launches under a sanitizer: each CUDA thread is an OS thread, each buffer exactly as large as it was.
//
// usage: replay IN OUT. IN holds per launch: name, grid, threads, dynamic shared bytes, arguments: 0 and 8 bytes of a scalar, 1
// and a buffer, or 2 and a number of buffers, whose addresses are the argument. OUT receives the bytes of every buffer after
// each launch, in order. Words are 64-bit.
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

struct Buffer {
  char* data;
  size_t size;
  explicit Buffer(std::istream& in) : data(nullptr), size(word(in)) {
    data = static_cast<char*>(malloc(size));
    in.read(data, std::streamsize(size));
  }
};
}  // namespace

int main(int, char** argv) {
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);
  for (uint64_t left = word(in); left; left--) {
    std::string name(word(in), ' ');
    in.read(name.data(), std::streamsize(name.size()));
    const unsigned gx = unsigned(word(in)), gy = unsigned(word(in)), gz = unsigned(word(in)), threads = unsigned(word(in));
    const size_t shared = word(in), count = word(in);
    std::vector<uint64_t> values(count);
    std::vector<Buffer> buffers;
    std::vector<std::vector<char*>> tables(count);
    for (size_t i = 0; i < count; i++) {
      const uint64_t kind = word(in);
      if (kind == 0) {
        values[i] = word(in);
      } else if (kind == 1) {
        buffers.emplace_back(in);
        values[i] = reinterpret_cast<uint64_t>(buffers.back().data);
      } else {
        for (uint64_t entries = word(in); entries; entries--) {
          buffers.emplace_back(in);
          tables[i].push_back(buffers.back().data);
        }
        values[i] = reinterpret_cast<uint64_t>(tables[i].data());
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
    for (const Buffer& buffer : buffers) {
      out.write(buffer.data, std::streamsize(buffer.size));
      free(buffer.data);
    }
  }
  return 0;
}
