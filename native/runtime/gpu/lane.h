// A lane carries the tensors of one GPU to the host and back: a stream and a thread for each direction.
//
// Staged:
//   submit: records an event in the caller's stream; the input stream waits for it and copies into pinned memory
//   input thread: sleeps until a part is on the host, then gives it to the runtime
//   engine: reduces it like any other tensor
//   output thread: the output stream copies the result back; an event there says when the tensor holds it
//
// From GPU to GPU (data_paths.h):
//   submit: records an event in the caller's stream and gives the runtime the operation at once
//   engine: puts it into another stream, behind that event, when all ranks have announced it
// An operation that is refused there takes the next data path, at last the staged one.
//
// By NCCL within hosts (nccl_within_hosts.cc):
//   submit and engine: likewise; behind NCCL's first stage the input stream copies the rank's slice to pinned memory
//   input thread: sleeps until the slice is there, then gives it to the runtime as another operation
//   engine: reduces it across hosts; the output stream copies it back, and NCCL's second stage waits for that copy
//
// No stream of the caller waits before the program asks for the result, and no call of the program waits for a device.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "control/tensor_key.h"
#include "device/cuda.h"
#include "runtime/gpu/data_paths.h"
#include "runtime/gpu/device_operation.h"
#include "runtime/gpu/recorder.h"

namespace ringtune {

/// The runtime's functions for operations on host memory. They are called with the shared lock held, so none may wait
/// for a device.
struct HostDataPath {
  /// Throws as Runtime::submit. The listener is called when the operation is done.
  std::function<Ticket(Submission submission, FinishListener& listener)> submit;
  std::function<void(Ticket ticket)> release;
  std::function<void()> begin_waiting;  // a caller blocks on something that was submitted
  std::function<void()> end_waiting;
  /// What the timeline says of an operation that is submitted now; none while nothing is recorded.
  std::function<std::optional<Span>(const Prepared& prepared)> recorded;
  Tracer* tracer = nullptr;  // with `recorded`
};

/// What the lanes of a runtime share, and its lock.
struct HostStagedShared {
  HostStagedShared(HostDataPath host_path, DevicePaths& device_paths)
      : host(std::move(host_path)), data_paths(device_paths) {}
  std::mutex mutex;
  HostDataPath host;
  DevicePaths& data_paths;
  std::size_t part_bytes = 8 << 20;  // of a larger tensor that is staged; all ranks have the same
  std::set<TensorKey> names;         // in flight
  int waiters = 0;                   // callers that block
  int unstaged = 0;                  // operations whose bytes are not all on the host
  bool hurried = false;

  /// Tells the runtime that a caller waits, once the GPUs have nothing more to add: tensors that still come belong to
  /// the same batches.
  void settle_haste();
};

/// Made on the thread of a caller. Unless said, methods need the shared lock, and the device's context to be current.
class DeviceLane {
 public:
  /// Throws DeviceError.
  DeviceLane(HostStagedShared& shared, const CudaDriver& driver, int ordinal);
  ~DeviceLane();  // without the lock; after close()
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  [[nodiscard]] const CudaDevice& device() const noexcept { return device_; }
  /// From the pool; to be begun or recycled.
  [[nodiscard]] DeviceOperation& allocate();
  void recycle(DeviceOperation& operation);
  [[nodiscard]] DeviceOperation* at(std::uint32_t slot);
  /// What is put into one of them runs in the order in which the ranks agreed on it. Driving thread, with the context,
  /// without the lock. Throws DeviceError.
  [[nodiscard]] CudaStream& transfer_stream(std::size_t index);
  /// Begins behind what is in the caller's stream, and so on to the end. Throws DeviceError, and as the host's submit.
  void begin(DeviceOperation& operation, CudaStreamHandle stream);
  /// What the stream does from now on finds the result of a finished operation. Throws DeviceError.
  void join(const DeviceOperation& operation, CudaStreamHandle stream);
  /// Memory on the device for what is gathered there, free for what the stream does from now on; null for no bytes.
  /// Driving thread, without the lock. Throws DeviceError.
  std::byte* receive(DeviceOperation& operation, std::size_t bytes, CudaStream& stream);
  /// Copies what was gathered into the caller's memory, in the caller's stream. Throws DeviceError.
  void deliver(const DeviceOperation& operation, std::byte* memory, CudaStreamHandle stream);
  // lane_slices.cc: NCCL within hosts. Driving thread, with the context, without the lock. Throw
  // DeviceError.
  /// Memory for the operation's slice, on the host and on the device, where it is free for what the stream does from
  /// now on.
  void take_slice(DeviceOperation& operation, const HostSlice& slice, CudaStream& stream);
  /// Copies slices that the stream has put there to the host.
  void slices_to_host(std::span<const OperationPtr> batch, CudaStream& stream, DeviceTimes::Copies* times);
  /// Copies them to where they belong in the results, and makes the stream wait for that.
  void slices_to_device(std::span<const OperationPtr> batch, CudaStream& stream, DeviceTimes::Copies* times);
  /// Events that time a batch on this GPU; null where its driver tells no times.
  [[nodiscard]] DeviceTimes* time_batch(const Span& about);

