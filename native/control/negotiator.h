// The negotiation of one rank: its Worker, on rank 0 the Coordinator as well, and on a rank in the middle of the tree
// an Aggregator. Events in, actions out; a message of a rank to itself never leaves the machine. Pure: driven by one
// thread, with the time as an argument.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "control/actions.h"
#include "control/aggregator.h"
#include "control/coordinator.h"
#include "control/tree.h"
#include "control/worker.h"

namespace ringtune {

struct NegotiatorOptions {
  int rank = 0;
  int size = 1;
  int fan_out = kDefaultFanOut;
  Knobs knobs;
  StallLimits stall;
  bool schedules = false;               // the ranks agree on the rounds of a schedule without messages
  std::vector<std::string> hosts = {};  // by rank, for messages; none: ranks are named by their numbers alone
};

struct ControlCounters {
  std::uint64_t messages = 0;  // sent and received over links
  std::uint64_t bytes = 0;
};

class Negotiator {
 public:
  explicit Negotiator(const NegotiatorOptions& options);

  /// `tag`: what the runtime hangs on the tensor; round_batch() gives it back.
  void local_ready(SharedRequest request, std::int64_t now_ns, Tag tag = 0);
  void set_waiting(bool waiting) noexcept { worker_.set_waiting(waiting); }
  void report_step(const StepReport& report) { worker_.report_step(report); }
  /// A message of the negotiation from a neighbour in the tree: news of a child, decisions of the parent. Throws
  /// Protocol.
  void peer_message(int from, ControlMessage message, std::size_t bytes, std::int64_t now_ns);
  void tick(std::int64_t now_ns);
  /// What this rank says about it: Departure::who, how and failed.
  void leave(Departure departure = {}) noexcept { worker_.leave(std::move(departure)); }
  /// Rank 0 only. Returns the knobs version of the change.
  std::uint32_t propose(const Knobs& knobs);

  /// A RoundAction was given and is not done. Messages may be taken meanwhile; what they decide for this rank waits.
  [[nodiscard]] bool round_posted() const noexcept { return worker_.round_posted(); }
  [[nodiscard]] std::span<const Tag> round_batch() const noexcept { return worker_.schedule().batch(); }
  [[nodiscard]] const std::vector<std::int64_t>& round_rows() const noexcept { return worker_.schedule().rows(); }
  void round_done(bool agreed, std::int64_t now_ns) { worker_.round_done(agreed, now_ns, actions_); }
  [[nodiscard]] bool in_schedule() const noexcept { return worker_.schedule().active(); }
  /// The process set of the schedule's next batch, which may be posted; in a schedule.
  [[nodiscard]] std::uint32_t schedule_set() const noexcept { return worker_.schedule().process_set(); }
  /// While a round is posted, messages must be taken (schedule_follower.h).
  [[nodiscard]] bool receives_in_rounds() const noexcept { return worker_.receives_in_rounds(); }
  /// Which round of the schedule's batches is under way; in a schedule. Never the same in another schedule.
  [[nodiscard]] std::uint64_t schedule_pass() const noexcept { return worker_.schedule().pass(); }
  /// Whether a tensor that is ready now would be the schedule's whole next batch, with nothing else in hand; then
  /// run_inline is local_ready, tick and take_actions in one.
  [[nodiscard]] bool expects_alone(const Request& request) const noexcept { return worker_.expects_alone(request); }
  [[nodiscard]] RoundAction run_inline(const SharedRequest& request, Tag tag, std::int64_t now_ns) {
    return worker_.run_inline(request, tag, now_ns);
  }

  /// What to do now, in this order. Call after every event.
  [[nodiscard]] std::vector<Action> take_actions();
  /// When tick must be called if nothing else happens; Worker::kNever when never.
  [[nodiscard]] std::int64_t next_wake_ns() const noexcept;

  /// No batch that needs this rank will come any more.
  [[nodiscard]] bool has_left() const noexcept { return worker_.has_left(); }
  /// This rank takes part in nothing any more, and no other rank needs it to pass on messages.
  [[nodiscard]] bool free_to_go() const noexcept;
  [[nodiscard]] std::size_t bundle_room() const noexcept { return worker_.bundle_room(); }
  [[nodiscard]] std::size_t pending() const noexcept { return worker_.pending(); }
  [[nodiscard]] StepReport world_step() const noexcept {
    return coordinator_ ? coordinator_->world_step() : StepReport{};
  }
  [[nodiscard]] const ControlCounters& counters() const noexcept { return counters_; }
  /// Rank 0 only: the ranks that a tensor waits for.
  [[nodiscard]] RankSet awaited(const TensorKey& key) const { return coordinator_->awaited(key); }
  void validate_state() const;

 private:
  void exchange(std::int64_t now_ns);
  bool announce(std::int64_t now_ns);
  void send(int to, Bytes payload);
  void publish(const Decisions& decisions, std::int64_t now_ns);

  NegotiatorOptions options_;
  TreePlace place_;
  Worker worker_;
  std::optional<Coordinator> coordinator_;
  std::optional<Aggregator> aggregator_;  // of a rank with a parent and children
  std::vector<Action> actions_;
  ControlCounters counters_;
};

}  // namespace ringtune
