// Adasum: a combination of gradients that is a sum where they are orthogonal and an average where they are parallel.
//
//   adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b,   over n = 2^k members pairwise, as a tree
//
// Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021: recursive vector
// halving with distance doubling; each pair of vectors is spread over the members of both halves.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "collective/mesh.h"
#include "collective/ring_schedule.h"

namespace ringtune {

[[nodiscard]] constexpr bool is_power_of_two(int size) noexcept { return size > 0 && (size & (size - 1)) == 0; }

/// One halving: two members share out what both hold, and combine each a half. Of the two vectors the lower member's is
/// the first one.
struct AdasumLevel {
  int peer;
  bool lower;        // this member is, of the two
  ChunkRange kept;   // bytes of the tensor
  ChunkRange given;  // likewise
  int first_holder;  // the members that hold the two vectors together, of which all need the products of the wholes
  int holders;
  friend bool operator==(const AdasumLevel&, const AdasumLevel&) = default;
};
/// In their order; what was kept is given back in the reverse. `size` is a power of two. Halves that are `kept` or
/// `given` are empty only where there are fewer elements than members.
[[nodiscard]] std::vector<AdasumLevel> adasum_levels(std::size_t bytes, std::size_t element_bytes, int rank, int size);

/// In place, one tensor. The number of members is a power of two, the dtype a floating one (InvariantError). Products
/// are summed in double; float16/bfloat16 are combined in float32 and rounded once per level. Bitwise equal on all
/// members: each element is computed by one of them. Blocks; throws as exchange().
void adasum_allreduce(Mesh& mesh, std::span<std::byte> data, DType dtype);

}  // namespace ringtune
