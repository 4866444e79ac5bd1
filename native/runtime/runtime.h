// The runtime of one rank: callers submit operations and wait for tickets. A caller that waits drives the engine, else
// the cycle thread in the background; it negotiates, schedules and executes. Any number of runtimes may live in one
// process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "control/tree.h"
#include "fusion/knobs.h"
#include "runtime/gpu/data_paths.h"
#include "runtime/operation.h"
#include "runtime/overlap_policy.h"
#include "runtime/stall_report.h"
#include "runtime/statistics.h"
#include "runtime/step_watch.h"
#include "runtime/submission.h"
#include "runtime/ticket_table.h"
#include "trace/tracer.h"
#include "transport/fabric.h"

namespace ringtune {

struct RuntimeOptions {
  int rank = 0;
  int size = 1;
  std::string store_host;
  std::uint16_t store_port = 0;
  std::string secret;  // of the job, alike on all ranks; a job of one needs none
  std::string job = "job";
  std::string host;
  std::string bind_address;
  TransportChoice transport = TransportChoice::kAuto;
  Carrier carrier;           // for TransportChoice::kMpi
  int sockets_per_peer = 1;  // of a link between hosts
  std::string tcp_congestion = "auto";
  AlgorithmTable algorithms;  // rank 0's counts
  std::int64_t connect_timeout_ns = 60'000'000'000;
  std::int64_t silence_ns = 0;  // a rank that gives no sign of life for so long is lost; 0 = never; rank 0's counts
  std::int64_t idle_timeout_ns = 0;  // a collective in which no byte moves for so long fails; 0 = never
  Knobs knobs;
  std::int64_t stall_warning_ns = 60'000'000'000;
  std::int64_t stall_shutdown_ns = 0;
  int control_fan_out = kDefaultFanOut;  // of the tree of ready requests (control/tree.h), alike on all ranks
  int thread_affinity = -1;              // core of the cycle thread
  Overlap overlap = Overlap::kAuto;
  int log_level = 3;        // warning
  std::string cuda_driver;  // library that drives the GPUs; empty: the usual one. Opened when it is needed
  GpuDataPath gpu_data_path = GpuDataPath::kAuto;  // alike on all ranks
  std::uint64_t gpu_part_bytes = 8 << 20;          // of a larger tensor that is staged; rank 0's counts
  std::vector<std::string> nccl_libraries;         // where to look for NCCL (NcclLibrary::open); none: there is none
  KernelsForGpu gpu_kernels;                       // none: there are no kernels
  std::size_t ring_buffer_bytes = 32 << 20;        // of a process set on the GPU; larger tensors go in parts
  Generation generation;                           // of an elastic job; alike on all ranks
};

/// What is recorded, and where to.
struct TimelineOptions {
  std::string path;  // of this rank's first file; further ones, of later recordings too, get a number
  bool mark_cycles = false;
  bool pieces = false;             // full detail: the pieces of every batch
  bool gzip = false;               // ".gz" is added to the path
  std::uint64_t rotate_bytes = 0;  // a larger file is followed by another one; 0 = never
  std::uint32_t first_file = 0;    // number of the first file, where earlier runtimes have written some of this rank
  std::string shown{};             // a Chrome trace of this rank, for who looks while the job runs; empty: none
};

/// Where a rank stands among the hosts of the job.
struct Topology {
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  bool homogeneous = true;  // every host has equally many ranks
};
[[nodiscard]] Topology topology_of(const std::vector<std::string>& hosts, int rank);

/// The result of a finished allgather or alltoall that waits on the host to be delivered to a GPU.
struct GatheredOnDevice {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> splits;  // alltoall: rows from each member
};

/// What came of waiting for an operation. kHeld: it is done, and has its result still.
enum class Finish : std::uint8_t { kDone, kPending, kFailed, kHeld };

/// Thread-safe. Methods block only where said. In a child that was forked from the process that made it, all that could
/// reach another rank throws InvalidArgument; leaving and destroying do nothing.
class Runtime {
 public:
  /// Blocks until all ranks have met; throws Timeout naming the missing ones.
  explicit Runtime(const RuntimeOptions& options);
  /// Of a group of ranks beside the runtime of all, in whose timeline it records. Throws as the other one does.
  Runtime(const RuntimeOptions& options, const Runtime& job, TraceGroup group);
  /// For tests: over a fabric made elsewhere.
  Runtime(const RuntimeOptions& options, std::unique_ptr<Fabric> fabric);
  ~Runtime();  // shutdown(5 s)
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] const std::vector<std::string>& hosts() const noexcept;
  [[nodiscard]] const Topology& topology() const noexcept;
  /// "shm", "tcp", "mpi", "inproc": how this rank reaches each other one ("self" for itself).
  [[nodiscard]] std::vector<std::string> transports() const;

