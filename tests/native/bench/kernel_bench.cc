// GB/s of the kernels of device/ for each instruction set of this processor, with the ratio of each 16-bit type's time
// per byte to float32's. Built only when asked for: cmake --build build/native-tests --target ringtune_kernel_bench
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "device/kernel_table.h"

namespace {

using namespace ringtune;
using device::KernelTable;

constexpr std::size_t kMaxInputs = 8;

/// Buffers for up to eight inputs and an output, one page apart from a common alignment.
struct Buffers {
  explicit Buffers(std::size_t bytes)
      : stride(bytes + 4096 + 64), memory((kMaxInputs + 1) * stride + 4096, std::byte{0}) {
    for (std::size_t k = 0; k <= kMaxInputs; ++k) {
      const auto base = reinterpret_cast<std::uintptr_t>(memory.data()) + k * stride;
      at.push_back(reinterpret_cast<std::byte*>((base + 63) / 64 * 64));
      for (std::size_t i = 0; i < bytes; i += 2) {  // a normal number in every dtype
        const std::uint16_t pattern = static_cast<std::uint16_t>(0x3c00u + (i * 37 + k) % 0x400u);
        std::memcpy(at.back() + i, &pattern, 2);
      }
    }
  }
  std::size_t stride;
  std::vector<std::byte> memory;
  std::vector<std::byte*> at;
};

/// The median over bursts of about a millisecond, in GB/s of `bytes`.
double speed(std::size_t bytes, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const std::size_t calls = std::max<std::size_t>(1, (std::size_t{24} << 20) / bytes);
  std::vector<double> rates;
  work();
  for (int burst = 0; burst < 9; ++burst) {
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    rates.push_back(static_cast<double>(bytes * calls) / seconds / 1e9);
  }
  std::nth_element(rates.begin(), rates.begin() + 4, rates.end());
  return rates[4];
}

struct Case {
  const char* name;
  std::size_t inputs;
  double factor;
  bool in_place;
  ReduceOp op;
};
constexpr Case kCases[] = {
    {"reduce_into", 2, 1.0, true, ReduceOp::kSum},        {"reduce_many 2", 2, 0.5, false, ReduceOp::kSum},
    {"reduce_many 2 min", 2, 1.0, false, ReduceOp::kMin}, {"reduce_many 3", 3, 0.5, false, ReduceOp::kSum},
    {"reduce_many 4", 4, 0.5, false, ReduceOp::kSum},     {"reduce_many 8", 8, 0.5, false, ReduceOp::kSum},
    {"scale_copy", 1, 0.5, false, ReduceOp::kSum},
};

double measure(const KernelTable& table, const Case& what, DType dtype, std::size_t bytes, const Buffers& buffers) {
  const device::ReduceKernel kernel = table.reduce[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(what.op)];
  std::vector<const std::byte*> in(buffers.at.begin() + 1, buffers.at.begin() + 1 + static_cast<int>(what.inputs));
  if (what.in_place) in[0] = buffers.at[0];
  // In place the sums grow from call to call, float16 to infinity: no kernel is slower for large numbers or infinity.
  return speed(bytes, [&] { kernel({buffers.at[0], in.data(), what.inputs, 0, bytes}, what.factor); });
}

/// float32 to each column's dtype, per byte of float32.
double measure_cast(const KernelTable& table, DType to, std::size_t bytes, const Buffers& buffers) {
  const auto at = [](DType dtype) { return static_cast<std::size_t>(dtype) - device::kFirstFloating; };
  const device::ConvertKernel kernel = table.convert[at(DType::kFloat32)][at(to)];
  return speed(bytes, [&] { kernel(buffers.at[0], buffers.at[1], bytes / 4, 0.5); });
}
double measure_cast_back(const KernelTable& table, DType from, std::size_t bytes, const Buffers& buffers) {
  const auto at = [](DType dtype) { return static_cast<std::size_t>(dtype) - device::kFirstFloating; };
  const device::ConvertKernel kernel = table.convert[at(from)][at(DType::kFloat32)];
  return speed(bytes, [&] { kernel(buffers.at[0], buffers.at[1], bytes / 4, 0.5); });
}

void print(const char* isa, const char* what, std::size_t bytes, const double (&rates)[3]) {
  std::printf("%-12s %-20s %8zu KiB %8.1f %8.1f %8.1f   %5.2f %5.2f\n", isa, what, bytes >> 10, rates[0], rates[1],
              rates[2], rates[0] / rates[1], rates[0] / rates[2]);
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("%-12s %-20s %12s %8s %8s %8s   time per byte against float32\n", "isa", "kernel", "bytes", "float32",
              "float16", "bfloat16");
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{32} << 20}) {
    const Buffers buffers(bytes);
    for (const char* isa : {"portable", "avx2", "avx512", "avx512bf16", "avx512fp16"}) {
      const KernelTable* const table = device::kernels_of(isa);
      if (table == nullptr || (argc > 1 && std::strcmp(argv[1], isa) != 0)) continue;
      const DType dtypes[3] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
      double rates[3];
      for (int i = 0; i < 3; ++i) rates[i] = measure_cast(*table, dtypes[i], bytes, buffers);
      print(isa, "convert from float32", bytes, rates);
      for (int i = 0; i < 3; ++i) rates[i] = measure_cast_back(*table, dtypes[i], bytes, buffers);
      print(isa, "convert to float32", bytes, rates);
      for (const Case& what : kCases) {
        for (int i = 0; i < 3; ++i) rates[i] = measure(*table, what, dtypes[i], bytes, buffers);
        print(isa, what.name, bytes, rates);
      }
    }
  }
  return 0;
}
