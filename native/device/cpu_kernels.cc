#include "device/cpu_kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "device/kernel_table.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace ringtune {
namespace device {

#if defined(__x86_64__)
namespace {

bool has_avx512() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c");
}

const KernelTable& avx512_bf16_kernels() noexcept {
  static const KernelTable table = [] {
    KernelTable with = kAvx512Kernels;
    with.isa = "avx512bf16";
    with.reduce[static_cast<std::size_t>(DType::kBfloat16)] = kAvx512Bf16Row;
    return with;
  }();
  return table;
}

const KernelTable& avx512_fp16_kernels() noexcept {
  static const KernelTable table = [] {
    KernelTable with = avx512_bf16_kernels();
    with.isa = "avx512fp16";
    with.reduce[static_cast<std::size_t>(DType::kFloat16)][static_cast<std::size_t>(ReduceOp::kSum)] = kAvx512Fp16Sum;
    return with;
  }();
  return table;
}

}  // namespace
#endif

const KernelTable* kernels_of(std::string_view isa) noexcept {
  if (isa == "portable") return &kPortableKernels;
#if defined(__x86_64__)
  if (isa == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return &kAvx2Kernels;
  if (isa == "avx512" && has_avx512()) return &kAvx512Kernels;
  const bool has_bf16 = has_avx512() && __builtin_cpu_supports("avx512bf16");
  if (isa == "avx512bf16" && has_bf16) return &avx512_bf16_kernels();
  if (isa == "avx512fp16" && has_bf16 && __builtin_cpu_supports("avx512fp16")) return &avx512_fp16_kernels();
#endif
  return nullptr;
}

const KernelTable& kernels() noexcept {
  static const KernelTable& best = []() -> const KernelTable& {
    for (const char* isa : {"avx512fp16", "avx512bf16", "avx512", "avx2"}) {
      if (const KernelTable* table = kernels_of(isa)) return *table;
    }
    return kPortableKernels;
  }();
  return best;
}

}  // namespace device

namespace {

device::ReduceKernel reduction(DType dtype, ReduceOp op) {
  const auto row = static_cast<std::size_t>(dtype);
  const auto column = static_cast<std::size_t>(op);
  RINGTUNE_CHECK_LT(row, std::size_t{kReducedDTypeCount}, "no dtype that is reduced");
  RINGTUNE_CHECK_LT(column, device::kReduceOpCount, "no such reduction");
  const device::ReduceKernel kernel = device::kernels().reduce[row][column];
  RINGTUNE_CHECK(kernel != nullptr, name_of(op), " is no reduction of two numbers; it is composed above the kernels");
  return kernel;
}

}  // namespace

void reduce_into(std::byte* accumulator, const std::byte* incoming, std::size_t count, DType dtype, ReduceOp op) {
  const std::byte* const in[2] = {accumulator, incoming};
  reduction(dtype, op)({accumulator, in, 2, 0, count * size_of(dtype)}, 1.0);
}

void reduce_many(std::byte* out, std::span<const std::byte* const> in, std::size_t count, DType dtype, ReduceOp op,
                 double factor) {
  RINGTUNE_CHECK(!in.empty(), "a reduction needs an input");
  const device::ReduceKernel kernel = reduction(dtype, op);
  if (in.size() == 1) return scale_copy(out, in[0], count, dtype, factor);
  RINGTUNE_CHECK(factor == 1.0 || dtype != DType::kBool, "a bool cannot be scaled by ", factor);
  kernel({out, in.data(), in.size(), 0, count * size_of(dtype)}, factor);
}

void reduce_twice(std::byte* out, std::byte* also, std::span<const std::byte* const, 2> in, std::size_t count,
                  DType dtype, ReduceOp op, double factor) {
  const std::size_t bytes = count * size_of(dtype);
  if (factor == 1.0 || is_floating(dtype)) {
    return reduction(dtype, op)({out, in.data(), in.size(), 0, bytes, also}, factor);
  }
  reduce_many(out, in, count, dtype, op, factor);
  std::memcpy(also, out, bytes);
}

