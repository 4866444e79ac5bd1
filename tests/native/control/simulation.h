// A whole job's negotiation in one thread: the negotiators of all ranks, a hand-turned clock, and messages that are
// delivered in order, at once or when a test says so.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "control/negotiator.h"

namespace ringtune::testing_support {

inline Request allreduce(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  Request request;
  request.name = name;
  request.shape = std::move(shape);
  return request;
}

class Simulation {
 public:
  explicit Simulation(int size, Knobs knobs = immediate(), StallLimits stall = {}) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back(NegotiatorOptions{rank, size, knobs, stall});
      done_.emplace_back();
      wires_.emplace_back();
    }
    settle();
    for (auto& actions : done_) actions.clear();  // the first decision: rank 0's knobs
  }

  /// No holding back, a generous fusion buffer.
  static Knobs immediate() {
    Knobs knobs;
    knobs.cycle_time_ns = 0;
    knobs.fusion_bytes = 1 << 20;
    return knobs;
  }

  void submit(int rank, const Request& request) {
    at(rank).local_ready(std::make_shared<const Request>(request), now_ns);
  }
  void submit_everywhere(const Request& request) {
    for (int rank = 0; rank < size(); ++rank) submit(rank, request);
  }

  /// One event loop turn of a rank: delivers what has arrived, ticks, collects actions.
  void turn(int rank) {
    auto& inbox = wires_[static_cast<std::size_t>(rank)];
    while (!inbox.empty()) {
      auto [from, payload] = std::move(inbox.front());
      inbox.pop_front();
      at(rank).peer_message(from, decode(payload), payload.size(), now_ns);
    }
    at(rank).tick(now_ns);
    for (Action& action : at(rank).take_actions()) {
      if (auto* send = std::get_if<SendAction>(&action)) {
        ++messages;
        wires_[static_cast<std::size_t>(send->to)].emplace_back(rank, send->payload);
      } else {
        done_[static_cast<std::size_t>(rank)].push_back(std::move(action));
      }
    }
    at(rank).validate_state();
  }

  /// Turns of all ranks until nothing moves.
  void settle() {
    for (int quiet = 0; quiet < 2; ++quiet) {
      for (int rank = 0; rank < size(); ++rank) turn(rank);
      for (const auto& wire : wires_) {
        if (!wire.empty()) quiet = -1;
      }
    }
  }

  [[nodiscard]] std::vector<Action> take(int rank) { return std::exchange(done_[static_cast<std::size_t>(rank)], {}); }
  [[nodiscard]] Negotiator& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

  std::int64_t now_ns = 1'000'000;
  int messages = 0;

 private:
  std::vector<Negotiator> ranks_;
  std::vector<std::vector<Action>> done_;
  std::vector<std::deque<std::pair<int, Bytes>>> wires_;
};

/// The names of all executed tensors in order, batches separated by "|".
inline std::string executed(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    const auto* batch = std::get_if<ExecuteAction>(&action);
    if (batch == nullptr) continue;
    if (!text.empty()) text += "|";
    for (std::size_t i = 0; i < batch->names.size(); ++i) text += (i > 0 ? " " : "") + batch->names[i];
  }
  return text;
}

}  // namespace ringtune::testing_support
