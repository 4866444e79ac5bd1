#include "runtime/submission.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "collective/adasum.h"

namespace ringtune {
namespace {

[[noreturn]] void refuse(const Request& request, const std::string& why) {
  throw InvalidArgument("tensor '" + request.name + "': " + why);
}

void check_memory(const Submission& submission) {
  const Request& request = submission.request;
  if (byte_count(request) == 0) return;
  if (submission.input == nullptr) refuse(request, "no input memory was given");
  const bool fills = request.kind == CollectiveKind::kAllreduce || request.kind == CollectiveKind::kBroadcast;
  if (fills && submission.output == nullptr) refuse(request, "no output memory was given");
}

void check_reduction(const Request& request, int size) {
  if (!is_reduced(request.dtype)) {
    refuse(request, std::string(name_of(request.dtype)) +
                        " is not reduced, only gathered, broadcast and exchanged (allgather, broadcast, alltoall): "
                        "cast it to a signed or floating dtype first");
  }
  const bool scales = request.prescale != 1.0 || request.postscale != 1.0 || request.op == ReduceOp::kAverage;
  if (request.dtype == DType::kBool && scales) {
    refuse(request, "bool cannot be averaged or scaled; use Sum, Min, Max or Product");
  }
  if (request.op != ReduceOp::kAdasum) return;
  if (!is_floating(request.dtype))
    refuse(request, "Adasum needs a floating dtype, got " + std::string(name_of(request.dtype)));
  if (!is_power_of_two(size)) {
    refuse(request, "Adasum needs a power of two of ranks, this set has " + std::to_string(size));
  }
}

void check_wire(const Request& request) {
  if (!request.wire) return;
  if (!may_travel_as(request.dtype, *request.wire) || request.op == ReduceOp::kAdasum) {
    refuse(request, "cannot travel as " + std::string(name_of(*request.wire)) +
                        ": only float16 and bfloat16, for another floating dtype and not for Adasum, got " +
                        std::string(name_of(request.dtype)) + " and " + std::string(name_of(request.op)));
  }
}

void check_splits(const Submission& submission, int size) {
  const Request& request = submission.request;
  if (request.shape.empty()) refuse(request, "alltoall needs at least one dimension to split along");
  const std::int64_t rows = request.shape.front();
  const std::vector<std::int64_t>& splits = submission.splits;
  if (splits.empty()) {
    if (rows % size != 0) {
      refuse(request, "alltoall without splits needs a first dimension that " + std::to_string(size) +
                          " ranks divide, got " + std::to_string(rows));
    }
    return;
  }
  if (splits.size() != static_cast<std::size_t>(size)) {
    refuse(request, "alltoall got " + std::to_string(splits.size()) + " splits, expected one for each of " +
                        std::to_string(size) + " ranks");
  }
  if (*std::min_element(splits.begin(), splits.end()) < 0) refuse(request, "alltoall got a negative split");
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum > rows) {
    refuse(request, "alltoall got splits of " + std::to_string(sum) + " rows together, but the tensor has " +
                        std::to_string(rows));
  }
}

}  // namespace

void check_submission(const Submission& submission, const std::vector<int>& members, int rank) {
  const Request& request = submission.request;
  const int size = static_cast<int>(members.size());
  const auto is_member = [&](int one) { return std::binary_search(members.begin(), members.end(), one); };
  if (request.name.empty()) throw InvalidArgument("a collective needs a name");
  if (!is_member(rank)) {
    refuse(request, "this rank (" + std::to_string(rank) + ") is not in process set " +
                        std::to_string(request.process_set) + " of ranks " + rank_list(members));
  }
  for (const std::int64_t extent : request.shape) {
    if (extent < 0) refuse(request, "negative extent in shape " + shape_text(request.shape));
  }
  check_memory(submission);
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
      check_reduction(request, size);
      check_wire(request);
      break;
    case CollectiveKind::kBroadcast:
      if (!is_member(request.root)) {
        refuse(request, "broadcast received invalid root rank " + std::to_string(request.root) +
                            " for provided process set, expected one of " + rank_list(members));
      }
      break;
    case CollectiveKind::kAlltoall:
      check_splits(submission, size);
      break;
    case CollectiveKind::kReducescatter:
      if (request.shape.empty()) refuse(request, "reducescatter needs at least one dimension to split along");
      check_reduction(request, size);
      if (request.op == ReduceOp::kAdasum) refuse(request, "reducescatter supports Average and Sum, not Adasum");
      break;
    default:
      break;
  }
}

}  // namespace ringtune
