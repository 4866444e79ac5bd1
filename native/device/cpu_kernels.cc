#include "device/cpu_kernels.h"

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

void reduce_into(std::byte* accumulator, const std::byte* incoming, std::size_t count, DType dtype, ReduceOp op) {
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(op);
  RINGTUNE_CHECK_LT(row, std::size_t{kDTypeCount}, "no such dtype");
  RINGTUNE_CHECK_LT(column, device::kReduceOpCount, "no such reduction");
  const device::ReduceKernel kernel = device::kernels().reduce[row][column];
  RINGTUNE_CHECK(kernel != nullptr, name_of(op), " is no reduction of two numbers; it is composed above the kernels");
  kernel(accumulator, incoming, count);
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
