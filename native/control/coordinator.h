// The deciding side of the negotiation, on rank 0: counts announcements, compares them, plans batches, numbers tensors
// for the response cache, watches for stalls. A pure machine: no clock, socket or thread inside; one thread drives it.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "control/actions.h"
#include "control/messages.h"
#include "control/plan_learner.h"

namespace ringtune {

struct StallLimits {
  std::int64_t warning_ns = 60'000'000'000;  // 0 = never warn
  std::int64_t shutdown_ns = 0;              // 0 = never end the job
};

class Coordinator {
 public:
  /// `plans`: the ranks can follow one (NegotiatorOptions).
  Coordinator(int size, const Knobs& knobs, const StallLimits& stall, bool plans = false);

  /// Throws Protocol when the message contradicts what the rank said before.
  void announced(int from, const WorkerNews& message, std::int64_t now_ns);
  /// All ranks will switch between the same two batches. Returns the epoch of the change.
  std::uint32_t propose(const Knobs& knobs);
  void tick(std::int64_t now_ns, std::vector<Action>& actions);
  /// What was decided since the last call, for every rank including this one.
  [[nodiscard]] std::optional<Decisions> take_decisions();

  [[nodiscard]] std::int64_t next_wake_ns() const noexcept { return entries_.empty() ? kNever : next_stall_ns_; }
  [[nodiscard]] bool everyone_left() const noexcept { return left_count_ == size_; }
  /// The newest step that all ranks have reported, and the longest duration among them.
  [[nodiscard]] StepReport world_step() const noexcept { return world_step_; }
  void validate_state() const;

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  /// A tensor that some ranks have announced.
  struct Entry {
    std::vector<SharedRequest> by_rank;
    int count = 0;
    std::uint32_t cache_id = TensorRef::kUncached;  // the number that all announcements so far have used
    bool in_full = false;                           // some rank sent the whole request
    std::int64_t first_ns = 0;
    std::int64_t warned_ns = 0;
  };
  /// A numbered tensor.
  struct Slot {
    std::string name;
    std::vector<SharedRequest> by_rank;
    std::uint64_t evicted_in = 0;  // sequence of the decisions that evicted it; 0 = live
    bool told = false;             // the ranks know the number
    std::list<std::uint32_t>::iterator use;
  };
  /// A tensor that all ranks have announced, alike.
  struct Ready {
    SharedRequest request;
    std::uint32_t cache_id = TensorRef::kUncached;
    std::vector<std::int64_t> rows;
    std::int64_t ready_ns = 0;
  };
  /// Tensors that run only together: the members that are ready, and whether one has failed.
  struct Group {
    std::vector<Ready> members;
    std::uint32_t failed = 0;
    std::string failure;
  };

  void add(int from, SharedRequest request, std::uint32_t cache_id, std::int64_t now_ns);
  void complete(const std::string& name, Entry entry, std::int64_t now_ns);
  void enqueue(Ready ready);
  void fail(const Request& request, FailureKind kind, const std::string& message);
  [[nodiscard]] TensorRef reference(const Ready& ready);
  void plan_ready();
  void learn();
  void begin_plan(std::vector<std::vector<std::uint32_t>> batches);
  void end_plan(std::uint64_t rounds);
  void switch_to(const Knobs& knobs);
  void rank_left(int rank);
  [[nodiscard]] std::string leavers_message(const std::string& name) const;
  void note_steps(const std::vector<StepReport>& steps);
  std::uint32_t number(const std::string& name, std::vector<SharedRequest> by_rank);
  void evict(std::uint32_t id);
  void trim_cache();
  void drop_tombstones();
  [[nodiscard]] std::vector<int> missing_ranks(const Entry& entry) const;

  int size_;
  Knobs knobs_;
  StallLimits stall_;
  std::map<std::string, Entry> entries_;  // ordered: warnings come in a stable order
  std::vector<Ready> ready_;
  std::map<std::string, Group> groups_;
  std::unordered_map<std::uint32_t, Slot> slots_;
  std::unordered_map<std::string, std::uint32_t> ids_by_name_;
  std::list<std::uint32_t> least_used_;  // live numbers, oldest use first
  std::vector<std::uint32_t> tombstones_;
  std::vector<std::uint64_t> seen_;
  std::vector<bool> waiting_;  // ranks that said last that a caller is blocked

  // The plan (see plan_follower.h).
  bool plans_;
  PlanLearner learner_;
  std::uint32_t plan_id_ = 0;  // that runs; 0 = none
  std::uint32_t last_plan_id_ = 0;
  std::size_t plan_batches_ = 0;
  std::uint64_t plan_sequence_ = 0;  // of the decisions that began the last plan
  std::vector<Knobs> proposed_;      // wait for the end of the plan
  std::vector<bool> left_;
  int left_count_ = 0;
  std::vector<Decision> items_;
  std::uint64_t sequence_ = 0;
  std::uint32_t next_cache_id_ = 1;
  std::uint32_t next_batch_id_ = 1;
  std::uint32_t epoch_ = 0;
  std::int64_t next_stall_ns_ = kNever;
  std::map<std::uint32_t, std::pair<int, std::int64_t>> step_counts_;  // step -> ranks that reported, longest
  StepReport world_step_;
};

}  // namespace ringtune
