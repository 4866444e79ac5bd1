// The loops of PowerSGD over host memory. A matrix of `rows` x `columns` is approximated as the sum over k of
// left[k][i] * right[k][j]: the factors are stored as `rank` rows each.
//
// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019.
#pragma once

#include <cstddef>

namespace ringtune {

/// Makes the `rank` vectors of `length` elements orthonormal, in place and in order (Gram-Schmidt in double). One that
/// depends on those before it, but for rounding, becomes zero. Bit for bit the same on every processor, so that ranks
/// that do it on their own agree. Any thread; does not block.
void orthonormalise(float* vectors, std::size_t rank, std::size_t length);

struct LowRank {
  const float* left;   // rank x rows
  const float* right;  // rank x columns
  std::size_t rank;
  std::size_t rows;
  std::size_t columns;
};

/// out = factor * approximation, and error -= approximation, in one pass; `error` may be null. Bit for bit the same
/// `out` on every processor. Nothing overlaps. Any thread; does not block.
void apply_low_rank(float* out, float* error, const LowRank& approximation, float factor);

}  // namespace ringtune
