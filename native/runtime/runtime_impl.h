// What a Runtime consists of.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/home_process.h"
#include "runtime/driver.h"
#include "runtime/engine.h"
#include "runtime/gpu/foreign_times.h"
#include "runtime/gpu/host_staged_path.h"
#include "runtime/runtime.h"
#include "runtime/step_history.h"

namespace ringtune {

class Runtime::Impl {
 public:
  /// `job`: null, or of which group's runtime this is one.
  Impl(const RuntimeOptions& given, std::unique_ptr<Fabric> made, const Tracer* job = nullptr, TraceGroup group = {});
  ~Impl() {
    driver->leave(Deadline::after(0));
    data_paths.close(Deadline::after(0));
    host_staged.close();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// What this rank refuses alone.
  void check(const Submission& submission) const {
    const ProcessSetTable::Members members = members_of(submission.request.process_set);
    check_submission(submission, *members, options.rank);
  }
  [[nodiscard]] ProcessSetTable::Members members_of(std::uint32_t set) const {
    ProcessSetTable::Members members = engine->process_sets().members(set);
    if (!members) {
      throw InvalidArgument("there is no process set " + std::to_string(set) + ": it was removed, or never added");
    }
    return members;
  }

  /// Registers an allreduce; a repeated one costs one look-up.
  Ticket enter(const AllreduceCall& call, std::size_t& bytes) {
    const std::int64_t now = now_ns();
    if (call.process_set != 0) (void)members_of(call.process_set);  // a repeated one may have lost its set
    if (call.input != nullptr && call.output != nullptr) {
      if (const Ticket ticket = tickets.submit_again(call, now, bytes)) return ticket;
    }
    Submission submission{request_of(call), call.input, call.output};
    check(submission);
    auto prepared = std::make_shared<const Prepared>(std::move(submission.request));
    bytes = prepared->wire_bytes;
    return tickets.submit(std::move(prepared), {call.input, call.output}, now);
  }

  /// As Runtime::submit, of host memory that was checked.
  Ticket submit(Submission submission, FinishListener* listener);
  /// As Runtime::submit, of a GPU's memory.
  Ticket submit_on_device(Submission submission);
  [[nodiscard]] HostDataPath host_data_path();
  /// What the timeline says of an operation on a GPU's tensor; none while it is not recorded.
  [[nodiscard]] std::optional<Span> recorded_now(const Prepared& prepared);

  /// A set may have been removed since the request was prepared.
  void check_set(const PersistentRequest& persistent) const {
    if (const std::uint32_t set = persistent.prepared->request.process_set) (void)members_of(set);
  }

  /// Blocks until the operation is done; false at the deadline. Does not rethrow its error.
  bool wait_on_device(Ticket ticket, Deadline deadline);
  /// Blocks; whether the operation is done.
  bool wait(Operation& operation, Deadline deadline) {
    driver->asked();
    if (operation.done()) return true;
    const std::int64_t begin_ns = now_ns();
    const bool done = driver->wait(operation, deadline);
    record_wait(*operation.prepared, begin_ns, now_ns());
    return done;
  }
  void record_wait(const Prepared& prepared, std::int64_t begin_ns, std::int64_t end_ns) {
    counters.wait_ns.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
    if (!tracer.recording()) return;
    tracer.record({begin_ns, end_ns, 0, trace_name(tracer, prepared), 0, step,
                   static_cast<std::uint16_t>(status.knobs_version()), Stage::kWait,
                   static_cast<std::uint8_t>(prepared.request.kind)});
  }

  // The fabric goes before the engine: its monitor thread may call the engine until it ends. The driver's thread, which
  // uses the fabric, has ended by then (see ~Impl).
  HomeProcess home;
  RuntimeOptions options;
  const Deadline start_by;  // for all that has to be waited for until the job can begin
  std::unique_ptr<StoreClient> store;
  Counters counters;
  TicketTable tickets;
  Tracer tracer;
  Mailbox mailbox;
  WaitQueries queries;
  EngineStatus status;
  std::shared_ptr<std::atomic<std::uint32_t>> next_timeline_file = std::make_shared<std::atomic<std::uint32_t>>(0);
  DevicePaths data_paths;  // before those that use it
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Driver> driver;
  HostStagedPath host_staged;
  ForeignTimes foreign{options.cuda_driver, tracer};
  std::unique_ptr<Fabric> fabric;
  std::vector<std::string> hosts;
  Topology topology;
  StepWatcher steps;
  std::uint32_t step = 0;
  std::int64_t step_begin_ns = 0;
  StepHistory step_history;
  CounterValues at_step_begin;
  std::mutex shutdown_mutex;
  bool down = false;
};

}  // namespace ringtune
