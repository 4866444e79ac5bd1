// What the engine knows of tensors that wait for ranks that do not come, and of itself for ranks that wait for it.
#include "runtime/engine.h"

namespace ringtune {

/// Of tensors that are negotiated.
void Engine::report_stalls(std::span<const StallAction> actions, bool entangled) {
  Stall stall;
  stall.entangled = entangled;
  for (const StallAction& action : actions) {
    stall.tensors.push_back({action.title, action.name, action.age_ns, action.missing});
  }
  if (!entangled) add(counters_.stalls, static_cast<std::uint64_t>(actions.size()));
  stall_reporter_->report(std::move(stall));
}

/// The posted round, which the coordinator does not know.
Stall Engine::round_stall(std::int64_t now_ns) const {
  Stall stall;
  stall.round = round_token_.load(std::memory_order_relaxed);
  const Communicator& communicator = schedule_communicator();
  stall.members.assign(communicator.members().begin(), communicator.members().end());
  const std::vector<int> absent = executor_->absent_in_round(schedule_communicator());
  for (const OperationPtr operation : round_) {
    const Request& request = operation->request();
    stall.tensors.push_back({title_of(request), request.name, now_ns - round_since_ns_, absent});
  }
  return stall;
}

/// In shared memory this rank sees who has come; over links only whose messages have reached it, so it asks.
std::vector<int> Engine::missing_in_round(std::int64_t now_ns) {
  if (!executor_->round_on_links()) return executor_->absent_in_round(schedule_communicator());
  constexpr std::int64_t kAgainNs = 1'000'000'000;
  if (now_ns - round_asked_ns_ < kAgainNs) return {};
  std::vector<int> missing = stall_reporter_->who_is_missing(round_stall(now_ns));
  round_asked_ns_ = ringtune::now_ns();
  return missing;
}

/// Any thread.
RankState Engine::own_state() const {
  RankState state = tickets_.open_state(now_ns());
  state.waiting = waiting_callers_.load(std::memory_order_relaxed) > 0;
  state.round = round_token_.load(std::memory_order_relaxed);
  return state;
}

}  // namespace ringtune
