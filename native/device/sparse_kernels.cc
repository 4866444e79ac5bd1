#include "device/sparse_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {
namespace {

/// Bits whose order is that of the magnitudes.
std::uint32_t magnitude_of(float value) noexcept { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// Magnitudes are counted by exponent and the first three bits behind it.
constexpr unsigned kClassShift = 20;
constexpr std::size_t kClasses = std::size_t{1} << (31 - kClassShift);
constexpr std::size_t kCounters =
    4;  // side by side: neighbours are often of one class, and a counter is slow to repeat

using Counts = std::array<std::uint32_t, kClasses>;

/// Adds the gradient and counts the magnitudes of the sums.
Counts add_and_count(std::span<float> error, const float* gradient) {
  static_assert(kCounters == 4);
  std::array<Counts, kCounters> counts{};
  const auto one = [&](std::size_t i, Counts& mine) {
    error[i] += gradient[i];
    ++mine[magnitude_of(error[i]) >> kClassShift];
  };
  std::size_t i = 0;
  for (; i + kCounters <= error.size(); i += kCounters) {
    one(i, counts[0]);
    one(i + 1, counts[1]);
    one(i + 2, counts[2]);
    one(i + 3, counts[3]);
  }
  for (; i < error.size(); ++i) one(i, counts[0]);
  for (std::size_t c = 1; c < kCounters; ++c) {
    for (std::size_t k = 0; k < kClasses; ++k) counts[0][k] += counts[c][k];
  }
  return counts[0];
}

}  // namespace

void pick_largest(std::span<float> error, const float* gradient, std::size_t wanted, const SparseParts& picked) {
  RINGTUNE_CHECK_LE(wanted, error.size(), "elements to pick");
  RINGTUNE_CHECK_LE(error.size(), std::size_t{std::numeric_limits<std::int32_t>::max()}, "elements of one tensor");
  const Counts counts = add_and_count(error, gradient);
  if (wanted == 0) return;
  std::size_t lowest = kClasses;  // everything from this class up holds what is wanted, and no class less does
  std::size_t above = 0;
  while (above < wanted) above += counts[--lowest];

  const std::uint32_t least = static_cast<std::uint32_t>(lowest) << kClassShift;
  std::vector<std::int32_t> candidates;
  candidates.reserve(above);
  for (std::size_t i = 0; i < error.size(); ++i) {
    if (magnitude_of(error[i]) >= least) candidates.push_back(static_cast<std::int32_t>(i));
  }
  std::vector<std::uint32_t> magnitudes;
  magnitudes.reserve(candidates.size());
  for (const std::int32_t place : candidates)
    magnitudes.push_back(magnitude_of(error[static_cast<std::size_t>(place)]));
  const auto nth = magnitudes.begin() + static_cast<std::ptrdiff_t>(wanted) - 1;
  std::nth_element(magnitudes.begin(), nth, magnitudes.end(), std::greater<>());
  const std::uint32_t threshold = *nth;
  const auto larger = std::count_if(magnitudes.begin(), nth, [&](std::uint32_t m) { return m > threshold; });
  std::size_t ties = wanted - static_cast<std::size_t>(larger);

  std::size_t at = 0;
  for (const std::int32_t place : candidates) {
    float& value = error[static_cast<std::size_t>(place)];
    const std::uint32_t magnitude = magnitude_of(value);
    if (magnitude < threshold || (magnitude == threshold && ties == 0)) continue;
    if (magnitude == threshold) --ties;
    picked.places[at] = place;
    picked.values[at++] = value;
    value = 0.0F;
  }
  RINGTUNE_CHECK_EQ(at, wanted, "elements picked");
}

void add_sparse(std::span<float> out, const std::int32_t* places, std::span<const float> values, float factor) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (places[i] < 0 || static_cast<std::size_t>(places[i]) >= out.size()) {
      throw Protocol("a peer sent an element for place " + std::to_string(places[i]) + " of a tensor of " +
                     std::to_string(out.size()));
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) out[static_cast<std::size_t>(places[i])] += values[i] * factor;
}

}  // namespace ringtune
