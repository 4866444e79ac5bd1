// Ranks of one process, each with a GPU of the fake driver and the fake NCCL at hand.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/fake_nccl_gpus.h"
#include "runtime/job.h"

namespace ringtune::testing_support {

/// Stands for what brings the kernels where nothing can compile them.
inline std::vector<std::byte> no_compiler(int /*capability*/) { throw DeviceError("kernels for GPUs need a compiler"); }

class NcclJob {
 public:
  /// `gpus`: of the ranks, in turn.
  explicit NcclJob(int size, int gpus, const std::function<void(RuntimeOptions&)>& adjust = {})
      : NcclJob(make_inproc_fabrics(size), gpus, adjust) {}
  NcclJob(std::vector<std::unique_ptr<Fabric>> fabrics, int gpus, const std::function<void(RuntimeOptions&)>& adjust)
      : nccl_(gpus), job_(std::make_unique<Job>(std::move(fabrics), [&](RuntimeOptions& options) {
          options.cuda_driver = FakeGpu::path();
          options.nccl_libraries = {FakeNccl::path()};
          if (adjust) adjust(options);
        })) {
    const int size = job_->size();
    for (int gpu = 0; gpu < gpus; ++gpu) devices_.push_back(std::make_unique<CudaDevice>(FakeGpu::driver(), gpu));
    for (int rank = 0; rank < size; ++rank) {
      const CudaDevice::Current current(device(rank));
      streams_.push_back(std::make_unique<CudaStream>(device(rank)));
    }
  }
  explicit NcclJob(int size, const std::function<void(RuntimeOptions&)>& adjust = {}) : NcclJob(size, size, adjust) {}
  ~NcclJob() {
    job_.reset();
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
      const CudaDevice::Current current(device(static_cast<int>(rank)));
      streams_[rank].reset();
    }
  }
  NcclJob(const NcclJob&) = delete;
  NcclJob& operator=(const NcclJob&) = delete;

  [[nodiscard]] Runtime& operator[](int rank) { return (*job_)[rank]; }
  [[nodiscard]] int size() const { return static_cast<int>(streams_.size()); }
  [[nodiscard]] FakeNccl& nccl() { return nccl_; }
  [[nodiscard]] const CudaDevice& device(int rank) const {
    return *devices_[static_cast<std::size_t>(rank) % devices_.size()];
  }
  [[nodiscard]] CudaStreamHandle stream(int rank) const { return streams_[static_cast<std::size_t>(rank)]->handle(); }
  void on_every_rank(const std::function<void(int rank)>& act) { job_->on_every_rank(act); }
  void end() { job_.reset(); }

  Submission of(int rank, const std::string& name, const std::byte* input, std::byte* output, DType dtype,
                std::vector<std::int64_t> shape) {
    Submission submission{{}, input, output};
    submission.request.name = name;
    submission.request.dtype = dtype;
    submission.request.shape = std::move(shape);
    submission.device = DevicePlace{device(rank).ordinal(), stream(rank)};
    return submission;
  }
  template <typename T>
  Submission of(int rank, const std::string& name, const DeviceArray<T>& input, const DeviceArray<T>& output) {
    return of(rank, name, input.data(), output.data(), dtype_of<T>(), {static_cast<std::int64_t>(input.size())});
  }
  void join(int rank, Ticket ticket) {
    if (!(*this)[rank].wait(ticket, Deadline::after(20'000'000'000))) throw Timeout("the operation did not end");
    (*this)[rank].join_stream(ticket, stream(rank));
  }
  /// Runs it, and makes the rank's stream wait for its result.
  void run(int rank, Submission submission) {
    const Ticket ticket = (*this)[rank].submit(std::move(submission));
    join(rank, ticket);
    (*this)[rank].release(ticket);
  }
  /// Copies between device and host so far: none where tensors go from GPU to GPU.
  static int copies() { return FakeGpu::calls("cuMemcpyDtoHAsync_v2") + FakeGpu::calls("cuMemcpyHtoDAsync_v2"); }

 private:
  FakeNccl nccl_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::unique_ptr<Job> job_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
};

/// A sum that is submitted and waited for while the GPU has not come to its data.
inline void sum_while_busy(NcclJob& job) {
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), std::vector<std::int32_t>(8, 0));
    job.run(rank, job.of(rank, "first", tensor, tensor));  // all is connected
    FakeGpu::hold(job.stream(rank));
    tensor.fill(job.stream(rank), 4);
    const Ticket ticket = job[rank].submit(job.of(rank, "t", tensor, tensor));
    job.join(rank, ticket);  // its stream waits, not this thread
    job[rank].release(ticket);
    FakeGpu::release(job.stream(rank));
    EXPECT_EQ(tensor.values(job.stream(rank)), std::vector<std::int32_t>(8, 8));
  });
}

/// Steps of many tensors, as training has them; each step's values differ.
inline void run_steps(NcclJob& job, int count, int steps) {
  job.on_every_rank([&](int rank) {
    std::vector<std::unique_ptr<DeviceArray<float>>> tensors;
    for (int i = 0; i < count; ++i) {
      tensors.push_back(std::make_unique<DeviceArray<float>>(job.device(rank),
                                                             std::vector<float>(static_cast<std::size_t>(7 * i + 1))));
    }
    for (int step = 0; step < steps; ++step) {
      std::vector<Ticket> tickets;
      for (int i = 0; i < count; ++i) {
        DeviceArray<float>& tensor = *tensors[static_cast<std::size_t>(i)];
        tensor.fill(job.stream(rank), static_cast<float>(step + i + 10 * rank));
        tickets.push_back(job[rank].submit(job.of(rank, "t" + std::to_string(i), tensor, tensor)));
      }
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        job.join(rank, tickets[i]);
        job[rank].release(tickets[i]);
        const int sum = job.size() * (step + static_cast<int>(i)) + 5 * job.size() * (job.size() - 1);
        ASSERT_EQ(tensors[i]->values(job.stream(rank)), std::vector<float>(tensors[i]->size(), static_cast<float>(sum)))
            << "step " << step << ", tensor " << i;
      }
    }
  });
}

}  // namespace ringtune::testing_support
