// Batches as NCCL's calls.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "collective/reducescatter.h"
#include "runtime/device_exchange.h"
#include "runtime/device_lane.h"
#include "runtime/executor.h"

namespace ringtune {
namespace {

// ncclRedOp_t
constexpr int kSum = 0;
constexpr int kProduct = 1;
constexpr int kMax = 2;
constexpr int kMin = 3;
constexpr int kAverage = 4;
constexpr int kBytes = 1;  // ncclUint8: what is only moved is moved as bytes

/// What to multiply with before the sum.
double factor_of(const Request& request, int size) noexcept { return request.prescale * postscale_of(request, size); }

int plain_op(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kProduct:
      return kProduct;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kMin:
      return kMin;
    default:
      return kSum;
  }
}

int op_of(NcclCommunicator& communicator, const Request& request, int size) {
  const bool plain_average = request.op == ReduceOp::kAverage && request.prescale == 1.0 && request.postscale == 1.0;
  if (plain_average) return kAverage;
  const double factor = factor_of(request, size);
  return factor == 1.0 ? plain_op(request.op) : communicator.scaled_sum(request.dtype, factor);
}

/// A call of a group: what all of its kinds need.
struct Caller {
  const NcclFunctions& api;
  NcclHandle handle;
  const NcclCommunicator& communicator;
  CudaStreamHandle stream;
  const BatchContext& context;
};

void put_allreduce(const Caller& caller, const Operation& operation, int op) {
  const int dtype = nccl_dtype(operation.request().dtype).value();
  caller.communicator.check(caller.api.all_reduce(operation.input, operation.output, operation.prepared->count, dtype,
                                                  op, caller.handle, caller.stream),
                            "ncclAllReduce");
}

void put_broadcast(const Caller& caller, const Operation& operation) {
  const int root = caller.context.communicator.position_of(operation.request().root);
  caller.communicator.check(caller.api.broadcast(operation.input, operation.output, operation.prepared->bytes, kBytes,
                                                 root, caller.handle, caller.stream),
                            "ncclBroadcast");
}

/// Every member's rows in one call when all have equally many, else one call for each member.
void put_reducescatter(const Caller& caller, const Operation& operation, int op) {
  const Request& request = operation.request();
  const int dtype = nccl_dtype(request.dtype).value();
  const int size = caller.context.communicator.size();
  const std::size_t row_elements = row_bytes_of(request) / size_of(request.dtype);
  const std::vector<std::int64_t> rows = cut_rows(request.shape.front(), size);
  if (rows.front() == rows.back()) {
    const std::size_t count = static_cast<std::size_t>(rows.front()) * row_elements;
    caller.communicator.check(
        caller.api.reduce_scatter(operation.input, operation.output, count, dtype, op, caller.handle, caller.stream),
        "ncclReduceScatter");
    return;
  }
  const std::byte* input = operation.input;
  for (int member = 0; member < size; ++member) {
    const std::size_t count = static_cast<std::size_t>(rows[static_cast<std::size_t>(member)]) * row_elements;
    caller.communicator.check(
        caller.api.reduce(input, operation.output, count, dtype, op, member, caller.handle, caller.stream),
        "ncclReduce");
    input += count * size_of(request.dtype);
  }
}

}  // namespace

bool nccl_carries(const Request& request) noexcept {
  switch (request.kind) {
    case CollectiveKind::kBroadcast:
      return true;
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReducescatter:
      break;
    default:
      return false;
  }
  if (request.wire || !nccl_dtype(request.dtype) || request.op == ReduceOp::kAdasum) return false;
  const bool scales = request.op == ReduceOp::kAverage || request.prescale != 1.0 || request.postscale != 1.0;
  const bool sums = request.op == ReduceOp::kAverage || request.op == ReduceOp::kSum;
  return !scales || (sums && is_floating(request.dtype));  // integers are scaled in double (scale_copy)
}

void DeviceExchange::put_batch(Set& set, std::span<const OperationPtr> batch, const BatchContext& context) {
  NcclCommunicator& communicator = *set.communicator;
  const CudaStreamHandle stream = device_operation_of(*batch.front()).lane.exchange_stream().handle();
  const CollectiveKind kind = batch.front()->request().kind;
  std::vector<int> ops;
  for (const OperationPtr operation : batch) {
    ops.push_back(kind == CollectiveKind::kBroadcast
                      ? kSum
                      : op_of(communicator, operation->request(), context.communicator.size()));
  }
  const auto put = [&](const NcclFunctions& api, NcclHandle handle) {
    const Caller caller{api, handle, communicator, stream, context};
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Operation& operation = *batch[i];
      if (kind == CollectiveKind::kAllreduce) {
        put_allreduce(caller, operation, ops[i]);
      } else if (kind == CollectiveKind::kBroadcast) {
        put_broadcast(caller, operation);
      } else {
        put_reducescatter(caller, operation, ops[i]);
      }
    }
  };
  communicator.group(put, patience());
}

}  // namespace ringtune
