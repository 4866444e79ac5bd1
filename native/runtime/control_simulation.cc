#include "runtime/control_simulation.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "control/negotiator.h"

namespace ringtune {
namespace {

constexpr int kColdCycles = 3;
constexpr int kMostScheduleCycles = 50;  // until a schedule must have begun

/// glibc joins all small pieces of memory that were freed when the next large one is asked for. Those of thousands of
/// ranks must not be joined in the time of one.
void sweep_heap() {
  void* volatile large = std::malloc(4096);  // NOLINT: volatile, so that it happens
  std::free(large);
}

class SimulatedJob {
 public:
  SimulatedJob(const SimulationOptions& options, bool schedules)
      : cores_(static_cast<std::size_t>(options.ranks)), mail_(static_cast<std::size_t>(options.ranks)) {
    Knobs knobs;
    knobs.cycle_time_ns = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      ranks_.emplace_back(NegotiatorOptions{rank, options.ranks, options.fan_out, knobs, {}, schedules});
    }
    for (int rank = 0; rank < options.ranks; ++rank) turn(rank);
    deliver();
  }

  /// All ranks submit these tensors, in an order of ranks that changes, and block until they have run.
  void cycle(const std::vector<SharedRequest>& tensors) {
    std::vector<int> order(ranks_.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    ran_ = 0;
    ++now_ns_;
    for (const int rank : order) {
      act(rank, [&](Negotiator& negotiator) {
        for (const SharedRequest& tensor : tensors) negotiator.local_ready(tensor, now_ns_);
        negotiator.set_waiting(true);
        negotiator.tick(now_ns_);
      });
    }
    deliver();
    for (Negotiator& rank : ranks_) rank.set_waiting(false);
    RINGTUNE_CHECK_EQ(ran_, tensors.size() * ranks_.size(), "not every rank has run every tensor");
  }

  /// Runs `cycles` of what `tensors(cycle)` gives and measures them.
  template <typename Tensors>
  [[nodiscard]] SimulationPhase measure(int cycles, Tensors tensors) {
    std::vector<ControlCounters> before;
    for (const Negotiator& rank : ranks_) before.push_back(rank.counters());
    std::vector<std::int64_t> fastest(ranks_.size(), std::numeric_limits<std::int64_t>::max());
    for (int i = 0; i < cycles; ++i) {
      std::fill(cores_.begin(), cores_.end(), 0);
      cycle(tensors(i));
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) fastest[rank] = std::min(fastest[rank], cores_[rank]);
    }
    SimulationPhase phase;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const ControlCounters& now = ranks_[rank].counters();
      const SimulationLoad load{static_cast<double>(now.messages - before[rank].messages) / cycles,
                                static_cast<double>(now.bytes - before[rank].bytes) / cycles,
                                static_cast<double>(fastest[rank])};
      add(phase, load, rank == 0);
    }
    finish(phase);
    return phase;
  }

