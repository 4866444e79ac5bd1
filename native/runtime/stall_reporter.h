// Finds out why tensors wait, and reports it once for the whole job: on rank 0, which asks all ranks over the liveness
// connections how far they are and where they stand; on another rank only where rank 0 does not answer. A thread of its
// own does so, which begins with the first stall: nothing of it is in the way of a step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "runtime/stall_report.h"
#include "trace/tracer.h"
#include "transport/fabric.h"

namespace ringtune {

/// Borrows the fabric and the tracer. Public methods from any thread.
class StallReporter {
 public:
  /// `own_state`: how far this rank is, without its stack; any thread. `quiet_ns`: a round is reported once within it.
  StallReporter(Fabric& fabric, Tracer& tracer, std::int64_t quiet_ns, std::function<RankState()> own_state);
  ~StallReporter();  // stop()
  StallReporter(const StallReporter&) = delete;
  StallReporter& operator=(const StallReporter&) = delete;

  /// Returns at once; the report follows.
  void report(Stall stall);
  /// Asks who is missing in a round, and hands that to `found` on the reporter's thread; what this rank has seen itself
  /// when nobody says so within some seconds. Not called when the reporter is stopped before.
  void find_missing(Stall stall, std::function<void(std::vector<int>)> found);
  /// The same at once. Blocks.
  [[nodiscard]] std::vector<int> who_is_missing(Stall stall);
  /// The newest stall that this rank has told of for the whole job.
  [[nodiscard]] std::optional<ReportedStall> newest() const;
  /// A question of another rank's reporter; on the monitor's thread.
  void asked(int from, std::uint32_t number, const Bytes& question) noexcept;
  /// Ends the thread. After it nothing is reported or answered.
  void stop() noexcept;

 private:
  struct Task {
    Stall stall;
    std::int64_t seen_ns = now_ns();
    int from = -1;  // the rank that asked, -1: this one
    std::uint32_t number = 0;
    std::function<void(std::vector<int>)> found = {};
  };

  void add(Task task);
  void run();
  void look_into(Task& task);
  void report_as_rank_zero(Task& task);
  [[nodiscard]] RankStates states_for(const Stall& stall);
  void report_elsewhere(Task& task);
  [[nodiscard]] bool left_to_another(const Stall& stall);
  [[nodiscard]] RankStates ask_all(const std::vector<int>& stacks_of);
  [[nodiscard]] RankState state_of_this_rank(bool with_stack) const;
  [[nodiscard]] bool reported_knot(const RankStates& states);
  [[nodiscard]] bool reported_lately(const Stall& stall) const;
  void tell(const Task& task, const RankStates& states);
  void answer(Task& task, const std::vector<int>& missing);
  bool pause(std::int64_t time_ns);

  Fabric& fabric_;
  Tracer& tracer_;
  const std::int64_t quiet_ns_;
  const std::function<RankState()> own_state_;
  const std::vector<std::string> hosts_;
  std::uint64_t last_round_ = 0;  // the thread's own, as the next ones
  RankStates last_states_;        // in that round
  std::int64_t last_states_ns_ = 0;
  std::int64_t last_report_ns_ = 0;
  std::uint64_t left_round_ = 0;  // whose stall another rank was left to report
  std::uint64_t last_knot_ = 0;   // digest of the tensors of ranks that wait for one another
  std::int64_t last_knot_ns_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::optional<ReportedStall> newest_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace ringtune
