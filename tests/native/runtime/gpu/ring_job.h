// Ranks of one process with kernels at hand, so that they can reduce from GPU to GPU without NCCL.
#pragma once

#include "device/device_bytes.h"
#include "nccl_job.h"

namespace ringtune::testing_support {

/// The kernels as the runtime asks for them: the fake driver takes what has the head of a cubin, and has its own.
inline std::vector<std::byte> fake_kernels(int capability) {
  EXPECT_EQ(capability, 90);
  return {kFakeCubin.begin(), kFakeCubin.end()};
}

/// Small buffers, so that larger tensors go in parts. NCCL is there.
class RingJob : public NcclJob {
 public:
  static constexpr std::size_t kBufferBytes = 16 << 10;

  explicit RingJob(int size, int gpus, const std::function<void(RuntimeOptions&)>& adjust = {})
      : NcclJob(size, gpus, [&](RuntimeOptions& options) {
          options.gpu_kernels = fake_kernels;
          options.ring_buffer_bytes = kBufferBytes;
          if (gpus < size) options.gpu_data_path = GpuDataPath::kRing;  // it must be asked for there
          if (adjust) adjust(options);
        }) {}
  /// All ranks share a GPU.
  explicit RingJob(int size, const std::function<void(RuntimeOptions&)>& adjust = {}) : RingJob(size, 1, adjust) {}

  /// Copies of tensors to the host so far: none where they go from GPU to GPU. What comes from there may be for
  /// kernels.
  static int staged() { return FakeGpu::calls("cuMemcpyDtoHAsync_v2"); }
};

}  // namespace ringtune::testing_support