void scale_copy(std::byte* output, const std::byte* input, std::size_t count, DType dtype, double factor) {
  const std::size_t bytes = count * size_of(dtype);
  if (factor == 1.0) {  // also keeps int64 beyond 2^53 and NaN payloads intact
    if (output != input && bytes != 0) std::memmove(output, input, bytes);
    return;
  }
  RINGTUNE_CHECK(dtype != DType::kBool, "a bool cannot be scaled by ", factor);
  reduction(dtype, ReduceOp::kSum)({output, &input, 1, 0, bytes}, factor);
}

void convert_copy(std::byte* out, DType out_dtype, const std::byte* in, DType in_dtype, std::size_t count,
                  double factor) {
  if (in_dtype == out_dtype) return scale_copy(out, in, count, in_dtype, factor);
  RINGTUNE_CHECK(is_floating(in_dtype) && is_floating(out_dtype), "no cast from ", name_of(in_dtype), " to ",
                 name_of(out_dtype));
  const std::size_t from = static_cast<std::size_t>(in_dtype) - device::kFirstFloating;
  const std::size_t to = static_cast<std::size_t>(out_dtype) - device::kFirstFloating;
  device::kernels().convert[from][to](out, in, count, factor);
}

void fetch_copy(std::byte* out, const std::byte* in, std::size_t bytes) { device::kernels().fetch(out, in, bytes); }

namespace {

/// A copy past the caches. The processor has no such stores: an ordinary one.
void stream_copy(std::byte* out, const std::byte* in, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    for (std::size_t part = at; part < at + kLine; part += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + part)));
    }
  }
  std::memcpy(out + at, in + at, bytes - at);
  _mm_sfence();  // such stores are not ordered by a release
#else
  std::memcpy(out, in, bytes);
#endif
}

}  // namespace

void stream_convert_copy(std::byte* out, DType out_dtype, const std::byte* in, DType in_dtype, std::size_t count,
                         double factor) {
  if (count == 0) return;
  if (in_dtype == out_dtype && factor == 1.0) return stream_copy(out, in, count * size_of(in_dtype));
  alignas(64) std::array<std::byte, 4096> converted;
  const std::size_t most = converted.size() / size_of(out_dtype);
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t some = std::min(most, count - at);
    convert_copy(converted.data(), out_dtype, in + at * size_of(in_dtype), in_dtype, some, factor);
    stream_copy(out + at * size_of(out_dtype), converted.data(), some * size_of(out_dtype));
  }
}

void reduce_convert(std::byte* out, DType out_dtype, std::span<const std::byte* const> in, DType in_dtype,
                    std::size_t count, ReduceOp op, double factor) {
  if (in_dtype == out_dtype) return reduce_many(out, in, count, in_dtype, op, factor);
  RINGTUNE_CHECK(!in.empty(), "a reduction needs an input");
  RINGTUNE_CHECK(in_dtype == DType::kFloat16 || in_dtype == DType::kBfloat16, "no reduction of ", name_of(in_dtype),
                 " into ", name_of(out_dtype));
  const std::size_t row = static_cast<std::size_t>(in_dtype) - device::kFirstFloating;
  const auto column = static_cast<std::size_t>(op);
  RINGTUNE_CHECK_LT(column, device::kReduceOpCount, "no such reduction");
  const device::WidenKernel kernel = device::kernels().widen[row][column];
  RINGTUNE_CHECK(kernel != nullptr, name_of(op), " is no reduction of two numbers; it is composed above the kernels");
  if (out_dtype == DType::kFloat32) return kernel({out, in.data(), in.size(), count}, static_cast<float>(factor));
  // By way of float32, in pieces that stay in the first-level cache.
  constexpr std::size_t kPiece = 1024;
  constexpr std::size_t kMostInputs = 1024;
  RINGTUNE_CHECK_LE(in.size(), kMostInputs, "inputs of one reduction");
  std::array<float, kPiece> sum;
  std::array<const std::byte*, kMostInputs> inputs;
  auto* const wide = reinterpret_cast<std::byte*>(sum.data());
  for (std::size_t at = 0; at < count; at += kPiece) {
    const std::size_t some = std::min(kPiece, count - at);
    for (std::size_t k = 0; k < in.size(); ++k) inputs[k] = in[k] + at * size_of(in_dtype);
    kernel({wide, inputs.data(), in.size(), some}, 1.0F);
    convert_copy(out + at * size_of(out_dtype), out_dtype, wide, DType::kFloat32, some, factor);
  }
}

const char* kernel_isa() noexcept { return device::kernels().isa; }

}  // namespace ringtune
