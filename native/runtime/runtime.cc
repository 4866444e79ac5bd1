#include "runtime/runtime.h"

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "control/aggregator.h"
#include "runtime/runtime_impl.h"

namespace ringtune {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

/// Something that is decided about the job: without a tensor.
Submission decision_of(CollectiveKind kind, const std::string& name) {
  Submission submission;
  submission.request.name = name;
  submission.request.kind = kind;
  submission.request.dtype = DType::kUint8;
  submission.request.shape = {0};
  return submission;
}

/// Where the Chrome trace cannot be written, the part is all there is.
std::unique_ptr<Sink> shown_too(std::unique_ptr<Sink> sink, const std::string& path, const PartHeader& header) {
  std::unique_ptr<Sink> shown;
  try {
    shown = make_chrome_sink(path, header);
  } catch (const TraceIo& error) {
    log_line(LogLevel::kWarning, error.what());
    return sink;
  }
  return make_tee_sink(std::move(sink), std::move(shown));
}

}  // namespace

Runtime::Runtime(const RuntimeOptions& options) : Runtime(options, nullptr) {}
Runtime::Runtime(const RuntimeOptions& options, std::unique_ptr<Fabric> fabric)
    : impl_(std::make_unique<Impl>(options, std::move(fabric))) {}
Runtime::Runtime(const RuntimeOptions& options, const Runtime& job, TraceGroup group)
    : impl_(std::make_unique<Impl>(options, nullptr, &job.impl_->tracer, std::move(group))) {}

Runtime::~Runtime() {
  if (!impl_->home.here()) {  // its threads, links and memory are the parent's: nothing of them may be ended here
    (void)impl_.release();
    return;
  }
  try {
    shutdown(5 * kSecondNs);
  } catch (const std::exception& error) {
    log(LogLevel::kError, "while shutting down: ", error.what());
  }
}

Runtime::Impl& Runtime::own() const {
  if (impl_->home.here()) return *impl_;
  throw InvalidArgument("this process was forked from rank " + std::to_string(rank()) +
                        " after init(), and a forked child has no part in the job: only its parent may reduce, wait "
                        "or end steps. A process that is to call init() itself must be started with 'spawn'");
}

int Runtime::rank() const noexcept { return impl_->options.rank; }
int Runtime::size() const noexcept { return impl_->options.size; }
const std::vector<std::string>& Runtime::hosts() const noexcept { return impl_->hosts; }
const Topology& Runtime::topology() const noexcept { return impl_->topology; }

std::vector<std::string> Runtime::transports() const {
  std::vector<std::string> list;
  for (int peer = 0; peer < size(); ++peer) {
    list.emplace_back(peer == rank() ? std::string_view("self") : impl_->fabric->viable(peer));
  }
  return list;
}

Ticket Runtime::submit(Submission submission) {
  own().check(submission);
  if (submission.device) return impl_->submit_on_device(std::move(submission));
  return impl_->submit(std::move(submission), nullptr);
}

Ticket Runtime::submit(Submission submission, FinishListener& listener) {
  own().check(submission);
  return impl_->submit(std::move(submission), &listener);
}

void Runtime::check(const Submission& submission) const { own().check(submission); }

Ticket Runtime::submit(const AllreduceCall& call) {
  std::size_t bytes = 0;
  const Ticket ticket = own().enter(call, bytes);
  impl_->driver->submitted(bytes);
  return ticket;
}

PersistentRequest Runtime::keep(Submission submission) {
  const Request& request = submission.request;
  std::shared_ptr<const Prepared> prepared = own().tickets.known(request.process_set, request.name);
  if (prepared == nullptr || prepared->request != request) {
    impl_->check(submission);
    prepared = std::make_shared<const Prepared>(std::move(submission.request));
  }
  return impl_->tickets.keep(std::move(prepared));
}

void Runtime::drop(const PersistentRequest& persistent) noexcept {
  if (impl_->home.here()) impl_->tickets.drop(persistent);
}

Ticket Runtime::submit(const PersistentRequest& persistent, const void* input, void* output) {
  own().check_set(persistent);
  const Ticket ticket = impl_->tickets.submit(persistent, {input, output}, now_ns());
  impl_->driver->submitted(persistent.prepared->wire_bytes);
  return ticket;
}

