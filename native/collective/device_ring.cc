#include "collective/device_ring.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/check.h"

namespace ringtune {
namespace {

/// Ahead of all that streams can wait for: half of the way to where a count is behind.
constexpr std::uint32_t kFarAhead = std::uint32_t{1} << 30;

/// Writes the words again and again as long as it lives: a stream of their rank may still write smaller counts.
class Overtaking {
 public:
  Overtaking(StreamWord first, StreamWord second, std::uint32_t value)
      : thread_([=, this] {
          std::unique_lock lock(mutex_);
          do {
            // Release: whoever goes on by it sees what the host did before.
            first.host->store(value, std::memory_order_release);
            second.host->store(value, std::memory_order_release);
          } while (!news_.wait_for(lock, std::chrono::milliseconds(1), [&] { return over_; }));
        }) {}
  ~Overtaking() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    news_.notify_one();
    thread_.join();
  }
  Overtaking(const Overtaking&) = delete;
  Overtaking& operator=(const Overtaking&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace

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
  const std::uint32_t before = count_;
  count_ += plan.total;  // at once: abort() goes beyond whatever was put in
  write_word(device_, stream_, place_.done, plan.steps.empty() ? count_ : before + 1);
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

void DeviceRing::abort() {
  const std::uint32_t beyond = count_ + kFarAhead;
  {
    const Overtaking overtaking(place_.previous_done, place_.next_done, beyond);
    CudaEvent end(device_);
    end.record(stream_);
    end.synchronize();
  }
  place_.done.host->store(beyond, std::memory_order_release);  // behind the last count that the stream wrote
}

}  // namespace ringtune
