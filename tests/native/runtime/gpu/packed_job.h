// Ranks of one process, each with a GPU of its own, NCCL and the kernels: batches of several allreduces are packed.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "ring_job.h"

namespace ringtune::testing_support {

/// What keeps one rank of several from packing.
struct Inability {
  const char* what;
  std::function<void(RuntimeOptions&)> adjust;
  const char* call = nullptr;  // of the driver, that fails once
};
inline void PrintTo(const Inability& one, std::ostream* out) { *out << one.what; }

struct PackedJob : RingJob {
  explicit PackedJob(int size, const std::function<void(RuntimeOptions&)>& adjust = {}) : RingJob(size, size, adjust) {}
};

/// Submits a group of tensors, which is one batch, and makes the rank's stream wait for its results.
inline void run_group(RingJob& job, int rank, std::vector<Submission> members, const std::string& group = "group") {
  std::vector<Ticket> tickets;
  for (Submission& submission : members) {
    submission.request.group = group;
    submission.request.group_size = static_cast<std::uint32_t>(members.size());
    tickets.push_back(job[rank].submit(submission));
  }
  for (const Ticket ticket : tickets) {
    job.join(rank, ticket);
    job[rank].release(ticket);
  }
}

}  // namespace ringtune::testing_support
