// Loops over host memory, vectorised, chosen once at run time for the processor (portable, AVX2, AVX-512).
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace ringtune {

/// accumulator[i] = accumulator[i] op incoming[i] for `count` elements. No alignment needed; the two must not overlap.
/// `op` as in ring_allreduce (InvariantError otherwise). Integers wrap around; a NaN on either side of Min and Max
/// wins, as in torch.minimum. Any thread; does not block.
void reduce_into(std::byte* accumulator, const std::byte* incoming, std::size_t count, DType dtype, ReduceOp op);

/// out[i] = (in[0][i] op in[1][i] op ... op in[n - 1][i]) * factor for `count` elements, in this order and in one pass
/// over memory. `out` may be one of the inputs, no other overlap; n is at least 1. float16 and bfloat16 are reduced in
/// float32 and rounded once, at the end. The factor is applied as in scale_copy; 1 changes no integer and no NaN.
void reduce_many(std::byte* out, std::span<const std::byte* const> in, std::size_t count, DType dtype, ReduceOp op,
                 double factor);

/// reduce_many of two inputs whose result is written to `also` too, where a copy afterwards would have to read it
/// again. `also` may be one of the inputs, and overlaps nothing else. For inputs that come from afar, as in fetch_copy.
void reduce_twice(std::byte* out, std::byte* also, std::span<const std::byte* const, 2> in, std::size_t count,
                  DType dtype, ReduceOp op, double factor);

/// The same as reduce_many with the inputs and `out` of different floating dtypes: inputs of float16 or bfloat16 are
/// reduced in float32 and rounded once, to `out_dtype`. `out` overlaps no input, unless the dtypes are equal (then this
/// is reduce_many). Other inputs: equal dtypes only (InvariantError).
void reduce_convert(std::byte* out, DType out_dtype, std::span<const std::byte* const> in, DType in_dtype,
                    std::size_t count, ReduceOp op, double factor);

/// output[i] = input[i] * factor; in place allowed (output == input, no other overlap). Integers: computed in double
/// and truncated toward zero (Horovod's rule), out of range to the nearest end; float16/bfloat16 in float32, round to
/// nearest even; kBool is refused (InvariantError) unless factor == 1. factor == 1 is a plain copy.
void scale_copy(std::byte* output, const std::byte* input, std::size_t count, DType dtype, double factor);

/// out[i] = in[i] * factor in another floating dtype: computed in float64 when either is float64, else in float32;
/// rounded to nearest even, from float64 to the 16-bit types by way of float32 (as in torch). No alignment needed, no
/// overlap. Equal dtypes: scale_copy. Else floating dtypes only (InvariantError). Any thread; does not block.
void convert_copy(std::byte* out, DType out_dtype, const std::byte* in, DType in_dtype, std::size_t count,
                  double factor);

/// convert_copy whose output goes past the caches of this core: for who reads it from another one's. All of it is
/// written when this returns, for who acquires what the caller then releases. Slower where the output is read here.
void stream_convert_copy(std::byte* out, DType out_dtype, const std::byte* in, DType in_dtype, std::size_t count,
                         double factor);

/// A copy of bytes that come from afar, from another core's caches or from memory: asks for them early. No overlap.
void fetch_copy(std::byte* out, const std::byte* in, std::size_t bytes);

/// The instruction set in use: "portable", "avx2", "avx512", "avx512bf16", "avx512fp16" (with both).
[[nodiscard]] const char* kernel_isa() noexcept;

}  // namespace ringtune
