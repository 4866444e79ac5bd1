#include "runtime/stall_reporter.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stack_source.h"
#include "trace/sink.h"
#include "transport/thread.h"

namespace ringtune {
namespace {

constexpr std::int64_t kAnswerNs = 1'500'000'000;    // within which a rank answers that is not stopped
constexpr std::int64_t kRankZeroNs = 6'000'000'000;  // within which rank 0 has asked all others
constexpr std::int64_t kConfirmNs = 500'000'000;     // during which nobody gets on who is entangled
constexpr std::int64_t kStackNs = 500'000'000;       // within which a main thread takes a signal
constexpr std::size_t kMostStackBytes = 8 << 10;

enum class StallQuestion : std::uint8_t { kState = 1, kReport = 2 };

Bytes question_for_states(std::span<const int> stacks_of) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(StallQuestion::kState));
  for (const int rank : stacks_of) out.i32(rank);
  return out.take();
}

Bytes question_for_report(const Stall& stall) {
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(StallQuestion::kReport));
  out.raw(encode(stall));
  return out.take();
}

std::vector<int> rest_as_ranks(ByteReader in) {
  std::vector<int> ranks;
  while (in.remaining() > 0) ranks.push_back(in.i32());
  return ranks;
}

}  // namespace

StallReporter::StallReporter(Fabric& fabric, Tracer& tracer, std::int64_t quiet_ns,
                             std::function<RankState()> own_state)
    : fabric_(fabric), tracer_(tracer), quiet_ns_(quiet_ns), own_state_(std::move(own_state)), hosts_(fabric.hosts()) {}

StallReporter::~StallReporter() { stop(); }

void StallReporter::report(Stall stall) { add({.stall = std::move(stall)}); }

void StallReporter::find_missing(Stall stall, std::function<void(std::vector<int>)> found) {
  stall.quiet = true;
  add({.stall = std::move(stall), .found = std::move(found)});
}

std::vector<int> StallReporter::who_is_missing(Stall stall) {
  std::vector<int> seen = missing_ranks(stall);
  const auto found = std::make_shared<std::optional<std::vector<int>>>();  // the caller may have gone when it is known
  find_missing(std::move(stall), [this, found](std::vector<int> missing) {
    const std::lock_guard lock(mutex_);
    *found = std::move(missing);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return found->has_value() || stopped_; });
  return std::move(*found).value_or(std::move(seen));
}

std::optional<ReportedStall> StallReporter::newest() const {
  const std::lock_guard lock(mutex_);
  return newest_;
}

void StallReporter::asked(int from, std::uint32_t number, const Bytes& question) noexcept {
  try {
    ByteReader in(question);
    const auto kind = static_cast<StallQuestion>(in.u8());
    if (kind == StallQuestion::kState) {
      const std::vector<int> stacks_of = rest_as_ranks(in);
      const bool wanted = std::find(stacks_of.begin(), stacks_of.end(), fabric_.rank()) != stacks_of.end();
      fabric_.reply(from, number, encode(state_of_this_rank(wanted)));
    } else if (kind == StallQuestion::kReport && fabric_.rank() == 0) {
      add({.stall = decode_stall(in), .from = from, .number = number});
    }
  } catch (const std::exception& error) {  // the asker does without the answer
    log(LogLevel::kDebug, "a question of rank ", from, " about a stall: ", error.what());
  }
}

void StallReporter::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;  // the fabric may have gone since
  }
  changed_.notify_all();
  fabric_.end_inquiries();
  if (thread_.joinable()) thread_.join();
}

void StallReporter::add(Task task) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) thread_ = start_thread("ringtune-stall", [this] { run(); });
  changed_.notify_all();
}

void StallReporter::run() {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (stopped_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      look_into(task);
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, "a stall cannot be looked into: ", error.what());
      answer(task, missing_ranks(task.stall));
    }
  }
}

void StallReporter::look_into(Task& task) {
  if (fabric_.rank() == 0) {
    report_as_rank_zero(task);
  } else {
    report_elsewhere(task);
  }
}

void StallReporter::report_as_rank_zero(Task& task) {
  Stall& stall = task.stall;
  const bool silent = stall.quiet || reported_lately(stall);
  RankStates states = states_for(stall);
  if (stall.entangled) {
    if (!all_blocked(states) || !pause(kConfirmNs)) return;
    const RankStates again = ask_all({});
    if (!all_blocked(again) || !nothing_moved(states, again) || reported_knot(again)) return;
  }
  name_missing(stall, states);
  const std::vector<int> missing = missing_ranks(stall);
  if (!silent) {
    RankStates with_stacks = ask_all(missing);
    for (std::size_t rank = 0; rank < with_stacks.size(); ++rank) {
      if (with_stacks[rank]) states[rank] = later_of(states[rank], std::move(*with_stacks[rank]));
    }
    last_report_ns_ = now_ns();
    tell(task, states);
  }
  answer(task, missing);
}

