// The loops of Adasum over host memory.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace ringtune {

struct DotProducts {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

/// In double, in an order that depends on `count` alone. Floating dtypes only (InvariantError). Any thread.
[[nodiscard]] DotProducts dot_products(const std::byte* a, const std::byte* b, std::size_t count, DType dtype);

struct ScaledTerms {
  const std::byte* a;
  double a_factor;
  const std::byte* b;
  double b_factor;
};

/// out[i] = a_factor * a[i] + b_factor * b[i]; out may be a or b. float64 is computed in double, the others in float32
/// and rounded once. Floating dtypes only (InvariantError).
void scaled_sum(std::byte* out, const ScaledTerms& terms, std::size_t count, DType dtype);

}  // namespace ringtune
