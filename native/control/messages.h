// What travels on the control links. Workers announce, the coordinator (rank 0) decides; the stream of decisions is the
// same for every rank, and its order is the order of execution.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "control/request.h"
#include "fusion/knobs.h"

namespace ringtune {

/// Duration of one training step on the sending rank.
struct StepReport {
  std::uint32_t step = 0;
  std::int64_t duration_ns = 0;
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

/// Worker -> coordinator.
struct WorkerNews {
  std::uint64_t seen = 0;             // decisions this rank has processed: frees evicted cache numbers
  bool waiting = false;               // a caller of this rank is blocked: do not hold batches back
  bool leaving = false;               // the rank shuts down
  std::vector<std::uint32_t> cached;  // tensors known by number
  std::vector<Request> requests;      // tensors in full
  std::vector<StepReport> steps;
  std::uint32_t left_plan = 0;    // the plan that this rank has just left; 0 = none
  std::uint64_t plan_rounds = 0;  // batches of it that have run
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
  std::vector<std::int64_t> rows;  // allgather: first dimension by rank
  friend bool operator==(const BatchDecision&, const BatchDecision&) = default;
};

enum class FailureKind : std::uint8_t { kMismatch = 0, kShutDown = 1 };

struct FailureDecision {
  FailureKind kind = FailureKind::kMismatch;
  std::string name;
  std::string message;
  friend bool operator==(const FailureDecision&, const FailureDecision&) = default;
};

struct KnobsDecision {
  std::uint32_t epoch = 0;
  Knobs knobs;
  friend bool operator==(const KnobsDecision&, const KnobsDecision&) = default;
};

struct EvictDecision {
  std::vector<std::uint32_t> cache_ids;
  friend bool operator==(const EvictDecision&, const EvictDecision&) = default;
};

/// A rank has left; `rank` 0 ends the job for the others.
struct LeftDecision {
  std::int32_t rank = 0;
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
  friend bool operator==(const StallDecision&, const StallDecision&) = default;
};

/// From here on the ranks run these batches of cached tensors in this order, again and again, without being told.
/// What was announced and not decided before belongs to the plan.
struct PlanDecision {
  std::uint32_t plan_id = 0;
  std::vector<std::vector<std::uint32_t>> batches;
  friend bool operator==(const PlanDecision&, const PlanDecision&) = default;
};

/// Some rank has left the plan: all others do at their next batch.
struct PlanEndDecision {
  std::uint32_t plan_id = 0;
  friend bool operator==(const PlanEndDecision&, const PlanEndDecision&) = default;
};

using Decision = std::variant<BatchDecision, FailureDecision, KnobsDecision, EvictDecision, LeftDecision, AbortDecision,
                              StallDecision, PlanDecision, PlanEndDecision>;

/// Coordinator -> every rank.
struct Decisions {
  std::uint64_t sequence = 0;  // 1, 2, 3 ...
  std::vector<Decision> items;
  friend bool operator==(const Decisions&, const Decisions&) = default;
};

/// Clock exchange, beside the stream: worker -> coordinator (coordinator_ns = 0) and back.
struct ClockPing {
  std::int64_t worker_ns = 0;
  std::int64_t coordinator_ns = 0;
  friend bool operator==(const ClockPing&, const ClockPing&) = default;
};

using ControlMessage = std::variant<WorkerNews, Decisions, ClockPing>;

[[nodiscard]] Bytes encode(const ControlMessage& message);
[[nodiscard]] ControlMessage decode(ByteView bytes);  // throws Protocol

}  // namespace ringtune