void Runtime::submit(std::span<const PersistentAt> calls, std::vector<Ticket>& tickets) {
  own().check_set(*calls.front().persistent);
  impl_->tickets.submit(calls, now_ns(), tickets);
  std::size_t bytes = 0;
  for (const PersistentAt& call : calls) bytes += call.persistent->prepared->wire_bytes;
  impl_->driver->submitted(bytes);
}

Ticket Runtime::run_now(const PersistentRequest& persistent, const Memory& memory, std::int64_t timeout_ns) {
  own().check_set(persistent);
  const std::int64_t begin_ns = now_ns();
  Ticket ticket = 0;
  if (const std::int64_t end_ns = impl_->driver->run_alone(persistent, memory, begin_ns, Deadline::at(0), ticket)) {
    impl_->record_wait(*persistent.prepared, begin_ns, end_ns);
    return 0;
  }
  // Nobody is woken: this thread drives.
  if (ticket == 0) ticket = impl_->tickets.submit(persistent, memory, begin_ns);
  return finish(ticket, Deadline::at(begin_ns + timeout_ns)) == Finish::kDone ? 0 : ticket;
}

Ticket Runtime::run_or_submit(const PersistentRequest& persistent, const Memory& memory, std::int64_t patience_ns) {
  own().check_set(persistent);
  const std::int64_t begin_ns = now_ns();
  Ticket ticket = 0;
  const Deadline deadline = Deadline::at(begin_ns + patience_ns);
  if (impl_->driver->run_alone(persistent, memory, begin_ns, deadline, ticket) != 0) return 0;
  if (ticket == 0) ticket = impl_->tickets.submit(persistent, memory, begin_ns);
  impl_->driver->submitted(persistent.prepared->wire_bytes, false);
  return ticket;
}

Finish Runtime::finish(Ticket ticket, Deadline deadline) {
  Operation& operation = *own().tickets.find(ticket);
  if (!impl_->wait(operation, deadline)) return Finish::kPending;
  if (operation.error) return Finish::kFailed;
  if (!operation.gathered.empty()) return Finish::kHeld;
  release(ticket);
  return Finish::kDone;
}

Ticket Runtime::add_process_set(const std::vector<int>& members) {
  Submission submission = decision_of(CollectiveKind::kAddProcessSet, "add_process_set.noname");
  submission.request.members.assign(members.begin(), members.end());
  return submit(std::move(submission));
}

Ticket Runtime::remove_process_set(std::uint32_t id) {
  Submission submission = decision_of(CollectiveKind::kRemoveProcessSet, "remove_process_set.noname");
  submission.request.subject = id;
  return submit(std::move(submission));
}

Ticket Runtime::join(const std::string& name) { return submit(decision_of(CollectiveKind::kJoin, name)); }
std::map<std::uint32_t, std::vector<int>> Runtime::process_sets() const { return own().engine->process_sets().all(); }

bool Runtime::poll(Ticket ticket) {
  if (HostStagedPath::owns(ticket)) return own().host_staged.poll(ticket);
  return impl_->driver->asked_for(*own().tickets.find(ticket)).done();
}

void Runtime::set_compute_threads(int threads) noexcept { impl_->driver->set_compute_threads(threads); }

void Runtime::begin_blocking() noexcept { Driver::begin_blocking(); }
void Runtime::end_blocking() noexcept { impl_->driver->end_blocking(); }

bool Runtime::wait(Ticket ticket, Deadline deadline) {
  if (HostStagedPath::owns(ticket)) {
    if (!own().wait_on_device(ticket, deadline)) return false;
    if (const std::exception_ptr error = impl_->host_staged.find(ticket).error) std::rethrow_exception(error);
    return true;
  }
  Operation& operation = *own().tickets.find(ticket);
  if (!impl_->wait(operation, deadline)) return false;
  if (operation.error) std::rethrow_exception(operation.error);
  return true;
}

std::vector<int> Runtime::awaited(Ticket ticket, Deadline deadline) {
  if (HostStagedPath::owns(ticket)) return {};
  const Operation& operation = *own().tickets.find(ticket);
  if (operation.done()) return {};
  // Ranks in the middle of the tree hold back requests that only some ranks below have sent. Rank 0 knows the requests
  // sent by now once each level's hold time is over.
  const std::int64_t hold_ns = tree_levels(size(), impl_->options.control_fan_out) * Aggregator::kHoldNs;
  const std::uint32_t question = impl_->queries.ask(operation.request(), earlier(Deadline::after(hold_ns), deadline));
  impl_->driver->nudge();
  return impl_->queries.answer_to(question, deadline);
}

