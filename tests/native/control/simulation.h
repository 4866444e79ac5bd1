// A whole job's negotiation in one thread: the negotiators of all ranks, a hand-turned clock, and messages that are
// delivered in order, at once or when a test says so.
//
// Rounds of schedules are votes of the members of a process set. In shared memory a vote against one ends it at once
// for those who wait in it, who get no message meanwhile unless there are several sets. Over links (Rounds::kLinks) a
// round is over when every rank has voted; ranks get messages meanwhile, a rank that declines goes on at once, and
// whatever blocks in the runtime does here: a batch waits for all its members and for the end of what this rank has
// declined, deaf to everything else.
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
#include "repeats.h"

namespace ringtune::testing_support {

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
  explicit Simulation(int size, Knobs knobs = immediate(), StallLimits stall = {}, bool schedules = false,
                      int fan_out = kDefaultFanOut)
      : group_(static_cast<std::size_t>(size)),
        todo_(group_.size()),
        sets_(group_.size()),
        generations_(group_.size()) {
    std::vector<int> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      sets_[static_cast<std::size_t>(rank)][0] = {0, all};
      ranks_.emplace_back(NegotiatorOptions{rank, size, fan_out, knobs, stall, schedules});
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

  struct Vote {
    std::uint64_t token = 0;
    bool against = false;
    std::uint32_t number = 0;  // of the batch
  };

  /// One event loop turn of a rank: delivers what has arrived, ticks, collects actions. While a round of a schedule is
  /// posted in shared memory it only looks whether that can be resolved.
  void turn(int rank) {
    if (blocked(rank)) return;
    if (at(rank).round_posted() && !resolve(rank) && rounds_ == Rounds::kMemory && !at(rank).receives_in_rounds())
      return;
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
    bool waits = false;
    perform(rank, waits);
    return waits;
  }
  void perform(int rank, bool& waits) {
    auto& todo = todo_[static_cast<std::size_t>(rank)];
    for (; !todo.empty(); todo.pop_front()) {
      Action& action = todo.front();
      if (!may_run(rank, action)) {
        waits = true;
        return;
      }
      if (auto* send = std::get_if<SendAction>(&action)) {
        ++messages;
        wires_[static_cast<std::size_t>(send->to)].emplace_back(rank, send->payload);
      } else if (const auto* round = std::get_if<RoundAction>(&action)) {
        votes_of(rank, at(rank).schedule_set()).push_back({round->token, false, round->batch_id});
      } else if (const auto* decline = std::get_if<DeclineAction>(&action)) {
        ASSERT_FALSE(decline->batch.empty()) << "who takes part must know how much is sent";
        votes_of(rank, decline->batch.front()->process_set).push_back({decline->token, true});
      } else if (!std::holds_alternative<BeginScheduleAction>(action)) {
        done_[static_cast<std::size_t>(rank)].push_back(std::move(action));
      }
    }
  }

  /// Over links: whether an action that all members carry out together can end.
  bool may_run(int rank, const Action& action) {
    if (const auto* set = std::get_if<SetAction>(&action)) {
      if (!drained(rank)) return false;
      if (set->added) {
        sets_[static_cast<std::size_t>(rank)][set->id] = {++generations_[static_cast<std::size_t>(rank)][set->id],
                                                          set->members.ranks()};
      }
      return true;
    }
    if (rounds_ == Rounds::kMemory || std::holds_alternative<DeclineAction>(action)) return true;
    const auto* batch = std::get_if<ExecuteAction>(&action);
    const auto* schedule = std::get_if<BeginScheduleAction>(&action);
    if (batch == nullptr && schedule == nullptr && !std::holds_alternative<RoundAction>(action)) return true;
    if (!drained(rank)) return false;
    if (batch != nullptr) return meet(rank, batch->process_set, {0, batch->batch_id});
    if (schedule == nullptr) return true;
    return std::all_of(schedule->batches.begin(), schedule->batches.end(), [&](const auto& scheduled) {
      return meet(rank, scheduled.front()->process_set, {1, schedule->schedule_id});
    });
  }

  /// Whether all members have come to the same place.
  bool meet(int rank, std::uint32_t set, std::pair<int, std::uint32_t> place) {
    const auto& [generation, members] = sets_[static_cast<std::size_t>(rank)][set];
    std::set<int>& come = bootstraps_[{place, {set, generation}}];
    come.insert(rank);
    return come.size() == members.size();
  }

  /// Over links: whether all have voted in the rounds that the rank has declined.
  bool drained(int rank) {
    if (rounds_ == Rounds::kMemory) return true;
    for (const auto& [set, known] : sets_[static_cast<std::size_t>(rank)]) {
      const auto& votes = votes_of(rank, set);
      if (!votes.empty() && votes.back().against && !all_voted(rank, set)) return false;
    }
    return true;
  }

  std::vector<Vote>& votes_of(int rank, std::uint32_t set) {
    const std::uint32_t generation = sets_[static_cast<std::size_t>(rank)][set].first;
    return group_[static_cast<std::size_t>(rank)][{set, generation}];
  }

  /// In the last round of this rank.
  bool all_voted(int rank, std::uint32_t set) {
    const auto& [generation, members] = sets_[static_cast<std::size_t>(rank)][set];
    const std::size_t rounds = votes_of(rank, set).size();
    return std::all_of(members.begin(), members.end(), [&, id = generation](int member) {
      return group_[static_cast<std::size_t>(member)][{set, id}].size() >= rounds;
    });
  }

  /// The round that the rank has posted: true when it is over, agreed or not.
  bool resolve(int rank) {
    const std::uint32_t set = at(rank).schedule_set();
    const auto& [generation, members] = sets_[static_cast<std::size_t>(rank)][set];
    if (votes_of(rank, set).empty() || !todo_[static_cast<std::size_t>(rank)].empty()) return false;
    const std::size_t round = votes_of(rank, set).size() - 1;
    const std::uint64_t mine = votes_of(rank, set).back().token;
    bool against = false;
    for (const int member : members) {
      const auto& votes = group_[static_cast<std::size_t>(member)][{set, generation}];
      if (votes.size() <= round) continue;
      EXPECT_EQ(votes[round].token, mine) << "ranks in different rounds";
      against = against || votes[round].against;
    }
    if (!all_voted(rank, set) && (rounds_ == Rounds::kLinks || !against)) return false;
    if (!against) {
      const std::uint32_t number = votes_of(rank, set).back().number;
      EXPECT_EQ(numbers_.try_emplace(mine, number).first->second, number) << "a batch has two numbers";
      EXPECT_EQ(numbered_.try_emplace(number, mine).first->second, mine) << "a number stands for two batches";
      ExecuteAction batch;
      batch.process_set = set;
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
  [[nodiscard]] bool in_schedule() {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Negotiator& rank) { return rank.in_schedule(); });
  }
  [[nodiscard]] Negotiator& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

  std::int64_t now_ns = 1'000'000;
  int messages = 0;

 private:
  Tag tag_of(const std::string& name) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    const auto tag = static_cast<Tag>(found - names_.begin());
    if (found == names_.end()) names_.push_back(name);
    return tag;
  }

  Rounds rounds_ = Rounds::kMemory;
  using Which = std::pair<std::uint32_t, std::uint32_t>;   // set, and how often its number had been given
  std::vector<std::map<Which, std::vector<Vote>>> group_;  // by rank; rounds in order
  std::vector<std::deque<Action>> todo_;                   // by rank: behind an action that blocks
  std::vector<std::map<std::uint32_t, std::pair<std::uint32_t, std::vector<int>>>> sets_;  // as each rank knows them
  std::vector<std::map<std::uint32_t, std::uint32_t>> generations_;
  // Who has come to a batch (0 and its number) or the begin of a schedule (1 and its number).
  std::map<std::pair<std::pair<int, std::uint32_t>, Which>, std::set<int>> bootstraps_;
  std::map<std::uint64_t, std::uint32_t> numbers_;   // of batches of schedules, by token
  std::map<std::uint32_t, std::uint64_t> numbered_;  // and the other way round
  std::vector<std::string> names_;                   // by tag
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
