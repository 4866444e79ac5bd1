// Ranks of one process that share the fake driver's GPUs, each with a stream of its own.
#pragma once

#include <vector>

#include "device/fake_gpu.h"
#include "runtime/job.h"

namespace ringtune::testing_support {

class DeviceJob {
 public:
  explicit DeviceJob(int size, const std::function<void(RuntimeOptions&)>& adjust = {})
      : size_(size), job_(std::make_unique<Job>(size, [&](RuntimeOptions& options) {
          options.cuda_driver = FakeGpu::path();
          if (adjust) adjust(options);
        })) {
    const CudaDevice::Current current(device_);
    for (int rank = 0; rank < size; ++rank) streams_.push_back(std::make_unique<CudaStream>(device_));
  }
  ~DeviceJob() {
    job_.reset();
    const CudaDevice::Current current(device_);
    streams_.clear();
  }
  DeviceJob(const DeviceJob&) = delete;
  DeviceJob& operator=(const DeviceJob&) = delete;

  [[nodiscard]] Runtime& operator[](int rank) { return (*job_)[rank]; }
  [[nodiscard]] const CudaDevice& device() const noexcept { return device_; }
  [[nodiscard]] CudaStreamHandle stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]->handle(); }
  void on_every_rank(const std::function<void(int rank)>& act) { job_->on_every_rank(act); }
  /// Leaves the job, whatever it has in flight.
  void end() { job_.reset(); }

  /// What a rank's program sees of an operation's result in its stream: it waits, joins and goes on.
  template <typename T>
  std::vector<T> result(int rank, Ticket ticket, const DeviceArray<T>& output) {
    join(rank, ticket);
    (*this)[rank].release(ticket);
    return output.values(stream(rank));
  }
  void join(int rank, Ticket ticket) {
    if (!(*this)[rank].wait(ticket, Deadline::after(20'000'000'000))) throw Timeout("the operation did not end");
    (*this)[rank].join_stream(ticket, stream(rank));
  }
  template <typename T>
  Submission of(int rank, const std::string& name, const DeviceArray<T>& input, const DeviceArray<T>& output) {
    Submission submission{{}, input.data(), output.data()};
    submission.request.name = name;
    submission.request.dtype = dtype_of<T>();
    submission.request.shape = {static_cast<std::int64_t>(input.size())};
    submission.device = DevicePlace{device_.ordinal(), stream(rank)};
    return submission;
  }

 private:
  FakeGpu gpu_;
  CudaDevice device_{FakeGpu::driver(), 0};
  int size_;
  std::unique_ptr<Job> job_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
};

}  // namespace ringtune::testing_support
