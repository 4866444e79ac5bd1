// NCCL within hosts, and the runtime's links across. An allreduce is two operations of the runtime. In the first NCCL
// gives every rank of a host the sum of its slice on that host, which is copied to host memory. The second is agreed on
// when all ranks have their slices there: ranks with the same place on their hosts reduce a slice over their links like
// any other tensor, it is copied back, and NCCL gathers the slices. The engine makes all calls of NCCL, in the order of
// the batches, which is the same on all ranks. Only the exchange across hosts blocks it, as with staged tensors.
#include <exception>

#include "runtime/batch_log.h"
#include "runtime/gpu/batch_times.h"
#include "runtime/gpu/lane.h"
#include "runtime/gpu/nccl_path.h"

namespace ringtune {
namespace {

std::size_t byte_sum(std::span<const OperationPtr> batch) {
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) bytes += device_operation_of(*operation).prepared->bytes;
  return bytes;
}

}  // namespace

void NcclPath::scatter(std::span<const OperationPtr> batch, const std::optional<Span>& about) {
  DeviceLane& lane = lane_of(*batch.front());
  const CudaDevice::Current current(lane.device());
  CudaStream& stream = lane.transfer_stream(key_.stream);
  const Set& set = sets_.at(key_);
  BatchTimes times(lane, batch, about);
  try {
    for (const OperationPtr operation : batch) {
      DeviceOperation& of = device_operation_of(*operation);
      lane.take_slice(of, host_slice(of.prepared->count, set.rank, set.size), stream);
      stream.wait(of.ready);
    }
    TimedCopy timed = times.piece(Stage::kCommunicate, stream.handle());
    put_scatter(set, stream, batch);
    timed.end();
    lane.slices_to_host(batch, stream, times.to_host());
    launched(lane, key_.stream);
  } catch (const std::exception&) {
    check();  // the error that ended the path says more than the error of this call
    throw;
  }
  times.finish(byte_sum(batch), bus_factor(CollectiveKind::kReducescatter, set.size));
}

void NcclPath::put_scatter(const Set& set, CudaStream& stream, std::span<const OperationPtr> batch) {
  NcclCommunicator& communicator = *set.communicator;
  std::vector<int> ops;
  for (const OperationPtr operation : batch) {
    const Request& request = operation->request();
    ops.push_back(request.prescale == 1.0 ? nccl_op(request.op)
                                          : communicator.scaled_sum(request.dtype, request.prescale));
  }
  communicator.group(
      [&](const NcclFunctions& api, NcclHandle handle) {
        for (std::size_t i = 0; i < batch.size(); ++i) {
          const DeviceOperation& of = device_operation_of(*batch[i]);
          const DType dtype = of.prepared->request.dtype;
          const std::size_t item = size_of(dtype);
          const HostSlice& slice = of.slice;
          if (slice.share > 0) {
            communicator.check(api.reduce_scatter(batch[i]->input, of.scattered->data, slice.share,
                                                  nccl_dtype(dtype).value(), ops[i], handle, stream.handle()),
                               "ncclReduceScatter");
          }
          if (slice.rest > 0) {
            communicator.check(
                api.all_reduce(batch[i]->input + slice.rest_begin * item, of.scattered->data + slice.share * item,
                               slice.rest, nccl_dtype(dtype).value(), ops[i], handle, stream.handle()),
                "ncclAllReduce");
          }
        }
      },
      call_deadline());
}

void NcclPath::gather(std::span<const OperationPtr> batch, const std::optional<Span>& about) {
  DeviceLane& lane = lane_of(*batch.front());
  const CudaDevice::Current current(lane.device());
  CudaStream& stream = lane.transfer_stream(key_.stream);
  const Set& set = sets_.at(key_);
  BatchTimes times(lane, about);
  try {
    lane.slices_to_device(batch, stream, times.to_device());
    TimedCopy timed = times.piece(Stage::kCommunicate, stream.handle());
    put_gather(set, stream, batch);
    timed.end();
    for (const OperationPtr operation : batch) device_operation_of(*operation).copied.record(stream.handle());
    launched(lane, key_.stream);
  } catch (const std::exception&) {
    check();  // as above
    throw;
  }
  times.finish(byte_sum(batch), bus_factor(CollectiveKind::kAllgather, set.size));
}

void NcclPath::put_gather(const Set& set, CudaStream& stream, std::span<const OperationPtr> batch) {
  NcclCommunicator& communicator = *set.communicator;
  communicator.group(
      [&](const NcclFunctions& api, NcclHandle handle) {
        for (const OperationPtr operation : batch) {
          const DeviceOperation& of = device_operation_of(*operation);
          const std::size_t item = size_of(operation->request().dtype);
          if (of.slice.share == 0) continue;
          auto* const result = static_cast<std::byte*>(of.what.output);
          communicator.check(api.all_gather(result + of.slice.begin * item, result, of.slice.share * item, kNcclBytes,
                                            handle, stream.handle()),
                             "ncclAllGather");
        }
      },
      call_deadline());
}

bool hierarchy_carries(const Request& request) noexcept {
  if (request.kind != CollectiveKind::kAllreduce || request.op == ReduceOp::kAdasum) return false;
  if (request.wire || !nccl_dtype(request.dtype)) return false;
  // NCCL applies the factor before the sum, the host the one after it.
  const bool sums = request.op == ReduceOp::kAverage || request.op == ReduceOp::kSum;
  return request.prescale == 1.0 || (sums && is_floating(request.dtype));
}

}  // namespace ringtune
