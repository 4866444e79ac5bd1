#include "control/tree.h"

#include <algorithm>

#include "base/check.h"

namespace ringtune {

TreePlace tree_place(int rank, int size, int fan_out) {
  RINGTUNE_CHECK(rank >= 0 && rank < size && fan_out >= 1);
  TreePlace place;
  for (int root = 0, end = size;;) {
    place.ranks = RankSet::range(root, end);
    place.children.clear();
    const int below = end - root - 1;
    const int count = std::min(below, fan_out);
    int next_root = root;
    int next_end = end;
    for (int i = 0, first = root + 1; i < count; ++i) {
      const int behind = first + below / count + (i < below % count ? 1 : 0);
      place.children.push_back({first, RankSet::range(first, behind)});
      if (first <= rank && rank < behind) {
        next_root = first;
        next_end = behind;
      }
      first = behind;
    }
    if (root == rank) return place;
    place.parent = root;
    root = next_root;
    end = next_end;
  }
}

int tree_levels(int size, int fan_out) {
  int levels = 0;
  TreePlace place = tree_place(0, size, fan_out);
  for (; !place.children.empty() && place.children.front().ranks.count() > 1; ++levels) {  // the first is the largest
    place = tree_place(place.children.front().rank, size, fan_out);
  }
  return levels;
}

}  // namespace ringtune
