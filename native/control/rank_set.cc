#include "control/rank_set.h"

#include <algorithm>

#include "base/error.h"

namespace ringtune {
namespace {

/// The first run that does not end before `rank`.
auto run_at(const std::vector<RankSet::Run>& runs, std::int32_t rank) {
  return std::partition_point(runs.begin(), runs.end(), [rank](const RankSet::Run& run) { return run.last < rank; });
}

}  // namespace

RankSet RankSet::range(int first, int end) {
  RankSet set;
  if (first < end) set.append({first, end - 1});
  return set;
}

RankSet RankSet::of(std::span<const std::int32_t> ranks) {
  std::vector<std::int32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  RankSet set;
  for (const std::int32_t rank : sorted) set.append({rank, rank});
  return set;
}

void RankSet::append(Run run) {
  if (!runs_.empty() && run.first <= runs_.back().last + 1) {
    Run& end = runs_.back();
    count_ += std::max(0, run.last - end.last);
    end.last = std::max(end.last, run.last);
    return;
  }
  runs_.push_back(run);
  count_ += run.last - run.first + 1;
}

void RankSet::insert(const RankSet& other) {
  if (other.empty()) return;
  if (empty() || other.first() > last()) {  // in ascending order, as ranks and subtrees usually come
    for (const Run& run : other.runs_) append(run);
    return;
  }
  std::vector<Run> merged(runs_.size() + other.runs_.size());
  std::merge(runs_.begin(), runs_.end(), other.runs_.begin(), other.runs_.end(), merged.begin());
  runs_.clear();
  count_ = 0;
  for (const Run& run : merged) append(run);
}

bool RankSet::contains(int rank) const noexcept {
  const auto run = run_at(runs_, rank);
  return run != runs_.end() && run->first <= rank;
}

bool RankSet::includes(const RankSet& other) const noexcept {
  auto mine = runs_.begin();
  for (const Run& run : other.runs_) {
    while (mine != runs_.end() && mine->last < run.first) ++mine;
    if (mine == runs_.end() || mine->first > run.first || mine->last < run.last) return false;
  }
  return true;
}

bool RankSet::intersects(const RankSet& other) const noexcept {
  auto mine = runs_.begin();
  for (const Run& run : other.runs_) {
    while (mine != runs_.end() && mine->last < run.first) ++mine;
    if (mine == runs_.end()) return false;
    if (mine->first <= run.last) return true;
  }
  return false;
}

RankSet RankSet::intersection(const RankSet& other) const {
  RankSet common;
  auto mine = runs_.begin();
  auto theirs = other.runs_.begin();
  while (mine != runs_.end() && theirs != other.runs_.end()) {
    const Run run{std::max(mine->first, theirs->first), std::min(mine->last, theirs->last)};
    if (run.first <= run.last) common.append(run);
    if (mine->last < theirs->last) {
      ++mine;
    } else {
      ++theirs;
    }
  }
  return common;
}

RankSet RankSet::without(const RankSet& other) const {
  RankSet rest;
  auto theirs = other.runs_.begin();
  for (Run run : runs_) {
    while (theirs != other.runs_.end() && theirs->last < run.first) ++theirs;
    for (auto hole = theirs; hole != other.runs_.end() && hole->first <= run.last; ++hole) {
      if (hole->first > run.first) rest.append({run.first, hole->first - 1});
      run.first = hole->last + 1;
    }
    if (run.first <= run.last) rest.append(run);
  }
  return rest;
}

int RankSet::position(int rank) const noexcept {
  int smaller = 0;
  for (const Run& run : runs_) {
    if (run.first >= rank) break;
    smaller += std::min(run.last, rank - 1) - run.first + 1;
  }
  return smaller;
}

std::vector<int> RankSet::ranks() const {
  std::vector<int> list;
  list.reserve(static_cast<std::size_t>(count_));
  for (const Run& run : runs_) {
    for (int rank = run.first; rank <= run.last; ++rank) list.push_back(rank);
  }
  return list;
}

void write_rank_set(ByteWriter& out, const RankSet& set) {
  out.u32(static_cast<std::uint32_t>(set.runs().size()));
  for (const RankSet::Run& run : set.runs()) {
    out.i32(run.first);
    out.i32(run.last);
  }
}

RankSet read_rank_set(ByteReader& in) {
  const std::uint32_t count = in.u32();
  if (count > in.remaining() / 8) throw Protocol("a control message promises more ranks than it holds");
  RankSet set;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::int32_t first = in.i32();
    const std::int32_t last = in.i32();
    const bool in_order = set.empty() || first > set.last() + 1;
    if (first < 0 || last < first || last > kLargestRank || !in_order) {
      throw Protocol("a control message holds a malformed set of ranks");
    }
    set.insert(RankSet::range(first, last + 1));
  }
  return set;
}

}  // namespace ringtune
