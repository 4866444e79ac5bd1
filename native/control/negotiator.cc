#include "control/negotiator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ringtune {

Negotiator::Negotiator(const NegotiatorOptions& options)
    : options_(options), worker_(options.rank, options.size, options.knobs, options.stall.warning_ns) {
  if (options.rank == 0)
    coordinator_.emplace(CoordinatorOptions{options.size, options.size, options.knobs, options.stall, options.plans});
}

void Negotiator::local_ready(SharedRequest request, std::int64_t now_ns, Tag tag) {
  worker_.ready(std::move(request), tag, now_ns, actions_);
}

std::uint32_t Negotiator::propose(const Knobs& knobs) {
  RINGTUNE_CHECK(coordinator_.has_value(), "knobs are proposed on rank 0");
  worker_.leave_plan_soon();
  return coordinator_->propose(knobs);
}

void Negotiator::peer_message(int from, ControlMessage message, std::size_t bytes, std::int64_t now_ns) {
  ++counters_.messages;
  counters_.bytes += bytes;
  if (const auto* announcement = std::get_if<WorkerNews>(&message); announcement != nullptr && coordinator_) {
    coordinator_->announced(from, *announcement, now_ns);
  } else if (const auto* decisions = std::get_if<Decisions>(&message); decisions != nullptr && from == 0) {
    worker_.decided(*decisions, now_ns, actions_);
  } else {
    throw Protocol("rank " + std::to_string(from) + " sent a control message that rank " +
                   std::to_string(options_.rank) + " does not take");
  }
}

void Negotiator::tick(std::int64_t now_ns) {
  worker_.tick(now_ns, actions_);
  if (coordinator_) coordinator_->tick(now_ns, actions_);
  exchange(now_ns);
  // A round that is posted hears no decisions: it comes after them.
  const bool followed = in_plan();
  worker_.follow_plan(now_ns, actions_);
  if (followed && !in_plan()) exchange(now_ns);
}

/// Announcements and decisions flow until neither side has anything to say: a decision can make the next bundle due.
void Negotiator::exchange(std::int64_t now_ns) {
  for (bool moved = true; moved;) {
    moved = false;
    if (const auto announcement = worker_.take_announcement(now_ns)) {
      moved = true;
      if (coordinator_) {
        coordinator_->announced(0, *announcement, now_ns);
      } else {
        send(0, *announcement);
      }
    }
    if (!coordinator_) continue;
    if (const auto decisions = coordinator_->take_decisions()) {
      moved = true;
      publish(*decisions, now_ns);
    }
  }
}

void Negotiator::publish(const Decisions& decisions, std::int64_t now_ns) {
  if (options_.size > 1) {
    const Bytes payload = encode(decisions);
    for (int to = 1; to < options_.size; ++to) {
      ++counters_.messages;
      counters_.bytes += payload.size();
      actions_.push_back(SendAction{to, payload});
    }
  }
  worker_.decided(decisions, now_ns, actions_);
}

void Negotiator::send(int to, const ControlMessage& message) {
  Bytes payload = encode(message);
  ++counters_.messages;
  counters_.bytes += payload.size();
  actions_.push_back(SendAction{to, std::move(payload)});
}

std::vector<Action> Negotiator::take_actions() { return std::exchange(actions_, {}); }

std::int64_t Negotiator::next_wake_ns() const noexcept {
  const std::int64_t worker_ns = worker_.next_wake_ns();
  return coordinator_ ? std::min(worker_ns, coordinator_->next_wake_ns()) : worker_ns;
}

void Negotiator::validate_state() const {
  worker_.validate_state();
  if (coordinator_) coordinator_->validate_state();
}

}  // namespace ringtune