OperationPtr Runtime::operation(Ticket ticket) { return own().tickets.find(ticket); }
bool Runtime::release_if_done(Ticket ticket) {
  own().driver->asked();
  return impl_->tickets.release_if_done(ticket);
}
std::optional<Ticket> Runtime::release_if_done(std::span<const Ticket> tickets) {
  own().driver->asked();
  return impl_->tickets.release_if_done(tickets);
}
void Runtime::release(Ticket ticket) {
  if (!impl_->home.here()) return;
  if (HostStagedPath::owns(ticket)) {
    impl_->host_staged.release(ticket);
  } else {
    impl_->tickets.release(ticket);
  }
}

Knobs Runtime::knobs() const { return own().status.knobs(); }
std::uint32_t Runtime::knobs_version() const noexcept { return impl_->status.knobs_version(); }

std::uint32_t Runtime::propose_knobs(const Knobs& knobs) {
  Impl& own = this->own();
  if (rank() != 0) {
    throw InvalidArgument("knobs are proposed on rank 0 only (this is rank " + std::to_string(rank()) +
                          "): it carries the change to all ranks");
  }
  check_knobs(knobs);
  const std::uint32_t knobs_version = own.mailbox.propose(knobs);
  own.driver->nudge();
  return knobs_version;
}

StepWatcher& Runtime::steps() { return own().steps; }
StepStats Runtime::end_step(bool told) {
  StepStats stats;
  stats.step = own().step++;
  stats.knobs_version = knobs_version();
  stats.begin_ns = impl_->step_begin_ns;
  stats.end_ns = impl_->step_begin_ns = now_ns();
  impl_->step_history.begin(impl_->step, stats.end_ns);
  const CounterValues now = counters();
  stats.values = now - std::exchange(impl_->at_step_begin, now);
  const StepReport mine{stats.step, stats.end_ns - stats.begin_ns};
  impl_->status.begin_step(stats.step + 1);
  if (told) impl_->mailbox.report(mine);  // travels with the next ready requests: no nudge
  StepReport world = impl_->status.world_step();
  // In a schedule nobody reports: the ranks wait for one another in every step, so this rank's duration is everyone's.
  if (rank() == 0 && (!told || impl_->status.in_schedule())) world = mine;
  if (world.duration_ns > 0) {
    stats.world_step = world.step;
    stats.world_step_ns = world.duration_ns;
  }
  if (impl_->tracer.recording()) {
    impl_->tracer.record({stats.begin_ns, stats.end_ns, static_cast<std::uint64_t>(stats.values.bytes),
                          impl_->tracer.intern(""), 0, stats.step, static_cast<std::uint16_t>(stats.knobs_version),
                          Stage::kStep, 255});
  }
  impl_->tracer.now_in(impl_->step, stats.knobs_version);
  return stats;
}

CounterValues Runtime::counters() const noexcept { return snapshot(impl_->counters); }
TrafficValues Runtime::traffic(CollectiveKind kind) const noexcept {
  return snapshot(impl_->counters.traffic[static_cast<std::size_t>(kind)]);
}
std::uint64_t Runtime::stalls() const noexcept { return impl_->counters.stalls.load(std::memory_order_relaxed); }
std::optional<ReportedStall> Runtime::reported_stall() const { return own().engine->stall_reporter().newest(); }
std::size_t Runtime::open_operations() const noexcept { return impl_->tickets.open(); }