  /// Any thread, without the lock.
  void part_finished(DevicePart& part, Operation& operation) noexcept;
  /// The recorder of this GPU; it exists where an operation is timed. Driving thread too, without the lock.
  [[nodiscard]] DeviceRecorder& recorder() noexcept { return *streams_->recorder; }
  /// Without the lock: blocks until the timeline holds the spans of what has ended, at most until then.
  void settle_times(Deadline deadline);
  /// Without the lock, when the runtime takes no operation any more: blocks until all of them have ended.
  void close();

 private:
  void run_input();
  void run_output();
  void begin_staged(DeviceOperation& operation);
  bool goes_on(DevicePart& part, const std::exception_ptr& failure);
  void stage_anew(DeviceOperation& operation);
  void stage(DeviceOperation& operation, std::unique_lock<std::mutex>& lock);
  void advance(DeviceOperation& operation);
  void submit_part(DeviceOperation& operation, std::size_t index);
  void arrived(DeviceOperation& operation, Operation& host) noexcept;
  void begin_crossing(DeviceOperation& operation);
  void end_crossing(DeviceOperation& operation);
  void bring_back(DevicePart& part, std::unique_lock<std::mutex>& lock);
  void end_if_over(DeviceOperation& operation);
  DeviceTimes* take_times(const Prepared& prepared, Stage stage);
  void begin_times(DeviceOperation& operation, CudaStreamHandle stream);
  void end_times(DeviceOperation& operation);
  void end(DeviceOperation& operation) noexcept;
  void give_back_blocks(const DeviceOperation& operation, std::size_t first);

  HostStagedShared& shared_;
  CudaDevice device_;
  // Everything that is made in the context goes while that is current: see the destructor.
  struct Streams {
    explicit Streams(const CudaDevice& device) : pool(device), received(device), input(device), output(device) {}
    // They outlive the streams, in which copies of a failed job may still stand.
    PinnedPool pool;
    DevicePool received;
    CudaStream input;
    CudaStream output;
    std::vector<std::unique_ptr<CudaStream>> transfer;  // driving thread
    std::deque<DeviceOperation> operations;
    std::unique_ptr<DeviceRecorder> recorder;  // null until something is recorded; set with the lock
  };
  std::unique_ptr<Streams> streams_;
  std::vector<DeviceOperation*> free_;
  std::deque<DeviceOperation*> incoming_;
  std::deque<DevicePart*> outgoing_;
  std::condition_variable input_news_;
  std::condition_variable output_news_;
  bool input_ends_ = false;
  bool output_ends_ = false;
  std::thread input_thread_;
  std::thread output_thread_;
};

}  // namespace ringtune
