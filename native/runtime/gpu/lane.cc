#include "runtime/gpu/lane.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/futex.h"
#include "transport/thread.h"

namespace ringtune {
namespace {

/// The exception that the call throws, or null.
template <typename Call>
std::exception_ptr failure_of(const Call& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

void fail(DeviceOperation& operation, const std::exception_ptr& error) {
  if (error && !operation.error) operation.error = error;
}

/// The runtime's operation for a slice: NCCL has applied the first factor and the host's sum, the last factor remains.
Submission crossing_of(const DeviceOperation& operation) {
  std::byte* const memory = operation.parts.front()->block->data;
  Submission submission{operation.prepared->request, memory, memory, {}};
  Request& request = submission.request;
  request.name += " [across hosts]";
  request.shape = {static_cast<std::int64_t>(operation.slice.count())};
  request.prescale = 1.0;
  request.group.clear();
  request.group_size = 0;
  request.data_path = DataPath::kAcross;
  return submission;
}

/// The runtime's operation for one part.
Submission submission_of(const DeviceOperation& operation, std::size_t index) {
  const DevicePart& part = *operation.parts[index];
  if (operation.direct()) {
    const Submission& what = operation.what;
    if (operation.crosses) return crossing_of(operation);
    Submission submission{operation.prepared->request, what.input, what.output, what.splits};
    submission.request.data_path = operation.data_path;
    return submission;
  }
  Submission submission{operation.prepared->request, part.block->data, part.block->data, operation.what.splits};
  if (operation.part_count == 1) return submission;
  Request& request = submission.request;
  // The first part says what the whole tensor is, and the others follow when all ranks have agreed on it.
  if (index == 0) {
    request.whole = std::move(request.shape);
  } else {
    request.name += " [" + std::to_string(index + 1) + "/" + std::to_string(operation.part_count) + "]";
    request.group.clear();
    request.group_size = 0;
  }
  request.shape = {static_cast<std::int64_t>(part.count)};
  return submission;
}

}  // namespace

void HostStagedShared::settle_haste() {
  const bool haste = waiters > 0 && unstaged == 0 && !names.empty();
  if (haste == hurried) return;
  hurried = haste;
  (haste ? host.begin_waiting : host.end_waiting)();
}

DeviceLane::DeviceLane(HostStagedShared& shared, const CudaDriver& driver, int ordinal)
    : shared_(shared), device_(driver, ordinal) {
  const CudaDevice::Current current(device_);
  streams_ = std::make_unique<Streams>(device_);
  input_thread_ = start_thread("ringtune-to-cpu", [this] { run_input(); });
  output_thread_ = start_thread("ringtune-to-gpu", [this] { run_output(); });
}

DeviceLane::~DeviceLane() {
  close();
  try {
    const CudaDevice::Current current(device_);
    streams_.reset();
  } catch (const std::exception&) {  // the driver has failed, and its objects are gone
    (void)streams_.release();
  }
}

void DeviceLane::close() {
  const bool was_open = output_thread_.joinable();
  const auto end = [&](bool& flag, std::condition_variable& news, std::thread& thread) {
    if (!thread.joinable()) return;
    {
      const std::lock_guard lock(shared_.mutex);
      flag = true;
    }
    news.notify_all();
    thread.join();
  };
  end(input_ends_, input_news_, input_thread_);  // first, because it hands operations on to the output thread
  end(output_ends_, output_news_, output_thread_);
  if (!was_open) return;
  // Results may still be on their way, from memory of this lane to tensors that their owner may free from now on.
  (void)failure_of([&] {
    const CudaDevice::Current current(device_);
    CudaEvent copied(device_);
    copied.record(streams_->output.handle());
    copied.synchronize();
  });
}

CudaStream& DeviceLane::transfer_stream(std::size_t index) {
  std::vector<std::unique_ptr<CudaStream>>& streams = streams_->transfer;
  while (streams.size() <= index) streams.push_back(std::make_unique<CudaStream>(device_));
  return *streams[index];
}

DeviceOperation& DeviceLane::allocate() {
  if (!free_.empty()) {
    DeviceOperation& operation = *free_.back();
    free_.pop_back();
    return operation;
  }
  DeviceOperation& operation = streams_->operations.emplace_back(*this);
  operation.slot = static_cast<std::uint32_t>(streams_->operations.size() - 1);
  return operation;
}

void DeviceLane::recycle(DeviceOperation& operation) {
  operation.ticket = 0;
  operation.staged = operation.submitted = operation.ended = 0;
  operation.all_staged = operation.abandoned = operation.crosses = false;
  operation.error = nullptr;
  operation.gathered = {};
  if (operation.received != nullptr) streams_->received.give_back(*std::exchange(operation.received, nullptr));
  operation.received_bytes = 0;
  end_crossing(operation);
  // Relaxed: the next thread that reads it has taken the lock.
  operation.state.store(Operation::kPending, std::memory_order_relaxed);
  free_.push_back(&operation);
}

DeviceOperation* DeviceLane::at(std::uint32_t slot) {
  return slot < streams_->operations.size() ? &streams_->operations[slot] : nullptr;
}

void DeviceLane::begin(DeviceOperation& operation, CudaStreamHandle stream) {
  begin_times(operation, stream);
  try {
    operation.ready.record(stream);
    if (!operation.direct()) return begin_staged(operation);
    operation.all_staged = true;  // no copy is under way
    submit_part(operation, 0);
    if (operation.error) std::rethrow_exception(operation.error);
  } catch (...) {
    operation.error = std::current_exception();
    end_times(operation);
    operation.error = nullptr;
    throw;
  }
}

void DeviceLane::begin_staged(DeviceOperation& operation) {
  CudaStream& input = streams_->input;
  const std::size_t item_bytes = size_of(operation.prepared->request.dtype);
  const auto* const source = static_cast<const std::byte*>(operation.what.input);
  try {
    input.wait(operation.ready);
    for (std::size_t i = 0; i < operation.part_count; ++i) {
      DevicePart& part = *operation.parts[i];
      part.block = &streams_->pool.take(part.count * item_bytes);
      input.wait(part.block->last_use);  // the copy back from it may still be under way
      DeviceTimes* const times = part.sent == 0 ? nullptr : operation.times;
      TimedCopy timed(times == nullptr ? nullptr : &times->to_host, device_, input.handle(), part.sent);
      input.copy_to_host(part.block->data, source + part.begin, part.sent);
      timed.end();
      part.block->last_use.record(input.handle());
    }
  } catch (...) {
    // Copies that were begun go on in this stream, and the blocks' next use is behind them.
    give_back_blocks(operation, 0);
    throw;
  }
  ++shared_.unstaged;
  incoming_.push_back(&operation);
  input_news_.notify_one();
}

/// Gives back the blocks of the parts from `first` on.
void DeviceLane::give_back_blocks(const DeviceOperation& operation, std::size_t first) {
  for (std::size_t i = first; i < operation.part_count; ++i) {
    if (PinnedBlock* const block = std::exchange(operation.parts[i]->block, nullptr)) streams_->pool.give_back(*block);
  }
}

void DeviceLane::run_input() {
  // Without the context every call of the driver fails, and so does the operation that needed it.
  std::optional<CudaDevice::Current> current;
  (void)failure_of([&] { current.emplace(device_); });
  std::unique_lock lock(shared_.mutex);
  while (true) {
    input_news_.wait(lock, [&] { return input_ends_ || !incoming_.empty(); });
    if (incoming_.empty()) return;
    DeviceOperation& operation = *incoming_.front();
    incoming_.pop_front();
    stage(operation, lock);
  }
}

/// Hands its parts on as they come to the host. Releases the lock while it waits for one.
void DeviceLane::stage(DeviceOperation& operation, std::unique_lock<std::mutex>& lock) {
  for (std::size_t i = 0; i < operation.part_count; ++i) {
    const PinnedBlock& block = *operation.parts[i]->block;
    const bool crosses = operation.crosses;  // a part of a staged tensor that is refused meanwhile writes both
    const DataPath data_path = operation.data_path;
    lock.unlock();
    const std::exception_ptr failure = failure_of([&] {
      block.last_use.synchronize();
      if (crosses) shared_.data_paths.check(data_path);
    });
    lock.lock();
    fail(operation, failure);
    operation.staged = i + 1;
    if (i + 1 < operation.part_count) advance(operation);
  }
  operation.all_staged = true;
  --shared_.unstaged;
  advance(operation);
  end_if_over(operation);
  shared_.settle_haste();
}

/// Submits the parts that are on the host: the first one alone, and the others when it has ended.
void DeviceLane::advance(DeviceOperation& operation) {
  const std::size_t may = operation.ended > 0 ? operation.staged : std::min<std::size_t>(operation.staged, 1);
  while (!operation.error && operation.submitted < may) submit_part(operation, operation.submitted);
}

void DeviceLane::submit_part(DeviceOperation& operation, std::size_t index) {
  DevicePart& part = *operation.parts[index];
  fail(operation, failure_of([&] {
         shared_.host.submit(submission_of(operation, index), part);
         ++operation.submitted;
       }));
}

void DeviceLane::part_finished(DevicePart& part, Operation& operation) noexcept {
  {
    const std::lock_guard lock(shared_.mutex);
    if (part.whole->direct() && !operation.error) return arrived(*part.whole, operation);
    part.host = &operation;
    outgoing_.push_back(&part);
  }
  output_news_.notify_one();
}

/// Its result is in a stream; no thread of the lane has to wait for it.
void DeviceLane::arrived(DeviceOperation& operation, Operation& host) noexcept {
  operation.gathered_shape = std::move(host.gathered_shape);
  operation.splits = std::move(host.splits);
  shared_.host.release(host.ticket);
  if (operation.data_path == DataPath::kHierarchical && !operation.crosses) {
    begin_crossing(operation);
  } else {
    end_crossing(operation);
    end(operation);
  }
  shared_.settle_haste();
}

void DeviceLane::run_output() {
  std::optional<CudaDevice::Current> current;  // as above
  (void)failure_of([&] { current.emplace(device_); });
  std::unique_lock lock(shared_.mutex);
  while (true) {
    output_news_.wait(lock, [&] { return output_ends_ || !outgoing_.empty(); });
    if (outgoing_.empty()) return;
    DevicePart& part = *outgoing_.front();
    outgoing_.pop_front();
    bring_back(part, lock);
  }
}

/// Copies a part's result to the device. Releases the lock meanwhile.
void DeviceLane::bring_back(DevicePart& part, std::unique_lock<std::mutex>& lock) {
  DeviceOperation& operation = *part.whole;
  Operation& host = *part.host;
  lock.unlock();
  std::exception_ptr failure = host.error;
  if (!failure) {
    operation.gathered = std::move(host.gathered);
    operation.gathered_shape = std::move(host.gathered_shape);
    operation.splits = std::move(host.splits);
    failure = failure_of([&] {
      CudaStream& output = streams_->output;
      DeviceTimes* const times = part.returned == 0 ? nullptr : operation.times;
      TimedCopy timed(times == nullptr ? nullptr : &times->to_device, device_, output.handle(), part.returned);
      output.copy_to_device(static_cast<std::byte*>(operation.what.output) + part.begin, part.block->data,
                            part.returned);
      timed.end();
      part.block->last_use.record(output.handle());
    });
  }
  lock.lock();
  shared_.host.release(host.ticket);
  if (failure && goes_on(part, failure)) return;
  if (PinnedBlock* const block = std::exchange(part.block, nullptr)) streams_->pool.give_back(*block);
  fail(operation, failure);
  ++operation.ended;
  advance(operation);
  end_if_over(operation);
  shared_.settle_haste();
}

/// Whether a part that has not run was submitted again, perhaps by another data path.
bool DeviceLane::goes_on(DevicePart& part, const std::exception_ptr& failure) {
  DeviceOperation& operation = *part.whole;
  try {
    std::rethrow_exception(failure);
  } catch (const DataPathRefused& refusal) {
    part.refusal = failure;
    const std::exception_ptr refused = failure_of([&] {
      if (input_ends_) throw ShutDown("ringtune has been shut down on this rank; call init() again to go on");
      const Request& request = operation.prepared->request;
      end_crossing(operation);                  // from the begin: only memory of the lane was written
      const bool staged = !operation.direct();  // another rank's data path was refused
      if (refusal.refused()) shared_.data_paths.refuse(*refusal.refused(), request.process_set, refusal.what());
      if (!staged)
        operation.data_path =
            refusal.refused() ? shared_.data_paths.data_path_of(request, operation.spread) : DataPath::kStaged;
      if (!staged && !operation.direct()) return stage_anew(operation);
      shared_.host.submit(submission_of(operation, part.index), part);  // its bytes are unchanged
    });
    fail(operation, refused);
    return refused == nullptr;
  } catch (...) {
    return false;
  }
}

/// Stages it from the begin: the event in the caller's stream still says when the tensor is complete.
void DeviceLane::stage_anew(DeviceOperation& operation) {
  operation.lay_out(shared_.part_bytes);
  begin_staged(operation);
  operation.staged = operation.submitted = 0;
  operation.all_staged = false;
}

void DeviceLane::end_if_over(DeviceOperation& operation) {
  const std::size_t awaited = operation.error ? operation.submitted : operation.part_count;
  if (!operation.all_staged || operation.ended < awaited) return;
  give_back_blocks(operation, operation.submitted);
  fail(operation, failure_of([&] {
         operation.copied.record(streams_->output.handle());
         // A caller that sees a failure may free the tensor at once, so no copy into it may be under way.
         if (operation.error) operation.copied.synchronize();
       }));
  end(operation);
}

void DeviceLane::end(DeviceOperation& operation) noexcept {
  shared_.names.erase(key_of(operation.prepared->request));
  end_times(operation);
  // Release: a thread that sees kDone sees the result and the error as well.
  const std::uint32_t before = operation.state.exchange(Operation::kDone, std::memory_order_acq_rel);
  if (before == Operation::kAwaited) futex_wake(operation.state, kFutexWakeAll, FutexScope::kPrivate);
  if (operation.abandoned) recycle(operation);
}

}  // namespace ringtune