void Runtime::start_timeline(const TimelineOptions& timeline) {
  if (impl_->tracer.of_group()) throw InvalidArgument("a group records into the timeline of its job");
  if (own().tracer.recording()) {
    throw InvalidArgument("the timeline is already being recorded; stop it before starting another");
  }
  const auto rank_index = static_cast<std::size_t>(rank());
  const Generation& generation = impl_->options.generation;
  const PartHeader header{generation.track(rank()), size(), impl_->hosts[rank_index],
                          generation.number > 0 ? generation.job : impl_->options.job};
  PartOptions files{timeline.path, timeline.gzip, timeline.rotate_bytes, impl_->next_timeline_file};
  if (*files.next_file < timeline.first_file) *files.next_file = timeline.first_file;
  std::unique_ptr<Sink> sink = make_record_sink(std::move(files), header);
  if (!timeline.shown.empty()) sink = shown_too(std::move(sink), timeline.shown, header);
  impl_->status.mark_cycles(timeline.mark_cycles);
  impl_->engine->record_pieces(timeline.pieces);
  impl_->tracer.now_in(impl_->step, knobs_version());
  impl_->tracer.start(std::move(sink));
  (void)impl_->mailbox.request_look();
  impl_->driver->nudge();
  record_knobs(impl_->status, impl_->tracer);
  if (generation.number > 0) record_generation(generation, impl_->tracer);
}

void Runtime::stop_timeline() {
  if (!impl_->home.here() || impl_->tracer.of_group() || !impl_->tracer.recording()) return;
  // A last look at rank 0's clock, so that drift can be interpolated. Bounded: rank 0 may have ended.
  const std::uint32_t look = impl_->mailbox.request_look();
  impl_->driver->nudge();
  impl_->engine->clock_looks().wait_for(look, Deadline::after(kSecondNs / 4));
  impl_->host_staged.settle_times(Deadline::after(kSecondNs));
  impl_->foreign.settle(Deadline::after(kSecondNs));
  impl_->tracer.stop();
}

Tracer& Runtime::tracer() noexcept { return impl_->tracer; }

GenerationProgress Runtime::progress() const noexcept {
  GenerationProgress found = impl_->status.progress();
  found.step = impl_->step;
  return found;
}

bool Runtime::uses_nccl() const { return own().data_paths.uses_nccl(); }

void Runtime::record_range(std::string_view name, std::int64_t begin_ns, std::int64_t end_ns) {
  Tracer& tracer = impl_->tracer;
  if (!tracer.recording()) return;
  tracer.record({begin_ns, end_ns, 0, tracer.intern(name), 0, impl_->step_history.at(begin_ns),
                 static_cast<std::uint16_t>(knobs_version()), Stage::kRange, 255});
}

void Runtime::record_foreign(std::string_view name, Span span) {
  Tracer& tracer = impl_->tracer;
  Counters& counters = impl_->counters;
  if (span.stage == Stage::kWait) add(counters.wait_ns, span.end_ns - span.begin_ns);
  if (span.stage == Stage::kCommunicate) {
    add(counters.communicate_ns, span.end_ns - span.begin_ns);
    add(counters.batches, std::uint64_t{1});
  }
  if (span.stage == Stage::kNegotiate && span.kind < kCollectiveKinds) {  // its end may be seen a step later
    add(counters.traffic[span.kind].bytes, span.bytes);
    add(counters.traffic[span.kind].operations, std::uint64_t{1});
  }
  if (tracer.recording()) tracer.record(foreign_span(name, span));
}

Span Runtime::foreign_span(std::string_view name, Span span) {
  span.name_id = impl_->tracer.intern(name);
  span.step = impl_->step_history.at(span.begin_ns);
  span.knobs_version = static_cast<std::uint16_t>(knobs_version());
  return span;
}

std::uint64_t Runtime::begin_foreign(std::string_view name, Span span, CudaStreamHandle stream) {
  return impl_->tracer.recording() ? impl_->foreign.begin(foreign_span(name, span), stream) : 0;
}

void Runtime::end_foreign(std::uint64_t work, CudaStreamHandle stream) { impl_->foreign.end(work, stream); }

void Runtime::drop_foreign(std::uint64_t work) { impl_->foreign.drop(work); }

void Runtime::shutdown(std::int64_t timeout_ns, const std::string& how, bool failed) {
  if (!impl_->home.here()) return;
  const std::lock_guard lock(impl_->shutdown_mutex);
  if (impl_->down) return;
  impl_->down = true;
  stop_timeline();
  impl_->driver->leave(Deadline::after(timeout_ns), how, failed);
  impl_->data_paths.close(
      Deadline::after(kSecondNs * 5));  // first: a copy to the host may wait for a stream that it ends
  impl_->host_staged.close();
  impl_->foreign.close();
  ResultMemory::trim();
}

}  // namespace ringtune
