// The kernels of one instruction set, as a table. Internal to device/ and its tests.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "base/dtype.h"

namespace ringtune::device {

/// One reduction. Borrows everything. `begin` and `end` are the bytes to work on, at the same place in both outputs and
/// all inputs, and multiples of the element's size.
struct ReduceJob {
  std::byte* out;
  const std::byte* const* in;
  std::size_t n;  // inputs, at least 1
  std::size_t begin;
  std::size_t end;
  /// A second output: of two inputs, which come from afar, and no factor that integers are scaled by afterwards.
  std::byte* also = nullptr;
};

using ReduceKernel = void (*)(const ReduceJob& job, double factor);

inline constexpr std::size_t kReduceOpCount = 6;

/// Indexed by the numeric value of ReduceOp; null where the combination is refused.
using ReduceRow = std::array<ReduceKernel, kReduceOpCount>;

using ConvertKernel = void (*)(std::byte* out, const std::byte* in, std::size_t count, double factor);

/// The floating dtypes stand together in DType.
inline constexpr std::size_t kFirstFloating = static_cast<std::size_t>(DType::kFloat16);
inline constexpr std::size_t kFloatingCount = static_cast<std::size_t>(DType::kFloat64) - kFirstFloating + 1;
/// From, to: counted from kFirstFloating.
using ConvertTable = std::array<std::array<ConvertKernel, kFloatingCount>, kFloatingCount>;

/// A reduction of 16-bit elements into float32. Borrows everything; `out` overlaps no input.
struct WidenJob {
  std::byte* out;
  const std::byte* const* in;
  std::size_t n;      // inputs, at least 1
  std::size_t count;  // elements
};
using WidenKernel = void (*)(const WidenJob& job, float factor);
/// Indexed by the numeric value of ReduceOp; null where the combination is refused.
using WidenRow = std::array<WidenKernel, kReduceOpCount>;

/// A copy whose input comes from afar (fetch_ahead); no overlap.
using FetchKernel = void (*)(std::byte* out, const std::byte* in, std::size_t bytes);

struct KernelTable {
  const char* isa;
  std::array<ReduceRow, kReducedDTypeCount> reduce;  // by the numeric value of DType
  ConvertTable convert;
  std::array<WidenRow, 2> widen;  // from float16, from bfloat16
  FetchKernel fetch;
};

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;    // needs AVX2 and F16C
extern const KernelTable kAvx512Kernels;  // needs AVX-512 F, BW, DQ, VL
/// The row of bfloat16 with AVX512_BF16; everything else as in kAvx512Kernels.
extern const ReduceRow kAvx512Bf16Row;
/// Sums of float16 with AVX512_FP16; everything else as with AVX512_BF16.
extern const ReduceKernel kAvx512Fp16Sum;
#endif

/// The table of that name, or null when it was not built or this processor lacks the instructions.
[[nodiscard]] const KernelTable* kernels_of(std::string_view isa) noexcept;
/// The best table for this processor; chosen once.
[[nodiscard]] const KernelTable& kernels() noexcept;

}  // namespace ringtune::device
