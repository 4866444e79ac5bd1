// One collective that a caller has submitted, from submit to the moment its ticket is released.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "control/request.h"

namespace ringtune {

using Ticket = std::uint64_t;

/// Addresses are borrowed: the caller keeps the memory alive until the operation is done.
struct Operation {
  Ticket ticket = 0;
  Request request;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // allreduce, broadcast: as large as the input; may be the input
  std::int64_t submitted_ns = 0;
  std::int64_t agreed_ns = 0;  // cycle thread only

  // Written by the cycle thread before `done`, read by callers after they saw it.
  std::exception_ptr error;
  Bytes gathered;  // allgather: the result
  std::vector<std::int64_t> gathered_shape;
  std::atomic<bool> done{false};
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace ringtune
