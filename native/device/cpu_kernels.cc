#include "device/cpu_kernels.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/kernel_table.h"

namespace ringtune {
namespace device {

const KernelTable* kernels_of(std::string_view isa) noexcept {
  if (isa == "portable") return &kPortableKernels;
#if defined(__x86_64__)
  if (isa == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return &kAvx2Kernels;
  if (isa == "avx512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return &kAvx512Kernels;
  }
#endif
  return nullptr;
}

const KernelTable& kernels() noexcept {
  static const KernelTable& best = []() -> const KernelTable& {
    for (const char* isa : {"avx512", "avx2"}) {
      if (const KernelTable* table = kernels_of(isa)) return *table;
    }
    return kPortableKernels;
  }();
  return best;
}

}  // namespace device

namespace {

device::ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(op);
  RINGTUNE_CHECK_LT(row, std::size_t{kDTypeCount}, "no such dtype");
  RINGTUNE_CHECK_LT(column, device::kReduceOpCount, "no such reduction");
  const device::ReduceKernel kernel = device::kernels().reduce[row][column];
  RINGTUNE_CHECK(kernel != nullptr, name_of(op), " is no reduction of two numbers; it is composed above the kernels");
  return kernel;
}

// Stays in the first-level cache beside as much of each input.
constexpr std::size_t kBlockBytes = 4096;

}  // namespace

void reduce_into(std::byte* accumulator, const std::byte* incoming, std::size_t count, DType dtype, ReduceOp op) {
  reduce_kernel(dtype, op)(accumulator, accumulator, incoming, count);
}

void reduce_many(std::byte* output, std::span<const std::byte* const> inputs, std::size_t count, DType dtype,
                 ReduceOp op, double factor) {
  const device::ReduceKernel kernel = reduce_kernel(dtype, op);
  if (inputs.size() == 1) {
    scale_copy(output, inputs.front(), count, dtype, factor);
    return;
  }
  if (inputs.size() == 2 && factor == 1.0) {
    kernel(output, inputs[0], inputs[1], count);
    return;
  }
  const std::size_t block = kBlockBytes / size_of(dtype);
  alignas(64) std::byte sum[kBlockBytes];
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t some = std::min(block, count - begin);
    const std::size_t at = begin * size_of(dtype);
    // Summed up aside: the output may be the memory of an input whose turn comes last.
    kernel(sum, inputs[0] + at, inputs[1] + at, some);
    for (const std::byte* input : inputs.subspan(2)) kernel(sum, sum, input + at, some);
    scale_copy(output + at, sum, some, dtype, factor);
  }
}

void scale_copy(std::byte* output, const std::byte* input, std::size_t count, DType dtype, double factor) {
  const std::size_t bytes = count * size_of(dtype);
  if (factor == 1.0) {  // also keeps int64 beyond 2^53 and NaN payloads intact
    if (output != input && bytes != 0) std::memmove(output, input, bytes);
    return;
  }
  const device::ScaleKernel kernel = device::kernels().scale[static_cast<std::size_t>(dtype)];
  RINGTUNE_CHECK(kernel != nullptr, "a ", name_of(dtype), " cannot be scaled by ", factor);
  kernel(output, input, count, factor);
}

const char* kernel_isa() noexcept { return device::kernels().isa; }

}  // namespace ringtune
