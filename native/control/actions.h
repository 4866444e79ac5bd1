// What the negotiator tells the runtime to do. Plain data, so that tests compare exact lists.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "control/messages.h"

namespace ringtune {

struct SendAction {
  int to = 0;
  Bytes payload;
  friend bool operator==(const SendAction&, const SendAction&) = default;
};

/// Run one fused batch of this rank's pending tensors, in this order.
struct ExecuteAction {
  std::uint32_t batch_id = 0;
  std::vector<std::string> names;
  std::vector<std::int64_t> rows;  // allgather: first dimension by member of the set
  std::uint32_t process_set = 0;   // whose member this rank is
  /// This rank has joined and has none of these tensors: it contributes neutral elements to them. Empty otherwise.
  std::vector<SharedRequest> absent;
  friend bool operator==(const ExecuteAction&, const ExecuteAction&) = default;
};

/// A schedule begins: all ranks come by here between the same two batches, and can connect what their batches of it
/// need.
struct BeginScheduleAction {
  std::uint32_t schedule_id = 0;
  std::vector<std::vector<SharedRequest>> batches;
  friend bool operator==(const BeginScheduleAction&, const BeginScheduleAction&) = default;
};

/// Run the next batch of the schedule (Negotiator::round_batch) if all ranks agree, and report to round_done.
struct RoundAction {
  std::uint32_t batch_id = 0;
  std::uint64_t token = 0;
  friend bool operator==(const RoundAction&, const RoundAction&) = default;
};

/// Vote against the next round of the schedule, which would have run this batch.
struct DeclineAction {
  std::uint64_t token = 0;
  std::vector<SharedRequest> batch;
  friend bool operator==(const DeclineAction&, const DeclineAction&) = default;
};

/// Finish one pending tensor with an error.
struct FailAction {
  FailureKind kind = FailureKind::kMismatch;
  std::string name;
  std::string message;
  std::uint32_t process_set = 0;
  friend bool operator==(const FailAction&, const FailAction&) = default;
};

struct ApplyKnobsAction {
  std::uint32_t knobs_version = 0;
  Knobs knobs;
  friend bool operator==(const ApplyKnobsAction&, const ApplyKnobsAction&) = default;
};

/// Warn: a tensor has waited `age_ns` for the ranks in `missing`.
struct StallAction {
  std::string name;
  std::vector<int> missing;
  std::int64_t age_ns = 0;
  std::uint32_t process_set = 0;
  std::string title = {};  // "'grad.3' (allreduce)"
  friend bool operator==(const StallAction&, const StallAction&) = default;
};

/// Every rank has reported tensors that wait for others: perhaps none can go on.
struct SuspicionAction {
  std::vector<StallAction> tensors;
  friend bool operator==(const SuspicionAction&, const SuspicionAction&) = default;
};

/// The job cannot go on: fail everything, now and later.
struct AbortAction {
  std::string message;
  bool known = true;  // to the other ranks
  friend bool operator==(const AbortAction&, const AbortAction&) = default;
};

/// Between the same two batches on every rank, members or not: a process set is there from now on, or gone. Finishes
/// the pending request `name` of the global set.
struct SetAction {
  std::string name;
  bool added = false;
  std::uint32_t id = 0;
  RankSet members;
  friend bool operator==(const SetAction&, const SetAction&) = default;
};

/// Every rank has joined: finishes the pending join `name`.
struct JoinAction {
  std::string name;
  int last_rank = 0;
  friend bool operator==(const JoinAction&, const JoinAction&) = default;
};

using Action = std::variant<SendAction, ExecuteAction, FailAction, ApplyKnobsAction, StallAction, SuspicionAction,
                            AbortAction, BeginScheduleAction, RoundAction, DeclineAction, SetAction, JoinAction>;

}  // namespace ringtune
