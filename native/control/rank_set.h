// A set of ranks as runs of neighbours: the ranks of a job, of a host or of a subtree are one run whatever their
// number.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace ringtune {

inline constexpr std::int32_t kLargestRank = (1 << 20) - 1;  // bounds what a peer can make us count

/// A value type. Operations cost the number of runs, not of ranks.
class RankSet {
 public:
  struct Run {
    std::int32_t first = 0;
    std::int32_t last = 0;  // inclusive
    friend auto operator<=>(const Run&, const Run&) = default;
  };

  RankSet() = default;
  [[nodiscard]] static RankSet one(int rank) { return range(rank, rank + 1); }
  /// first <= rank < end; empty when there is none.
  [[nodiscard]] static RankSet range(int first, int end);
  [[nodiscard]] static RankSet of(std::span<const std::int32_t> ranks);  // any order, duplicates count once

  void insert(const RankSet& other);
  [[nodiscard]] bool contains(int rank) const noexcept;
  [[nodiscard]] bool includes(const RankSet& other) const noexcept;
  [[nodiscard]] bool intersects(const RankSet& other) const noexcept;
  [[nodiscard]] RankSet intersection(const RankSet& other) const;
  [[nodiscard]] RankSet without(const RankSet& other) const;
  /// How many members are smaller: the position of a member in ascending order.
  [[nodiscard]] int position(int rank) const noexcept;
  [[nodiscard]] int count() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] int first() const noexcept { return runs_.front().first; }  // not of an empty set
  [[nodiscard]] int last() const noexcept { return runs_.back().last; }     // not of an empty set
  [[nodiscard]] std::vector<int> ranks() const;
  [[nodiscard]] const std::vector<Run>& runs() const noexcept { return runs_; }
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  void append(Run run);  // not before the last run

  std::vector<Run> runs_;  // ascending, with gaps between them
  int count_ = 0;
};

void write_rank_set(ByteWriter& out, const RankSet& set);
[[nodiscard]] RankSet read_rank_set(ByteReader& in);  // throws Protocol

}  // namespace ringtune
