#include "device/low_rank_kernels.h"

#include <cmath>
#include <vector>

namespace ringtune {
namespace {

// What is left of a vector after its projections on the others, relative to itself, when it is nothing but rounding.
constexpr double kNothing = 1e-6;

double dot(const float* a, const float* b, std::size_t length) noexcept {
  double sum = 0.0;
  for (std::size_t i = 0; i < length; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

void orthonormalise(float* vectors, std::size_t rank, std::size_t length) {
  for (std::size_t k = 0; k < rank; ++k) {
    float* const vector = vectors + k * length;
    const double before = std::sqrt(dot(vector, vector, length));
    for (std::size_t other = 0; other < k; ++other) {
      const float* const unit = vectors + other * length;
      const double along = dot(vector, unit, length);
      for (std::size_t i = 0; i < length; ++i) {
        vector[i] = static_cast<float>(static_cast<double>(vector[i]) - along * static_cast<double>(unit[i]));
      }
    }
    const double norm = std::sqrt(dot(vector, vector, length));
    // A NaN is kept: it must be seen.
    const double factor = norm <= kNothing * before ? 0.0 : 1.0 / norm;
    for (std::size_t i = 0; i < length; ++i) {
      vector[i] = static_cast<float>(static_cast<double>(vector[i]) * factor);
    }
  }
}

void apply_low_rank(float* out, float* error, const LowRank& a, float factor) {
  std::vector<float> row(a.columns);  // of the approximation: stays in the cache
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.rank; ++k) {
      const float left = a.left[k * a.rows + i];
      const float* const right = a.right + k * a.columns;
      if (k == 0) {
        for (std::size_t j = 0; j < a.columns; ++j) row[j] = left * right[j];
      } else {
        for (std::size_t j = 0; j < a.columns; ++j) row[j] += left * right[j];
      }
    }
    float* const to = out + i * a.columns;
    for (std::size_t j = 0; j < a.columns; ++j) to[j] = row[j] * factor;
    if (error == nullptr) continue;
    float* const residual = error + i * a.columns;
    for (std::size_t j = 0; j < a.columns; ++j) residual[j] -= row[j];
  }
}

}  // namespace ringtune
