// The first operation of a job on GPUs, which loads libraries and makes communicators.
#pragma once

#include <cstdint>
#include <vector>

#include "device/fake_gpu.h"
#include "runtime/job.h"

namespace ringtune::testing_support {

template <typename GpuJob>
void warm_up(GpuJob& job) {
  job.on_every_rank([&](int rank) {
    DeviceArray<std::int32_t> tensor(job.device(rank), std::vector<std::int32_t>(8, 1));
    job.run(rank, job.of(rank, "first", tensor, tensor));
    (void)tensor.values(job.stream(rank));
  });
}

}  // namespace ringtune::testing_support
