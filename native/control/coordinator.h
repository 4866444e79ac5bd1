// The deciding side of the negotiation, on rank 0: counts ready requests, compares them, schedules batches, numbers
// tensors for the response cache, keeps the process sets, watches for stalls. A pure machine: no clock, socket or
// thread inside; one thread drives it.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/actions.h"
#include "control/departures.h"
#include "control/messages.h"
#include "control/process_sets.h"
#include "control/response_cache.h"
#include "control/schedule_learner.h"
#include "control/stall.h"
#include "control/tensor_key.h"
#include "control/tree.h"

namespace ringtune {

struct CoordinatorOptions {
  int size = 1;
  int fan_out = kDefaultFanOut;
  Knobs knobs;
  StallLimits stall;
  bool schedules = false;               // the ranks can follow one (NegotiatorOptions)
  std::vector<std::string> hosts = {};  // likewise
};

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);

  /// News of this rank itself or of a child in the tree. Throws Protocol when they contradict what was said before.
  void announced(int from, const WorkerNews& message, std::int64_t now_ns);
  /// All ranks will switch between the same two batches. Returns the knobs version of the change.
  std::uint32_t propose(const Knobs& knobs);
  void tick(std::int64_t now_ns, std::vector<Action>& actions);
  /// What was decided since the last call, for every rank including this one.
  [[nodiscard]] std::optional<Decisions> take_decisions();

  [[nodiscard]] std::int64_t next_wake_ns() const noexcept { return entries_.empty() ? kNever : next_stall_ns_; }
  [[nodiscard]] bool everyone_left() const noexcept { return left_.count() == size_; }
  /// The newest step that all ranks have reported, and the longest duration among them.
  [[nodiscard]] StepReport world_step() const noexcept { return world_step_; }
  /// The ranks that a tensor waits for; none when nobody has reported it.
  [[nodiscard]] RankSet awaited(const TensorKey& key) const;
  void validate_state() const;

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  /// A tensor that some ranks have reported.
  struct Entry {
    SharedRequest first;            // the first rank's
    std::vector<Variant> variants;  // reported in full, or by a number that is being forgotten
    RankSet by_number;              // reported by the live number
    RankSet announced;              // in either way
    std::int64_t first_ns = 0;
    std::int64_t warned_ns = 0;
  };
  using Entries = std::map<TensorKey, Entry>;  // ordered: warnings come in a stable order

  /// A tensor that all members have reported alike, but for those that have joined.
  struct Ready {
    SharedRequest request;
    std::uint32_t cache_id = TensorRef::kUncached;
    std::vector<std::int64_t> rows;
    RankSet absent;
    std::int64_t ready_ns = 0;
  };
  /// Tensors that run only together: the members that are ready, and whether one has failed.
  struct Group {
    std::vector<Ready> members;
    std::uint32_t failed = 0;
    std::string failure;
    FailureKind kind = FailureKind::kMismatch;  // of its members' failures
  };

  /// What a child speaks for.
  struct Child {
    RankSet ranks;
    std::uint64_t acknowledged = 0;
    bool waiting = false;  // it said last that a caller is blocked
  };

  void take_over(int from, const Child& child, const WorkerNews& message, std::int64_t now_ns);
  void drop_evicted();
  [[nodiscard]] RankSet spoken_for(const Child& child, int from, const RankSet& ranks) const;
  void add_numbered(int from, std::uint32_t id, const RankSet* some, std::int64_t now_ns);
  void add_in_full(int from, const Variant& variant, std::int64_t now_ns);
  Entry& count_in(const SharedRequest& request, const RankSet& ranks, std::int64_t now_ns);
  static void expand(const ResponseCache::Slot& slot, const RankSet& ranks, std::vector<Variant>& variants);
  void settle(const TensorKey& key, std::int64_t now_ns);
  [[nodiscard]] bool hopeless(const TensorKey& key, const Entry& entry, const RankSet& absent);
  void complete(Ready ready, Entry entry);
  void enqueue(Ready ready);
  void part(const Request& request, FailureKind kind, const std::string& message);
  void fail(const Request& request, FailureKind kind, const std::string& message);
  void doom(const Request& request, FailureKind kind, const std::string& message);
  void fail_members(const Group& group, FailureKind kind, const std::string& message);
  void change_sets(const Request& request);
  void remove_set(std::uint32_t id);
  void join(const RankSet& ranks, const Request& request, std::int64_t now_ns);
  void resettle(std::int64_t now_ns);
  [[nodiscard]] TensorRef reference(const Ready& ready);
  void schedule_ready();
  void decide_batch(const std::vector<std::uint32_t>& members);
  void learn();
  void learn_beside();
  void begin_schedule(const std::vector<std::vector<std::uint32_t>>& batches);
  void schedule_left(std::uint32_t schedule_id, std::uint64_t rounds);
  void end_schedule();
  void switch_to(const Knobs& knobs);
  void ranks_left(const RankSet& ranks, const std::vector<Departure>& departures, std::int64_t now_ns);
  [[nodiscard]] std::string leavers_message(const Request& request) const;
  void suspect(std::int64_t now_ns, std::vector<Action>& actions);
  [[nodiscard]] StallAction stall_of(const TensorKey& key, const Entry& entry, std::int64_t now_ns) const;
  void note_steps(const std::vector<StepTally>& steps);
  std::uint32_t number(const Ready& ready, std::vector<Variant> variants);
  void evict(std::uint32_t id);
  void trim_cache();
  [[nodiscard]] RankSet missing_ranks(const TensorKey& key, const Entry& entry) const;

  int size_;
  Knobs knobs_;
  StallLimits stall_;
  std::vector<std::string> hosts_;
  std::map<int, Child> children_;  // by rank, rank 0 itself among them
  ProcessSets sets_;
  Entries entries_;
  std::vector<Ready> ready_;
  std::map<TensorKey, Group> groups_;
  ResponseCache cache_;
  RankSet left_;
  Departures departures_;  // of these
  RankSet joined_;
  std::string join_name_;
  int last_joined_ = 0;
  bool joined_lately_ = false;  // somebody joined since the last decisions: the next one came at the same time

  // The schedule (see schedule_follower.h).
  bool schedules_;
  ScheduleLearner learner_;
  std::uint32_t schedule_id_ = 0;  // that runs; 0 = none
  std::uint32_t last_schedule_id_ = 0;
  std::size_t schedule_batches_ = 0;
  std::uint32_t schedule_first_ = 0;               // number of the first batch of the last schedule
  std::uint32_t schedule_end_ = 1;                 // behind the numbers of all its batches
  std::uint64_t schedule_sequence_ = 0;            // of the decisions that began the last schedule
  std::unordered_map<std::uint32_t, int> beside_;  // tensors that are decided while it runs, which it might hold

  std::vector<Decision> items_;
  std::uint64_t sequence_ = 0;
  std::uint32_t next_batch_id_ = 1;
  std::uint32_t knobs_version_ = 0;
  std::int64_t next_stall_ns_ = kNever;
  std::int64_t suspected_ns_ = 0;  // when last
  std::int64_t suspicion_pause_ns_ = StallLimits::kSuspiciousNs;
  std::map<std::uint32_t, std::pair<int, std::int64_t>> step_counts_;  // step -> ranks that reported, longest
  StepReport world_step_;
};

}  // namespace ringtune
