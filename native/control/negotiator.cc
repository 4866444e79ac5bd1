#include "control/negotiator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace ringtune {

Negotiator::Negotiator(const NegotiatorOptions& options)
    : options_(options),
      place_(tree_place(options.rank, options.size, options.fan_out)),
      worker_(options.rank, options.size, options.knobs, options.stall.warning_ns, options.hosts) {
  if (options.rank == 0) {
    coordinator_.emplace(CoordinatorOptions{options.size, options.fan_out, options.knobs, options.stall,
                                            options.schedules, options.hosts});
  } else if (!place_.children.empty()) {
    aggregator_.emplace(options.rank, place_);
  }
}

void Negotiator::local_ready(SharedRequest request, std::int64_t now_ns, Tag tag) {
  worker_.ready(std::move(request), tag, now_ns, actions_);
}

std::uint32_t Negotiator::propose(const Knobs& knobs) {
  RINGTUNE_CHECK(coordinator_.has_value(), "knobs are proposed on rank 0");
  return coordinator_->propose(knobs);
}

void Negotiator::peer_message(int from, ControlMessage message, std::size_t bytes, std::int64_t now_ns) {
  ++counters_.messages;
  counters_.bytes += bytes;
  const auto* news = std::get_if<WorkerNews>(&message);
  const auto* decisions = std::get_if<Decisions>(&message);
  if (news != nullptr && coordinator_) {
    coordinator_->announced(from, *news, now_ns);
  } else if (news != nullptr && aggregator_) {
    aggregator_->announced(from, *news, now_ns);
  } else if (decisions != nullptr && from == place_.parent) {
    publish(*decisions, now_ns);
  } else {
    throw Protocol("rank " + std::to_string(from) + " sent a control message that rank " +
                   std::to_string(options_.rank) + " does not take");
  }
}

void Negotiator::tick(std::int64_t now_ns) {
  worker_.tick(now_ns, actions_);
  if (coordinator_) coordinator_->tick(now_ns, actions_);
  exchange(now_ns);
  // A round that is posted comes after all decisions so far.
  const bool followed = in_schedule();
  worker_.follow_schedule(now_ns, actions_);
  if (followed && !in_schedule()) exchange(now_ns);
}

/// PeerInfos and decisions flow until neither side has anything to say: a decision can make the next bundle due.
void Negotiator::exchange(std::int64_t now_ns) {
  for (bool moved = true; moved;) {
    moved = announce(now_ns);
    if (!coordinator_) continue;
    if (const auto decisions = coordinator_->take_decisions()) {
      moved = true;
      publish(*decisions, now_ns);
    }
  }
}

/// The worker's news go to the coordinator or the aggregator of this rank, else to the parent.
bool Negotiator::announce(std::int64_t now_ns) {
  const std::optional<WorkerNews> own = worker_.take_news(now_ns);
  if (coordinator_) {
    if (own) coordinator_->announced(0, *own, now_ns);
    return own.has_value();
  }
  if (!aggregator_) {
    if (own) send(place_.parent, encode(*own));
    return own.has_value();
  }
  if (own) aggregator_->announced(options_.rank, *own, now_ns);
  const std::optional<WorkerNews> merged = aggregator_->take(now_ns);
  if (merged) send(place_.parent, encode(*merged));
  return own || merged;
}

/// Decisions go down the tree before they are acted on here: those below must not wait for a batch of this rank.
void Negotiator::publish(const Decisions& decisions, std::int64_t now_ns) {
  if (!place_.children.empty()) {
    const Bytes payload = encode(decisions);
    for (const TreeChild& child : place_.children) send(child.rank, payload);
  }
  if (aggregator_) aggregator_->decided(decisions);
  worker_.decided(decisions, now_ns, actions_);
}

void Negotiator::send(int to, Bytes payload) {
  ++counters_.messages;
  counters_.bytes += payload.size();
  actions_.push_back(SendAction{to, std::move(payload)});
}

std::vector<Action> Negotiator::take_actions() { return std::exchange(actions_, {}); }

std::int64_t Negotiator::next_wake_ns() const noexcept {
  std::int64_t next_ns = worker_.next_wake_ns();
  if (coordinator_) next_ns = std::min(next_ns, coordinator_->next_wake_ns());
  if (aggregator_) next_ns = std::min(next_ns, aggregator_->next_wake_ns());
  return next_ns;
}

bool Negotiator::free_to_go() const noexcept {
  if (coordinator_) return coordinator_->everyone_left();
  return worker_.has_left() && (!aggregator_ || aggregator_->free_to_go());
}

void Negotiator::validate_state() const {
  worker_.validate_state();
  if (coordinator_) coordinator_->validate_state();
  if (aggregator_) aggregator_->validate_state();
}

}  // namespace ringtune
