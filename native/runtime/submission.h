// A collective as a caller states it, and what can be refused about it without asking another rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "control/request.h"
#include "device/cuda_driver.h"

namespace ringtune {

/// On which GPU a tensor is, and the stream in which it becomes what is to be reduced: the caller's current one.
struct DevicePlace {
  int device = 0;  // among the visible ones
  CudaStreamHandle stream = nullptr;
};

/// Addresses are borrowed until the operation is done.
struct Submission {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<std::int64_t> splits = {};   // alltoall: rows for each member of the set; empty = equal shares
  std::optional<DevicePlace> device = {};  // where the addresses are of; empty = host memory
  std::size_t room = 0;                    // allgather, alltoall: bytes at `output` for a result of just that size
};

/// `members`: global ranks of the process set, ascending; `rank`: this one. Throws InvalidArgument.
void check_submission(const Submission& submission, const std::vector<int>& members, int rank);

}  // namespace ringtune
