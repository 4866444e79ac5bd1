#include "collective/device_ring.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "transport/thread.h"

namespace ringtune {
namespace {

/// Ahead of all that streams can wait for: half of the way to where a count is behind.
constexpr std::uint32_t kFarAhead = std::uint32_t{1} << 30;

}  // namespace

/// Writes the words again and again from some time on and as long as it lives: a stream of their rank may still write
/// smaller counts.
class DeviceRing::Overtaking {
 public:
  Overtaking(StreamWord first, StreamWord second, std::uint32_t value, Deadline begin)
      : thread_(start_thread("ringtune-ring", [=, this] {
          std::unique_lock lock(mutex_);
          while (!over_ && !begin.expired()) {
            news_.wait_for(lock, std::chrono::nanoseconds(std::min(begin.remaining_ns(), kLongestWaitNs)));
          }
          while (!over_) {
            began_ = true;
            // Release: a stream that goes on by it sees the host's writes before.
            first.host->store(value, std::memory_order_release);
            second.host->store(value, std::memory_order_release);
            news_.wait_for(lock, std::chrono::milliseconds(1));
          }
        })) {}
  ~Overtaking() { (void)end(); }
  Overtaking(const Overtaking&) = delete;
  Overtaking& operator=(const Overtaking&) = delete;

  /// Whether it has written any.
  bool end() noexcept {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    news_.notify_one();
    if (thread_.joinable()) thread_.join();
    return began_;
  }

 private:
  static constexpr std::int64_t kLongestWaitNs = 1'000'000'000;
  std::mutex mutex_;
  std::condition_variable news_;
  bool over_ = false;
  bool began_ = false;
  std::thread thread_;  // the last: it uses all of them
};

DeviceRing::DeviceRing(const CudaDevice& device, DeviceKernels& kernels, const DeviceRingPlace& place,
                       CudaStreamHandle stream, std::size_t segment_bytes)
    : device_(device),
      kernels_(kernels),
      place_(place),
      stream_(stream),
      segment_bytes_(segment_bytes),
      count_(place.done.host->load(std::memory_order_acquire)) {  // as others' streams or hosts left it
  RINGTUNE_CHECK(segment_bytes > 0 && segment_bytes % 64 == 0, "segments of ", segment_bytes, " bytes");
}

DeviceRing::~DeviceRing() = default;

void DeviceRing::take_buffer() {
  taken_ = true;
  if (place_.size > 1) wait_for_word(device_, stream_, place_.next_done, count_);
}

void DeviceRing::allreduce(std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t unit = size_of(dtype);
  run(device_allreduce_plan(shape(), count * unit, unit), dtype, op);
}

void DeviceRing::allgather(std::span<const std::size_t> block_bytes) {
  RINGTUNE_CHECK_EQ(block_bytes.size(), static_cast<std::size_t>(place_.size), "blocks of an allgather");
  run(device_allgather_plan(shape(), block_bytes), DType::kUint8, ReduceOp::kSum);
}

void DeviceRing::broadcast(std::size_t bytes, int root) {
  run(device_broadcast_plan(shape(), bytes, root), DType::kUint8, ReduceOp::kSum);
}

void DeviceRing::run(const DeviceRingPlan& plan, DType dtype, ReduceOp op) {
  RINGTUNE_CHECK(taken_, "take_buffer() comes before every collective of the ring");
  taken_ = false;
  if (place_.size == 1) return;
  // At once: abort() goes beyond whatever was put in.
  const std::uint32_t before = count_.fetch_add(plan.total);
  write_word(device_, stream_, place_.done, plan.steps.empty() ? count_.load() : before + 1);
  for (const DeviceRingStep& step : plan.steps) {
    wait_for_word(device_, stream_, place_.previous_done, before + step.needs);
    const CudaAddress own = place_.buffer + step.begin;
    const CudaAddress from = place_.previous + step.begin;
    if (step.bytes != 0 && step.reduces) {
      kernels_.reduce({own, from, own, step.bytes / size_of(dtype)}, dtype, op, stream_);
    } else if (step.bytes != 0) {
      device_.check(device_.api().copy_on_device(own, from, step.bytes, stream_), "cuMemcpyDtoDAsync");
    }
    write_word(device_, stream_, place_.done, before + step.done);
  }
}

void DeviceRing::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (overtaking_ != nullptr) return;
  const std::uint32_t beyond = count_ + kFarAhead;
  try {
    overtaking_ = std::make_unique<Overtaking>(place_.previous_done, place_.next_done, beyond, Deadline::after(0));
  } catch (const std::exception& error) {
    log(LogLevel::kError, "a stream waits for a rank that is lost until this one leaves: ", error.what());
  }
}

bool DeviceRing::finish(Deadline deadline) {
  const std::uint32_t beyond = count_ + kFarAhead;
  CudaEvent end(device_);
  bool aborted = false;
  {
    Overtaking late(place_.previous_done, place_.next_done, beyond, deadline);
    if (place_.size > 1) wait_for_word(device_, stream_, place_.next_done, count_);
    end.record(stream_);
    end.synchronize();
    aborted = late.end();
  }
  const std::lock_guard lock(mutex_);
  aborted = std::exchange(overtaking_, nullptr) != nullptr || aborted;
  // Behind the last count that the stream wrote; then the others' streams may end.
  if (aborted) place_.done.host->store(beyond, std::memory_order_release);
  return aborted;
}

}  // namespace ringtune
