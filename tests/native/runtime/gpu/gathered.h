// Allgathers of ranks with a GPU each, or one that they share, and their results.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "nccl_job.h"

namespace ringtune::testing_support {

/// The result as a program takes it: it waits for the operation, makes memory of that size and asks for the result
/// there.
inline std::vector<std::int32_t> delivered(NcclJob& job, int rank, Ticket ticket) {
  if (!job[rank].wait(ticket, Deadline::after(20'000'000'000))) throw Timeout("the operation did not end");
  const GatheredOnDevice found = job[rank].gathered_on_device(ticket);
  const std::int64_t count =
      std::accumulate(found.shape.begin(), found.shape.end(), std::int64_t{1}, std::multiplies<>());
  DeviceArray<std::int32_t> result(job.device(rank), std::vector<std::int32_t>(static_cast<std::size_t>(count), -1));
  job[rank].deliver(ticket, result.data(), job.stream(rank));
  job[rank].release(ticket);
  return result.values(job.stream(rank));
}

inline Submission gather_of(NcclJob& job, int rank, const std::string& name, const DeviceArray<std::int32_t>& input,
                            std::vector<std::int64_t> shape) {
  Submission submission = job.of(rank, name, input.data(), nullptr, DType::kInt32, std::move(shape));
  submission.request.kind = CollectiveKind::kAllgather;
  return submission;
}

}  // namespace ringtune::testing_support
