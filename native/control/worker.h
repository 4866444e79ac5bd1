// One rank's side of the negotiation: collects what became ready here, reports it in bundles, and turns the decisions
// of the coordinator into actions. A pure machine: no clock, socket or thread inside; one thread drives it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control/actions.h"
#include "control/departures.h"
#include "control/messages.h"
#include "control/process_sets.h"
#include "control/schedule_follower.h"
#include "control/tensor_key.h"

namespace ringtune {

class Worker {
 public:
  Worker(int rank, int size, const Knobs& knobs, std::int64_t stall_warning_ns, std::vector<std::string> hosts = {})
      : rank_(rank), knobs_(knobs), stall_warning_ns_(stall_warning_ns), hosts_(std::move(hosts)), sets_(size) {}

  /// A tensor is ready here. Its name is not pending (the caller has checked).
  void ready(SharedRequest request, Tag tag, std::int64_t now_ns, std::vector<Action>& actions);
  /// Whether a caller of this rank is blocked: bundles then leave at once.
  void set_waiting(bool waiting) noexcept;
  void report_step(const StepReport& report);
  /// `departure`: what this rank says about it, as Departure::who, how and failed.
  void leave(Departure departure) noexcept {
    leaving_ = true;
    departure_ = std::move(departure);
    departure_.rank = rank_;
  }

  /// The schedule, if one is followed. What is decided between a RoundAction and round_done has its turn after that.
  [[nodiscard]] const ScheduleFollower& schedule() const noexcept { return schedule_; }
  [[nodiscard]] bool round_posted() const noexcept { return round_posted_; }
  [[nodiscard]] bool receives_in_rounds() const noexcept { return schedule_.active() && sets_.several(); }
  void round_done(bool agreed, std::int64_t now_ns, std::vector<Action>& actions);
  /// Posts the next batch of the schedule, or leaves the schedule, when it is time. Last thing before the actions are
  /// taken.
  void follow_schedule(std::int64_t now_ns, std::vector<Action>& actions);
  /// Whether a tensor that is ready now would be the schedule's whole next batch, with nothing else in hand.
  [[nodiscard]] bool expects_alone(const Request& request) const noexcept {
    return schedule_.active() && !round_posted_ && !schedule_unfit_ && !leaving_ && schedule_.expects_alone(request);
  }
  /// That tensor is ready, and its batch posted.
  [[nodiscard]] RoundAction run_inline(const SharedRequest& request, Tag tag, std::int64_t now_ns);
  /// The coordinator has confirmed: no batch that needs this rank will come any more.
  [[nodiscard]] bool has_left() const noexcept { return left_ || (coordinator_left_ && sent_leaving_); }

  /// The next news for rank 0, when they are due at `now_ns`.
  [[nodiscard]] std::optional<WorkerNews> take_news(std::int64_t now_ns);
  void decided(const Decisions& decisions, std::int64_t now_ns, std::vector<Action>& actions);
  /// Warns of a coordinator that has been silent while tensors wait.
  void tick(std::int64_t now_ns, std::vector<Action>& actions);

  /// When take_news or tick will have something to do without a further event; kNever when never.
  [[nodiscard]] std::int64_t next_wake_ns() const noexcept;
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }
  /// Bytes that a held-back bundle can still take before it leaves; 0 when none is held back.
  [[nodiscard]] std::size_t bundle_room() const noexcept {
    if (round_posted_) return std::numeric_limits<std::int32_t>::max();  // nothing is begun before that is over
    if (schedule_.active()) return schedule_.pending() > 0 ? schedule_.room() : 0;
    return bundle_.empty() || bundle_bytes_ >= knobs_.fusion_bytes ? 0 : knobs_.fusion_bytes - bundle_bytes_;
  }
  /// Throws InvariantError when the tables contradict each other (tests).
  void validate_state() const;

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  struct Pending {
    SharedRequest request;
    std::int64_t since_ns;
    bool announced = false;
    std::uint64_t order = 0;  // in which they became ready
    Tag tag = 0;
  };
  struct Cached {
    std::uint32_t id;
    SharedRequest request;
    std::vector<std::int64_t> rows;  // of the batch that held the number
  };

