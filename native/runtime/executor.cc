#include "runtime/executor.h"

#include "base/check.h"
#include "runtime/gpu/data_paths.h"

namespace ringtune {

Executor::Executor(Counters& counters, Tracer& tracer, DevicePaths* data_paths)
    : log_(counters, tracer), host_(log_), data_paths_(data_paths) {
  if (data_paths == nullptr) return;
  nccl_.emplace(data_paths->of(DataPath::kNccl), host_, log_, kNcclAlgorithm);
  ring_.emplace(data_paths->of(DataPath::kRing), host_, log_, kDeviceRingAlgorithm);
}

void Executor::set_knobs(const Knobs& knobs) noexcept {
  host_.set_knobs(knobs);
  if (data_paths_ != nullptr) data_paths_->use_streams(knobs.nccl_streams);
}

BatchPath& Executor::path_of(const Request& request, HostPath& host) {
  if (request.data_path == DataPath::kStaged) return host;
  RINGTUNE_CHECK(nccl_ && ring_, "a batch is to go from GPU to GPU, and nothing is there to carry it");
  return request.data_path == DataPath::kRing ? *ring_ : *nccl_;
}

void Executor::execute(std::span<const OperationPtr> batch, const BatchContext& context) {
  RINGTUNE_CHECK(!batch.empty());
  RINGTUNE_CHECK(host_.links().drained(), "a declined round is still under way");
  path_of(batch.front()->request(), host_.of(context.communicator)).run(batch, context);
}

}  // namespace ringtune