  [[nodiscard]] bool in_schedule() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Negotiator& rank) { return rank.in_schedule(); });
  }

 private:
  struct Letter {
    int from;
    Bytes payload;
  };

  static void add(SimulationPhase& phase, const SimulationLoad& load, bool coordinator) {
    if (coordinator) {
      phase.coordinator = load;
    } else {
      phase.busiest.messages = std::max(phase.busiest.messages, load.messages);
      phase.busiest.bytes = std::max(phase.busiest.bytes, load.bytes);
      phase.busiest.ns = std::max(phase.busiest.ns, load.ns);
    }
    phase.mean.messages += load.messages;
    phase.mean.bytes += load.bytes;
    phase.mean.ns += load.ns;
  }

  void finish(SimulationPhase& phase) const {
    phase.all_messages = phase.mean.messages / 2;  // every message was counted at both ends
    phase.all_bytes = phase.mean.bytes / 2;
    const auto count = static_cast<double>(ranks_.size());
    phase.mean.messages /= count;
    phase.mean.bytes /= count;
    phase.mean.ns /= count;
  }

  /// Lets a rank do something, and takes its time. Its tables are walked through before: on a machine of its own they
  /// would not have been pushed out of the caches by thousands of others.
  template <typename Event>
  void act(int rank, Event event) {
    const auto index = static_cast<std::size_t>(rank);
    ranks_[index].validate_state();
    sweep_heap();
    const std::int64_t begin_ns = now_ns();
    event(ranks_[index]);
    std::vector<Action> actions = ranks_[index].take_actions();
    cores_[index] += now_ns() - begin_ns;
    for (Action& action : actions) {
      if (auto* send = std::get_if<SendAction>(&action)) {
        mail_[static_cast<std::size_t>(send->to)].push_back({rank, std::move(send->payload)});
        called_.insert(send->to);
      } else if (const auto* batch = std::get_if<ExecuteAction>(&action)) {
        ran_ += batch->names.size();
      } else if (std::holds_alternative<RoundAction>(action)) {
        posted_.push_back(rank);
      }
    }
  }

  void turn(int rank) {
    act(rank, [&](Negotiator& negotiator) { negotiator.tick(now_ns_); });
  }

  /// Every rank takes all its mail at once, as the engine does; the highest first, so that parents come after children.
  void deliver() {
    while (!called_.empty() || posted_.size() == ranks_.size()) {
      if (called_.empty()) {
        agree();
        continue;
      }
      const int rank = *called_.rbegin();
      called_.erase(rank);
      const std::vector<Letter> letters = std::exchange(mail_[static_cast<std::size_t>(rank)], {});
      act(rank, [&](Negotiator& negotiator) {
        for (const Letter& letter : letters) {
          negotiator.peer_message(letter.from, decode(letter.payload), letter.payload.size(), now_ns_);
        }
        negotiator.tick(now_ns_);
      });
    }
  }

  /// Every rank has posted the round: it runs.
  void agree() {
    for (const int rank : std::exchange(posted_, {})) {
      act(rank, [&](Negotiator& negotiator) {
        ran_ += negotiator.round_batch().size();
        negotiator.round_done(true, now_ns_);
        negotiator.tick(now_ns_);
      });
    }
  }

  std::vector<Negotiator> ranks_;
  std::vector<std::int64_t> cores_;  // time of each rank in this cycle
  std::vector<std::vector<Letter>> mail_;
  std::set<int> called_;  // who has mail
  std::vector<int> posted_;
  std::size_t ran_ = 0;
  std::int64_t now_ns_ = 0;
  std::mt19937 random_{42};  // the same order of ranks in every run
};

std::vector<SharedRequest> make_tensors(const std::string& prefix, int count) {
  std::vector<SharedRequest> tensors;
  for (int i = 0; i < count; ++i) {
    auto request = std::make_shared<Request>();
    request->name = "allreduce." + prefix + "." + std::to_string(i) + ".weight";
    request->shape = {64, 64, 3, 3};
    tensors.push_back(std::move(request));
  }
  return tensors;
}

}  // namespace

ControlSimulation simulate_control(const SimulationOptions& options) {
  if (options.ranks < 1 || options.tensors < 1 || options.cycles < 1 || options.fan_out < 1) {
    throw InvalidArgument("ranks, tensors, cycles and fan_out must be at least 1");
  }
  const std::vector<SharedRequest> known = make_tensors("layer", options.tensors);
  const auto always = [&](int) { return known; };
  ControlSimulation result;
  {
    SimulatedJob job(options, false);
    result.cold = job.measure(std::min(options.cycles, kColdCycles),
                              [&](int i) { return make_tensors("cold" + std::to_string(i), options.tensors); });
    job.cycle(known);
    result.cached = job.measure(options.cycles, always);
  }
  SimulatedJob job(options, true);
  for (int i = 0; !job.in_schedule() && options.ranks > 1; ++i) {
    RINGTUNE_CHECK_LT(i, kMostScheduleCycles, "no schedule has begun");
    job.cycle(known);
  }
  result.steady = job.measure(options.cycles, always);
  return result;
}

}  // namespace ringtune