  /// Throws InvalidArgument (name in flight, bad root ...), ShutDown, or the error that ended the job; of a tensor on a
  /// GPU, DeviceError too.
  Ticket submit(Submission submission);
  /// The same of host memory, without a caller who will wait: the listener, which is borrowed, is called when it is
  /// done.
  Ticket submit(Submission submission, FinishListener& listener);
  /// Throws what submit() would throw on this rank alone, but for a name that is in flight.
  void check(const Submission& submission) const;
  /// The same for an allreduce; one that repeats the last request of its name costs a look-up.
  Ticket submit(const AllreduceCall& call);
  /// What is known of a collective on host memory that will be repeated: addresses and splits do not count. Throws as
  /// submit. To be dropped before the runtime ends.
  [[nodiscard]] PersistentRequest keep(Submission submission);
  void drop(const PersistentRequest& persistent) noexcept;
  /// As submit, with other addresses (not null unless the tensor is empty).
  Ticket submit(const PersistentRequest& persistent, const void* input, void* output);
  /// All or none of them, of one process set.
  void submit(std::span<const PersistentAt> calls, std::vector<Ticket>& tickets);
  /// The same from begin to end on the calling thread, which drives the runtime itself: 0 when it is done. The ticket
  /// of an operation that goes on at the timeout, has failed, or whose result is not at `memory.output`. Blocks; throws
  /// as submit.
  Ticket run_now(const PersistentRequest& persistent, const Memory& memory, std::int64_t timeout_ns);
  /// The same without waiting for long: it is carried out where nothing else is under way and the other ranks come
  /// within that time, and else goes on in the background. Only then its listener is called.
  Ticket run_or_submit(const PersistentRequest& persistent, const Memory& memory, std::int64_t patience_ns);
  /// All ranks ask for the same; its operation's `number` is the set's. Throws as submit.
  Ticket add_process_set(const std::vector<int>& members);
  Ticket remove_process_set(std::uint32_t id);
  /// Done when all ranks have joined; `number` is who came last. Until then this rank contributes neutral elements.
  Ticket join(const std::string& name);
  /// Global ranks of every set by number.
  [[nodiscard]] std::map<std::uint32_t, std::vector<int>> process_sets() const;
  [[nodiscard]] bool poll(Ticket ticket);
  /// How many threads of each rank of this host compute; 1 until said. Decides whether a core is left for exchanges in
  /// the background.
  void set_compute_threads(int threads) noexcept;
  /// What the calling thread submits from here to the end it waits for at once: it drives the runtime itself, and no
  /// other thread is woken. May be nested. What it has not waited for at the end goes on in the background.
  static void begin_blocking() noexcept;
  void end_blocking() noexcept;
  /// Blocks; false at the deadline. Rethrows the operation's error. A failed or finished ticket stays until release().
  bool wait(Ticket ticket, Deadline deadline);
  /// The ranks that the operation waits for, as far as that becomes known until the deadline. Blocks.
  [[nodiscard]] std::vector<int> awaited(Ticket ticket, Deadline deadline);
  /// The same as wait() without asking for what is held back for a caller, and without the error.
  [[nodiscard]] bool attend(Ticket ticket, Deadline deadline);
  /// Waits, and releases the operation if it is done. What has failed stays for wait() to say why, what has gathered
  /// its result in memory of its own for that to be taken. Blocks; throws InvalidArgument.
  Finish finish(Ticket ticket, Deadline deadline);
  /// Releases an operation that is done and has not failed; else it is to be waited for. Throws InvalidArgument.
  [[nodiscard]] bool release_if_done(Ticket ticket);
  /// The same of all or none: the first that is not done or has failed, if there is one.
  [[nodiscard]] std::optional<Ticket> release_if_done(std::span<const Ticket> tickets);
  /// The result of a finished allgather, moved out.
  [[nodiscard]] OperationPtr operation(Ticket ticket);
  void release(Ticket ticket);