/// All ranks of a round come with the same complaint: they are asked once for all of these.
RankStates StallReporter::states_for(const Stall& stall) {
  constexpr std::int64_t kFreshNs = 2'000'000'000;
  if (stall.round == 0) return ask_all({});
  if (stall.round != last_round_ || now_ns() - last_states_ns_ > kFreshNs) {
    if (stall.round != last_round_) last_report_ns_ = 0;
    last_states_ = ask_all({});
    last_states_ns_ = now_ns();
    last_round_ = stall.round;
  }
  return last_states_;
}

/// Ranks that wait for one another do so until somebody ends them.
bool StallReporter::reported_knot(const RankStates& states) {
  std::uint64_t knot = 0;
  for (const std::optional<RankState>& state : states) knot = knot * 31 + state->open_digest;
  if (knot == last_knot_ && now_ns() - last_knot_ns_ < quiet_ns_) return true;
  last_knot_ = knot;
  last_knot_ns_ = now_ns();
  return false;
}

bool StallReporter::reported_lately(const Stall& stall) const {
  return stall.round != 0 && stall.round == last_round_ && last_report_ns_ != 0 &&
         now_ns() - last_report_ns_ < quiet_ns_ / 4 * 3;
}

/// Rank 0, which gets the messages of all others, reports. This rank does only where rank 0 is silent.
void StallReporter::report_elsewhere(Task& task) {
  const Answers answers = fabric_.inquire(question_for_report(task.stall), Deadline::after(kRankZeroNs));
  Stall& stall = task.stall;
  if (answers.empty()) {  // there is nobody to ask
    if (!stall.quiet) tell(task, {});
    return answer(task, missing_ranks(stall));
  }
  if (answers.front()) return answer(task, rest_as_ranks(ByteReader(*answers.front())));
  for (StalledTensor& tensor : stall.tensors) tensor.missing = {0};
  if (!stall.quiet && !left_to_another(stall)) {
    RankStates states(hosts_.size());
    states[static_cast<std::size_t>(fabric_.rank())] = state_of_this_rank(false);
    tell(task, states);
  }
  answer(task, {0});
}

/// Without rank 0 the ranks cannot agree on who reports. All of a round come with the same complaint: the first of them
/// reports at once, the others only if they wait on, for the first may be silent too.
bool StallReporter::left_to_another(const Stall& stall) {
  const auto first = std::find_if(stall.members.begin(), stall.members.end(), [](int rank) { return rank != 0; });
  if (stall.round == 0 || first == stall.members.end() || *first == fabric_.rank()) return false;
  return std::exchange(left_round_, stall.round) != stall.round;
}

RankStates StallReporter::ask_all(const std::vector<int>& stacks_of) {
  const Answers answers = fabric_.inquire(question_for_states(stacks_of), Deadline::after(kAnswerNs));
  if (answers.empty()) return {};  // there is nobody to ask
  RankStates states(hosts_.size());
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank]) states[rank] = decode_rank_state(*answers[rank]);
  }
  const bool own = std::find(stacks_of.begin(), stacks_of.end(), fabric_.rank()) != stacks_of.end();
  states[static_cast<std::size_t>(fabric_.rank())] = state_of_this_rank(own);
  return states;
}

RankState StallReporter::state_of_this_rank(bool with_stack) const {
  RankState state = own_state_();
  state.stopped = fabric_.stopped_neighbours();
  if (!with_stack) return state;
  if (const std::optional<std::string> stack = read_stack(Deadline::after(kStackNs))) {
    state.has_stack = true;
    state.stack = stack->substr(0, kMostStackBytes);
  }
  return state;
}

void StallReporter::tell(const Task& task, const RankStates& states) {
  const Stall& stall = task.stall;
  log(LogLevel::kWarning, report_of(stall, states, hosts_));
  {
    const std::lock_guard lock(mutex_);
    newest_ = {task.seen_ns, stall};
  }
  if (!tracer_.recording()) return;
  for (const StalledTensor& tensor : stall.tensors) {
    std::string args = "{\"tensor\":" + json_quote(tensor.name) + ",\"missing\":[";
    for (std::size_t i = 0; i < tensor.missing.size(); ++i) {
      args += (i > 0 ? "," : "") + std::to_string(tracer_.generation().track(tensor.missing[i]));
    }
    tracer_.event("STALL", "stall", now_ns(), args + "],\"age_ns\":" + std::to_string(tensor.age_ns) + "}");
  }
}

void StallReporter::answer(Task& task, const std::vector<int>& missing) {
  if (task.from >= 0) {
    ByteWriter out;
    for (const int rank : missing) out.i32(rank);
    fabric_.reply(task.from, task.number, out.bytes());
  }
  if (task.found) task.found(missing);
}

/// False when the reporter is stopped meanwhile.
bool StallReporter::pause(std::int64_t time_ns) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, std::chrono::nanoseconds(time_ns), [this] { return stopped_; });
}

}  // namespace ringtune
