// A collective as a caller states it, and what can be refused about it without asking another rank.
#pragma once

#include <cstdint>
#include <vector>

#include "control/request.h"

namespace ringtune {

/// Addresses are borrowed until the operation is done.
struct Submission {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<std::int64_t> splits = {};  // alltoall: rows for each member of the set; empty = equal shares
};

/// `members`: global ranks of the process set, ascending; `rank`: this one. Throws InvalidArgument.
void check_submission(const Submission& submission, const std::vector<int>& members, int rank);

}  // namespace ringtune
