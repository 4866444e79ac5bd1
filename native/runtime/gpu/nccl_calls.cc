// The calls of NCCL for each kind of batch.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "collective/reducescatter.h"
#include "runtime/batch_path.h"
#include "runtime/gpu/lane.h"
#include "runtime/gpu/nccl_path.h"
#include "runtime/rows.h"

namespace ringtune {
namespace {

// ncclRedOp_t
constexpr int kAverage = 4;

/// The factor before the sum.
double factor_of(const Request& request, int size) noexcept { return request.prescale * postscale_of(request, size); }

int op_of(NcclCommunicator& communicator, const Request& request, int size) {
  const bool plain_average = request.op == ReduceOp::kAverage && request.prescale == 1.0 && request.postscale == 1.0;
  if (plain_average) return kAverage;
  const double factor = factor_of(request, size);
  return factor == 1.0 ? nccl_op(request.op) : communicator.scaled_sum(request.dtype, factor);
}

/// What every call of a group needs.
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
  caller.communicator.check(caller.api.broadcast(operation.input, operation.output, operation.prepared->bytes,
                                                 kNcclBytes, root, caller.handle, caller.stream),
                            "ncclBroadcast");
}

/// One call when all members get equally many rows, else one call for each member.
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

/// One call when all members have equally many rows, else one call for each member.
void put_allgather(const Caller& caller, const Operation& operation, const MemberBytes& bytes, std::byte* received) {
  const std::vector<std::size_t>& each = bytes.received;
  if (received == nullptr) return;  // no member has rows
  if (std::all_of(each.begin(), each.end(), [&](std::size_t one) { return one == each.front(); })) {
    caller.communicator.check(
        caller.api.all_gather(operation.input, received, each.front(), kNcclBytes, caller.handle, caller.stream),
        "ncclAllGather");
    return;
  }
  for (std::size_t member = 0; member < each.size(); ++member) {
    if (each[member] > 0) {
      caller.communicator.check(caller.api.broadcast(operation.input, received, each[member], kNcclBytes,
                                                     static_cast<int>(member), caller.handle, caller.stream),
                                "ncclBroadcast");
    }
    received += each[member];
  }
}

void put_alltoall(const Caller& caller, const Operation& operation, const MemberBytes& bytes, std::byte* received) {
  const std::byte* sent = operation.input;
  for (std::size_t member = 0; member < bytes.sent.size(); ++member) {
    const auto peer = static_cast<int>(member);
    // Both sides know that a share is empty, and make no call for it.
    if (const std::size_t count = bytes.sent[member]; count > 0) {
      caller.communicator.check(caller.api.send(sent, count, kNcclBytes, peer, caller.handle, caller.stream),
                                "ncclSend");
    }
    if (const std::size_t count = bytes.received[member]; count > 0) {
      caller.communicator.check(caller.api.recv(received, count, kNcclBytes, peer, caller.handle, caller.stream),
                                "ncclRecv");
    }
    sent += bytes.sent[member];
    received += bytes.received[member];
  }
}

}  // namespace

bool nccl_carries(const Request& request) noexcept {
  switch (request.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllgather:
    case CollectiveKind::kAlltoall:
      return true;  // bytes of any dtype are moved
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

bool nccl_carries_packed(const Request& request) noexcept {
  return request.kind == CollectiveKind::kAllreduce && nccl_dtype(wire_dtype(request)) && !nccl_carries(request);
}

void NcclPath::put_batch(NcclCommunicator& communicator, CudaStream& stream, std::span<const OperationPtr> batch,
                         const BatchContext& context) {
  const CollectiveKind kind = batch.front()->request().kind;
  const auto call = [&](const std::function<void(const Caller&, std::size_t)>& put) {
    communicator.group(
        [&](const NcclFunctions& api, NcclHandle handle) {
          const Caller caller{api, handle, communicator, stream.handle(), context};
          for (std::size_t i = 0; i < batch.size(); ++i) put(caller, i);
        },
        call_deadline());
  };
  if (kind == CollectiveKind::kBroadcast) {
    return call([&](const Caller& caller, std::size_t i) { put_broadcast(caller, *batch[i]); });
  }
  if (kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall) {
    const bool all = kind == CollectiveKind::kAllgather;
    std::vector<MemberBytes> bytes;
    std::vector<std::byte*> received;
    for (const OperationPtr operation : batch) {
      bytes.push_back(all ? agree_on_allgather(*operation, context) : agree_on_alltoall(*operation, context));
      DeviceOperation& of = device_operation_of(*operation);
      received.push_back(of.lane.receive(of, bytes.back().all_received(), stream));
    }
    const auto put = all ? put_allgather : put_alltoall;
    return call([&](const Caller& caller, std::size_t i) { put(caller, *batch[i], bytes[i], received[i]); });
  }
  std::vector<int> ops;
  for (const OperationPtr operation : batch) {
    ops.push_back(op_of(communicator, operation->request(), context.communicator.size()));
  }
  const auto put = kind == CollectiveKind::kAllreduce ? put_allreduce : put_reducescatter;
  call([&](const Caller& caller, std::size_t i) { put(caller, *batch[i], ops[i]); });
}

AdasumCalls NcclPath::adasum_calls(NcclCommunicator& communicator, const CudaStream& stream) {
  const auto bytes_at = [](CudaAddress address) { return reinterpret_cast<std::byte*>(address); };
  return {
      .swap =
          [&, bytes_at](int peer, const DeviceRange& sent, const DeviceRange& received) {
            communicator.group(
                [&](const NcclFunctions& api, NcclHandle handle) {
                  communicator.check(
                      api.send(bytes_at(sent.begin), sent.bytes, kNcclBytes, peer, handle, stream.handle()),
                      "ncclSend");
                  communicator.check(
                      api.recv(bytes_at(received.begin), received.bytes, kNcclBytes, peer, handle, stream.handle()),
                      "ncclRecv");
                },
                call_deadline());
          },
      .gather =
          [&, bytes_at](const DeviceRange& own, CudaAddress all) {
            communicator.group(
                [&](const NcclFunctions& api, NcclHandle handle) {
                  communicator.check(api.all_gather(bytes_at(own.begin), bytes_at(all), own.bytes, kNcclBytes, handle,
                                                    stream.handle()),
                                     "ncclAllGather");
                },
                call_deadline());
          },
  };
}

/// One call for the batch, or one for each round of the buffer.
void NcclPath::put_packed(NcclCommunicator& communicator, const CudaStream& stream, std::span<const OperationPtr> batch,
                          const BatchContext& context, const BatchTimes& times) {
  if (batch.front()->request().op == ReduceOp::kAdasum) {
    return fusion_.launch_adasum(*batch.front(), context, key_.stream, times, adasum_calls(communicator, stream));
  }
  fusion_.launch(batch, context, key_.stream, times, [&](std::byte* data, std::size_t count, DType dtype, ReduceOp op) {
    communicator.group(
        [&](const NcclFunctions& api, NcclHandle handle) {
          communicator.check(
              api.all_reduce(data, data, count, nccl_dtype(dtype).value(), nccl_op(op), handle, stream.handle()),
              "ncclAllReduce");
        },
        call_deadline());
  });
}

}  // namespace ringtune