  // Of tensors on GPUs: when wait() or poll() says so, the result is on its way to the device.
  /// What the stream does from now on finds the result. Does not block. Throws DeviceError.
  void join_stream(Ticket ticket, CudaStreamHandle stream);
  [[nodiscard]] GatheredOnDevice gathered_on_device(Ticket ticket);
  /// Copies what was gathered, in the stream, to memory of its device. Throws InvalidArgument, DeviceError.
  void deliver(Ticket ticket, void* memory, CudaStreamHandle stream);

  [[nodiscard]] Knobs knobs() const;
  [[nodiscard]] std::uint32_t knobs_version() const noexcept;
  /// Rank 0 only (InvalidArgument elsewhere). Returns the version of the knobs that the change will carry on all ranks.
  std::uint32_t propose_knobs(const Knobs& knobs);
  /// Whether tensors on GPUs go by NCCL in any process set, so far.
  [[nodiscard]] bool uses_nccl() const;

  /// Ends the current step and begins the next. Call from one thread. `told`: to the other ranks too, who count as this
  /// one does; a step that is this rank's own stands for theirs, who wait for one another in it.
  StepStats end_step(bool told = true);
  /// Finds the steps that nobody marks; told by those who submit and wait.
  [[nodiscard]] StepWatcher& steps();
  [[nodiscard]] CounterValues counters() const noexcept;
  [[nodiscard]] TrafficValues traffic(CollectiveKind kind) const noexcept;
  /// Stalls that this rank has reported.
  [[nodiscard]] std::uint64_t stalls() const noexcept;
  /// The newest stall that this rank has told of for the whole job.
  [[nodiscard]] std::optional<ReportedStall> reported_stall() const;
  /// Operations that were submitted and are not done.
  [[nodiscard]] std::size_t open_operations() const noexcept;

  /// Throws TraceIo, InvalidArgument when already recording.
  void start_timeline(const TimelineOptions& timeline);
  void stop_timeline();  // may wait a fraction of a second for a last look at rank 0's clock
  [[nodiscard]] Tracer& tracer() noexcept;
  /// How far this rank has come in its job's timeline.
  [[nodiscard]] GenerationProgress progress() const noexcept;
  void record_range(std::string_view name, std::int64_t begin_ns, std::int64_t end_ns);
  /// A span of a collective that another library has carried; step and version of the knobs are filled in here. The
  /// statistics count it too: what was communicated, and what a caller waited. Any thread.
  void record_foreign(std::string_view name, Span span);
  /// The same of one that runs in streams of the GPU `span.peer`, whose clock tells when: see gpu/foreign_times.h.
  [[nodiscard]] std::uint64_t begin_foreign(std::string_view name, Span span, CudaStreamHandle stream);
  void end_foreign(std::uint64_t work, CudaStreamHandle stream);
  void drop_foreign(std::uint64_t work);

  /// Reports the departure and ends the cycle thread. Pending operations fail with ShutDown. Rank 0 waits for all
  /// others to leave, at most until `timeout_ns`. Idempotent. `how`: what this rank did, for the others that wait for
  /// it, as the words behind "rank 1 on host b"; `failed`: by an error.
  void shutdown(std::int64_t timeout_ns, const std::string& how = "", bool failed = false);

 private:
  class Impl;
  /// Before anything that could reach another rank, or wait for a lock that a thread of the parent held.
  [[nodiscard]] Impl& own() const;
  [[nodiscard]] Span foreign_span(std::string_view name, Span span);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ringtune
