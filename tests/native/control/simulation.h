// A whole job's negotiation in one thread: the negotiators of all ranks, a hand-turned clock, and messages that are
// delivered in order, at once or when a test says so.
//
// Rounds of plans are votes. In shared memory a vote against one ends it at once for those who wait in it. Over links
// (Rounds::kLinks) a round is over when every rank has voted; ranks hear each other meanwhile, a rank that declines
// goes on at once, and whatever blocks in the runtime does here: a batch waits for all its members and for the end of
// what this rank has declined, deaf to everything else.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "control/negotiator.h"

namespace ringtune::testing_support {

/// How many seeds a random test plays: all, or a tenth of them where a sanitizer makes every one some thirty times as
/// long.
constexpr std::uint32_t seeds(std::uint32_t all) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return all / 10;
#else
  return all;
#endif
}

inline Request allreduce(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  Request request;
  request.name = name;
  request.shape = std::move(shape);
  return request;
}

inline Request join(const std::string& name = "join.noname") {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kJoin;
  return request;
}

inline Request add_set(std::vector<std::int32_t> members, const std::string& name = "add_process_set") {
  Request request;
  request.name = name;
  request.kind = CollectiveKind::kAddProcessSet;
  request.members = std::move(members);
  return request;
}

inline Request remove_set(std::uint32_t id) {
  Request request;
  request.name = "remove_process_set";
  request.kind = CollectiveKind::kRemoveProcessSet;
  request.subject = id;
  return request;
}

inline Request in_set(std::uint32_t id, Request request) {
  request.process_set = id;
  return request;
}

enum class Rounds { kMemory, kLinks };

