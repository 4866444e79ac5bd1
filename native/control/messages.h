// What travels on the control links, which form a tree around rank 0. Workers report, the coordinator (rank 0)
// decides; the stream of decisions is the same for every rank, and its order is the order of execution.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "control/departures.h"
#include "control/rank_set.h"
#include "control/request.h"
#include "fusion/knobs.h"

namespace ringtune {

/// Duration of one training step on the sending rank.
struct StepReport {
  std::uint32_t step = 0;
  std::int64_t duration_ns = 0;
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

/// What some ranks have reported of one step.
struct StepTally {
  std::uint32_t step = 0;
  std::int64_t longest_ns = 0;
  std::int32_t ranks = 1;
  friend bool operator==(const StepTally&, const StepTally&) = default;
};

/// A tensor known by number, from some ranks of the sender's subtree.
struct PartialNews {
  std::uint32_t cache_id = 0;
  RankSet ranks;
  friend bool operator==(const PartialNews&, const PartialNews&) = default;
};

/// From a rank to its parent in the tree, for all ranks of its subtree; at the root the coordinator.
struct WorkerNews {
  std::uint64_t seen = 0;             // decisions the sender has processed
  std::uint64_t acknowledged = 0;     // decisions that all ranks of its subtree have processed: frees cache numbers
  bool waiting = false;               // a caller is blocked: do not hold batches back
  RankSet leaving;                    // ranks that shut down
  std::vector<Departure> departures;  // what some of them say about that
  std::vector<std::uint32_t> cached;  // tensors known by number, from all members of their set in the subtree
  std::vector<PartialNews> partial;   // the same, from some
  std::vector<Variant> requests;      // tensors in full
  std::vector<StepTally> steps;
  std::uint32_t left_schedule = 0;    // the schedule that the ranks have just left; 0 = none
  std::uint64_t schedule_rounds = 0;  // batches of it that have run
  friend bool operator==(const WorkerNews&, const WorkerNews&) = default;
};

/// A tensor of a batch: by cache number, or by name when it has none yet.
struct TensorRef {
  static constexpr std::uint32_t kUncached = 0;
  std::uint32_t cache_id = kUncached;
  std::string name;  // empty when the ranks know the number already
  friend bool operator==(const TensorRef&, const TensorRef&) = default;
};

struct BatchDecision {
  std::uint32_t batch_id = 0;
  std::vector<TensorRef> tensors;
  std::vector<std::int64_t> rows;  // allgather: first dimension by member of the set; empty for a known number
  std::uint32_t process_set = 0;
  RankSet absent;                  // members that have joined: they contribute neutral elements
  std::vector<Variant> templates;  // what the absent need to know, by tensor; empty when nobody is absent
  friend bool operator==(const BatchDecision&, const BatchDecision&) = default;
};

enum class FailureKind : std::uint8_t {
  kMismatch = 0,
  kShutDown = 1,
  kInvalidArgument = 2,
  // It has not run, and its caller is to submit it again (find_uneven):
  kSomeAbsent = 3,  // with neutral elements where there is no gradient
  kSomeSparse = 4,  // as rows
  // It has not run, and the runtime is to submit it again:
  kNotByNccl = 5,  // another data path, as the set's next ones, since ranks have named different ones (find_parting)
  kStageOnce = 6,  // staged, this one alone
  kNotByRing = 7,  // as the first
  kNotWithinHosts = 8,  // by NCCL there: as the first
  kNotPacked = 9,       // by NCCL so: as the first
};
inline constexpr FailureKind kLastFailureKind = FailureKind::kNotPacked;
[[nodiscard]] constexpr bool runs_later(FailureKind kind) noexcept { return kind >= FailureKind::kSomeAbsent; }

struct FailureDecision {
  FailureKind kind = FailureKind::kMismatch;
  std::string name;
  std::string message;
  std::uint32_t process_set = 0;
  friend bool operator==(const FailureDecision&, const FailureDecision&) = default;
};

struct KnobsDecision {
  std::uint32_t knobs_version = 0;
  Knobs knobs;
  friend bool operator==(const KnobsDecision&, const KnobsDecision&) = default;
};

struct EvictDecision {
  std::vector<std::uint32_t> cache_ids;
  friend bool operator==(const EvictDecision&, const EvictDecision&) = default;
};

/// A rank has left; rank 0 ends the job for the others.
struct LeftDecision {
  Departure departure;
  friend bool operator==(const LeftDecision&, const LeftDecision&) = default;
};

/// Ends the job everywhere (stall limit).
struct AbortDecision {
  std::string message;
  friend bool operator==(const AbortDecision&, const AbortDecision&) = default;
};

/// Tells the workers that a stall was seen and reported by the coordinator.
struct StallDecision {
  std::string name;
  std::uint32_t process_set = 0;
  friend bool operator==(const StallDecision&, const StallDecision&) = default;
};

/// Some cached tensors of one process set.
struct ScheduledBatch {
  std::uint32_t process_set = 0;
  std::vector<std::uint32_t> cache_ids;
  friend bool operator==(const ScheduledBatch&, const ScheduledBatch&) = default;
};

/// From here on the ranks run these batches in this order, each those of its sets, again and again, without a message.
/// What was reported and not decided before belongs to the schedule, or is reported again by ranks that have no part
/// in it.
struct ScheduleDecision {
  std::uint32_t schedule_id = 0;
  std::uint32_t first_batch = 0;  // the number of its first batch, from which all ranks count alike
  std::vector<ScheduledBatch> batches;
  friend bool operator==(const ScheduleDecision&, const ScheduleDecision&) = default;
};

/// Some rank has left the schedule: all others do at their next batch.
struct PlanEndDecision {
  std::uint32_t schedule_id = 0;
  friend bool operator==(const PlanEndDecision&, const PlanEndDecision&) = default;
};

/// A process set is there from now on, or gone. `name` is the request that all ranks have made.
struct SetDecision {
  std::string name;
  bool added = false;
  std::uint32_t id = 0;
  RankSet members;
  friend bool operator==(const SetDecision&, const SetDecision&) = default;
};

/// All ranks have joined: nobody is absent any more.
struct JoinDecision {
  std::int32_t last_rank = 0;
  friend bool operator==(const JoinDecision&, const JoinDecision&) = default;
};

using Decision = std::variant<BatchDecision, FailureDecision, KnobsDecision, EvictDecision, LeftDecision, AbortDecision,
                              StallDecision, ScheduleDecision, PlanEndDecision, SetDecision, JoinDecision>;

/// Coordinator -> every rank.
struct Decisions {
  std::uint64_t sequence = 0;  // 1, 2, 3 ...
  std::vector<Decision> items;
  friend bool operator==(const Decisions&, const Decisions&) = default;
};

/// Clock exchange, beside the stream: along the tree from a worker to the coordinator (coordinator_ns = 0) and back.
struct ClockPing {
  std::int64_t worker_ns = 0;
  std::int64_t coordinator_ns = 0;
  std::int32_t rank = 0;  // whose clock is compared
  friend bool operator==(const ClockPing&, const ClockPing&) = default;
};

/// Which ranks a tensor waits for: asked along the tree by a rank that has reported it, and answered by the
/// coordinator.
struct WaitQuery {
  std::int32_t rank = 0;     // who asks
  std::uint32_t number = 0;  // of its questions
  std::string name;
  std::uint32_t process_set = 0;
  bool answered = false;
  RankSet missing;
  friend bool operator==(const WaitQuery&, const WaitQuery&) = default;
};

using ControlMessage = std::variant<WorkerNews, Decisions, ClockPing, WaitQuery>;

[[nodiscard]] Bytes encode(const ControlMessage& message);
[[nodiscard]] ControlMessage decode(ByteView bytes);  // throws Protocol

}  // namespace ringtune
