// How the coordinator finds out that training repeats itself.
//
// It watches the tensors that are decided. A *round* is a run of tensors without repetition; it ends when it holds the
// same tensors as the round before, or when a tensor comes again. After some equal rounds (fewer when the schedule has
// served before, more when schedules of late did not last) their order, their gaps and the fusion size give the
// schedule.
//
// What ended a schedule that had served, and is none of its tensors, comes before the next round and is no part of it:
// a metric every hundred steps. When it comes again it is.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "control/request.h"
#include "fusion/knobs.h"

namespace ringtune {

/// A tensor that all ranks have reported and that has been decided.
struct Decided {
  std::uint32_t cache_id = 0;
  SharedRequest request;
  std::int64_t ready_ns = 0;   // when the last rank reported it
  std::uint64_t sequence = 0;  // of the decisions that hold it
  bool awaited = false;        // a caller of some rank was blocked then: what came later may depend on it
};

/// A pure machine; one thread drives it.
class ScheduleLearner {
 public:
  static constexpr int kRounds = 3;  // equal rounds before a new schedule

  /// Batches of cache numbers when a schedule is to begin after this tensor. Only after the `last` of those that are
  /// decided together: more of the same step would lie on the wrong side of the schedule's begin. A round is not taken
  /// for complete before that either, or the first part of a larger step, once a schedule itself, would hide the step
  /// for ever.
  [[nodiscard]] std::optional<std::vector<std::vector<std::uint32_t>>> decided(const Decided& tensor,
                                                                               const Knobs& knobs, bool last = true);
  /// Something that no schedule can hold: what was seen of the present round does not count.
  void disturbed();
  /// The schedule ended after so many batches, whole rounds of `batches`.
  void ended(std::uint64_t rounds, std::size_t batches);
  /// The schedule ended for one with more tensors. It does not begin by itself before that one could: some equal
  /// rounds, as if it were new.
  void outgrown();
  /// Settings have changed: batches are cut anew, and what was learnt of schedules is void.
  void reset();

 private:
  /// What is remembered of a set of tensors that was a schedule.
  struct Record {
    int failures = 0;     // times in a row that its schedule did not last
    bool apart = false;   // batches only as they were decided: callers depend on one for the next
    bool served = false;  // it has lasted before
  };
  [[nodiscard]] bool comes_between(std::uint32_t cache_id, std::size_t most);
  [[nodiscard]] bool matches_last() const noexcept;
  [[nodiscard]] std::uint64_t key() const noexcept { return sum_ * 31 + present_.size(); }
  [[nodiscard]] std::optional<std::vector<std::vector<std::uint32_t>>> build(const Knobs& knobs);
  void close_round();

  std::vector<Decided> present_;
  std::unordered_set<std::uint32_t> present_ids_;
  std::uint64_t sum_ = 0;   // of the mixed numbers: a name for the set
  std::size_t shared_ = 0;  // tensors of the present round that were in the last one
  std::unordered_set<std::uint32_t> last_ids_;
  bool first_ = true;  // the next tensor is the first of those decided together
  bool torn_ = false;  // a round has ended among tensors decided together: it does not begin where steps do
  int equal_ = 0;      // rounds with the tensors of the last one, itself included
  std::unordered_map<std::uint64_t, Record> records_;
  std::uint64_t active_ = 0;                        // key of the schedule that runs
  std::unordered_set<std::uint32_t> scheduled_;     // its tensors; also after its end, if it served
  std::unordered_set<std::uint32_t> came_between_;  // since its end
};

}  // namespace ringtune