class Simulation {
 public:
  explicit Simulation(int size, Knobs knobs = immediate(), StallLimits stall = {}, bool plans = false,
                      int fan_out = kDefaultFanOut)
      : arena_(static_cast<std::size_t>(size)) {
    set_sizes_[0] = static_cast<std::size_t>(size);
    todo_.resize(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back(NegotiatorOptions{rank, size, fan_out, knobs, stall, plans});
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
    at(rank).local_ready(std::make_shared<const Request>(request), now_ns, tag_of(request.name));
  }
  void submit_everywhere(const Request& request) {
    for (int rank = 0; rank < size(); ++rank) submit(rank, request);
  }

  void use(Rounds rounds) { rounds_ = rounds; }

  /// One event loop turn of a rank: delivers what has arrived, ticks, collects actions. While a round of a plan is
  /// posted in shared memory it only looks whether that can be resolved.
  void turn(int rank) {
    if (blocked(rank)) return;
    if (at(rank).round_posted() && !resolve(rank) && rounds_ == Rounds::kMemory) return;
    auto& inbox = wires_[static_cast<std::size_t>(rank)];
    while (!inbox.empty()) {
      auto [from, payload] = std::move(inbox.front());
      inbox.pop_front();
      at(rank).peer_message(from, decode(payload), payload.size(), now_ns);
    }
    at(rank).tick(now_ns);
    for (Action& action : at(rank).take_actions()) todo_[static_cast<std::size_t>(rank)].push_back(std::move(action));
    (void)blocked(rank);
    at(rank).validate_state();
  }

  /// Takes the actions of a rank up to one that blocks.
  bool blocked(int rank) {
    auto& todo = todo_[static_cast<std::size_t>(rank)];
    auto& votes = arena_[static_cast<std::size_t>(rank)];
    for (; !todo.empty(); todo.pop_front()) {
      Action& action = todo.front();
      if (!may_run(rank, action)) return true;
      if (auto* send = std::get_if<SendAction>(&action)) {
        ++messages;
        wires_[static_cast<std::size_t>(send->to)].emplace_back(rank, send->payload);
      } else if (const auto* round = std::get_if<RoundAction>(&action)) {
        votes.push_back({round->token, false});
      } else if (const auto* decline = std::get_if<DeclineAction>(&action)) {
        votes.push_back({decline->token, true});
        EXPECT_FALSE(decline->batch.empty()) << "who takes part must know how much is sent";
      } else if (!std::holds_alternative<BeginPlanAction>(action)) {
        done_[static_cast<std::size_t>(rank)].push_back(std::move(action));
      }
    }
    return false;
  }

  /// Over links: whether an action that all members carry out together can end.
  bool may_run(int rank, const Action& action) {
    if (const auto* set = std::get_if<SetAction>(&action)) {
      set_sizes_[set->id] = static_cast<std::size_t>(set->members.count());
    }
    if (rounds_ == Rounds::kMemory) return true;
    const auto& votes = arena_[static_cast<std::size_t>(rank)];
    const bool round = std::holds_alternative<RoundAction>(action) || std::holds_alternative<DeclineAction>(action);
    const auto* batch = std::get_if<ExecuteAction>(&action);
    if (!round && batch == nullptr && !std::holds_alternative<BeginPlanAction>(action)) return true;
    const bool drained = votes.empty() || !votes.back().against || all_voted(votes.size() - 1);
    if (round || !drained) return drained;
    const std::uint32_t set = batch != nullptr ? batch->process_set : 0;
    Meeting& meeting = meetings_[{batch != nullptr ? batch->batch_id : 0, votes.size()}];
    if (meeting.come.empty()) meeting.size = set_sizes_[set];  // the set's number may be given again later
    meeting.come.insert(rank);
    return meeting.come.size() == meeting.size;
  }

  bool all_voted(std::size_t round) {
    return std::all_of(arena_.begin(), arena_.end(), [&](const auto& votes) { return votes.size() > round; });
  }

  /// The round that the rank has posted: true when it is over, agreed or not.
  bool resolve(int rank) {
    const std::size_t round = arena_[static_cast<std::size_t>(rank)].size() - 1;
    const std::uint64_t mine = arena_[static_cast<std::size_t>(rank)].back().token;
    bool against = false;
    for (const auto& votes : arena_) {
      if (votes.size() <= round) continue;
      EXPECT_EQ(votes[round].token, mine) << "ranks in different rounds";
      against = against || votes[round].against;
    }
    if (!all_voted(round) && (rounds_ == Rounds::kLinks || !against)) return false;
    if (!against) {
      ExecuteAction batch;
      for (const Tag tag : at(rank).round_batch()) batch.names.push_back(names_[tag]);
      done_[static_cast<std::size_t>(rank)].push_back(std::move(batch));
    }
    at(rank).round_done(!against, now_ns);
    return true;
  }

  /// Turns of all ranks until nothing moves.
  void settle() {
    int turns = 0;
    for (int quiet = 0; quiet < 2; ++quiet) {
      ASSERT_LT(++turns, 10'000) << "the job hangs";
      for (int rank = 0; rank < size(); ++rank) turn(rank);
      for (const auto& wire : wires_) {
        if (!wire.empty()) quiet = -1;
      }
      for (const auto& todo : todo_) {
        if (!todo.empty()) quiet = -1;
      }
      for (int rank = 0; rank < size(); ++rank) {
        if (at(rank).round_posted() && resolve(rank)) quiet = -1;
      }
    }
  }

  /// Forgets what all ranks were told to do so far.
  void forget() {
    for (auto& actions : done_) actions.clear();
  }
  [[nodiscard]] std::vector<Action> take(int rank) { return std::exchange(done_[static_cast<std::size_t>(rank)], {}); }
  [[nodiscard]] bool in_plan() {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Negotiator& rank) { return rank.in_plan(); });
  }
  [[nodiscard]] Negotiator& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

  std::int64_t now_ns = 1'000'000;
  int messages = 0;

 private:
  struct Vote {
    std::uint64_t token = 0;
    bool against = false;
  };
  Tag tag_of(const std::string& name) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    const auto tag = static_cast<Tag>(found - names_.begin());
    if (found == names_.end()) names_.push_back(name);
    return tag;
  }

  Rounds rounds_ = Rounds::kMemory;
  std::vector<std::vector<Vote>> arena_;  // by rank and round
  std::vector<std::deque<Action>> todo_;  // by rank: behind an action that blocks
  std::map<std::uint32_t, std::size_t> set_sizes_;
  struct Meeting {
    std::size_t size = 0;
    std::set<int> come;
  };
  // By number of the batch, with as many rounds before it; 0: the begin of a plan.
  std::map<std::pair<std::uint32_t, std::size_t>, Meeting> meetings_;
  std::vector<std::string> names_;  // by tag
  std::vector<Negotiator> ranks_;
  std::vector<std::vector<Action>> done_;
  std::vector<std::deque<std::pair<int, Bytes>>> wires_;
};

/// The message of the one failure among the actions; empty without, "several" with more.
inline std::string failure(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    const auto* found = std::get_if<FailAction>(&action);
    if (found != nullptr) text = text.empty() ? found->message : "several";
  }
  return text;
}

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
