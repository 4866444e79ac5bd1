// The shape of the tree along which ready requests go up and decisions come down. Every rank computes its own place.
#pragma once

#include <vector>

#include "control/rank_set.h"

namespace ringtune {

/// Children of one rank at most. Up to kDefaultFanOut + 1 ranks form a star: nobody stands in between.
inline constexpr int kDefaultFanOut = 8;

struct TreeChild {
  int rank = 0;
  RankSet ranks;  // its subtree with itself: neighbouring ranks, which usually share a host
};

struct TreePlace {
  int parent = -1;  // -1 on rank 0
  RankSet ranks;    // the subtree with this rank itself
  std::vector<TreeChild> children;
};

/// A subtree is a range of ranks whose first is its root; the rest is divided evenly among the children.
[[nodiscard]] TreePlace tree_place(int rank, int size, int fan_out);

/// How many ranks stand between rank 0 and the deepest one.
[[nodiscard]] int tree_levels(int size, int fan_out);

}  // namespace ringtune
