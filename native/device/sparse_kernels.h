// The loops of top-k sparsification with error feedback over host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ringtune {

/// Places of a vector and what stands there; both lists are equally long.
struct SparseParts {
  std::int32_t* places;
  float* values;
};

/// error[i] += gradient[i]; then the `wanted` elements of largest magnitude move from `error` to `picked`, places
/// ascending, and are zero in `error`. What was added up is thus, exactly, `picked` plus what stays in `error`. Of
/// equal magnitudes the lower places are picked; NaN counts as larger than everything, so that it is seen on all ranks.
/// `error` and `gradient` have the same length, at least `wanted` and less than 2^31. Any thread; does not block.
void pick_largest(std::span<float> error, const float* gradient, std::size_t wanted, const SparseParts& picked);

/// out[places[i]] += values[i] * factor. Throws Protocol, before anything is written, when a place lies outside `out`:
/// it came from a peer.
void add_sparse(std::span<float> out, const std::int32_t* places, std::span<const float> values, float factor);

}  // namespace ringtune