  void enqueue(SharedRequest request, Tag tag, std::int64_t now_ns);
  void enter_schedule(const ScheduleDecision& decision, std::int64_t now_ns, std::vector<Action>& actions);
  static void decline(ScheduleFollower::Round round, std::vector<Action>& actions);
  void quit_schedule(std::int64_t now_ns);
  void leave_schedule(std::int64_t now_ns, std::vector<Action>& actions);
  [[nodiscard]] std::int64_t schedule_limit_ns() const noexcept;
  [[nodiscard]] std::int64_t hold_off_end_ns() const noexcept;
  [[nodiscard]] WorkerNews wish_for_the_end();
  [[nodiscard]] WorkerNews acknowledgement();
  /// Whether the coordinator keeps much only because it does not know what this rank has seen.
  [[nodiscard]] bool owes_acknowledgement() const noexcept { return seen_ - sent_seen_ >= kMostUnacknowledged; }
  RoundAction next_round(std::int64_t now_ns) noexcept;
  [[nodiscard]] bool bundle_due(std::int64_t now_ns) const noexcept;
  void apply(const BatchDecision& batch, std::vector<Action>& actions);
  void apply(const FailureDecision& failure, std::vector<Action>& actions);
  void apply(const LeftDecision& left, std::vector<Action>& actions);
  void apply(const SetDecision& change, std::vector<Action>& actions);
  void apply(const JoinDecision& join, std::vector<Action>& actions);
  SharedRequest take(const BatchDecision& batch, std::size_t index);
  void finish(const TensorKey& key);
  void find_overdue(std::int64_t now_ns, std::vector<Action>& actions);
  void fail_all(std::vector<Action>& actions);
  [[nodiscard]] std::string end_message(const Request& request) const;
  void cache_call(std::uint32_t id, const SharedRequest& request, const std::vector<std::int64_t>& rows);
  void forget(std::uint32_t id);

  int rank_;
  Knobs knobs_;
  std::int64_t stall_warning_ns_;
  std::vector<std::string> hosts_;
  ProcessSets sets_;
  std::unordered_map<TensorKey, Pending, TensorKeyHash> pending_;
  std::vector<TensorKey> bundle_;  // pending tensors that have not been reported
  std::size_t bundle_bytes_ = 0;
  std::int64_t bundle_since_ns_ = 0;
  std::vector<StepReport> steps_;
  std::string join_name_;  // of the last join
  std::unordered_map<TensorKey, Cached, TensorKeyHash> cache_;
  std::unordered_map<std::uint32_t, TensorKey> keys_by_id_;
  static constexpr std::uint64_t kMostUnacknowledged = 1024;
  std::uint64_t seen_ = 0;
  std::uint64_t sent_seen_ = 0;  // to the coordinator
  std::uint64_t order_ = 0;
  ScheduleFollower schedule_;
  bool round_posted_ = false;
  std::vector<Decisions> deferred_;    // that came while it was
  bool schedule_unfit_ = false;        // a tensor came that is none of the schedule's
  std::int64_t round_since_ns_ = 0;    // when it was posted
  std::uint32_t wished_ended_ = 0;     // a schedule for whose end the coordinator was asked
  std::uint32_t left_schedule_ = 0;    // to be sent to the coordinator
  std::uint64_t schedule_rounds_ = 0;  // of the schedule that was left
  std::uint32_t first_batch_ = 0;      // the number of the schedule's first batch
  std::int64_t waiting_since_ns_ = kNever;
  std::int64_t last_message_ns_ = 0;
  std::int64_t next_stall_ns_ = kNever;
  std::int64_t next_overdue_ns_ = kNever;  // when a tensor may have outlived its timeout, and rank 0 said nothing
  bool waiting_ = false;
  bool sent_waiting_ = false;
  bool leaving_ = false;
  Departure departure_;    // of this rank
  Departures departures_;  // of all that have left
  bool sent_leaving_ = false;
  bool left_ = false;
  bool coordinator_left_ = false;
};

}  // namespace ringtune
