// The executor's batches that travel from GPU to GPU.
#include "base/check.h"
#include "base/clock.h"
#include "runtime/executor.h"
#include "runtime/gpu/data_paths.h"

namespace ringtune {

void Executor::set_knobs(const Knobs& knobs) noexcept {
  knobs_ = knobs;
  if (data_paths_ != nullptr) data_paths_->use_streams(knobs.nccl_streams);
}

/// The batch is done for the host when it is in a stream: the program's streams wait for the results.
void Executor::launch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns) {
  RINGTUNE_CHECK(data_paths_ != nullptr, "a batch is to go from GPU to GPU, and nothing is there to carry it");
  data_paths_->prepare(batch, context);
  record_start(batch, context, begin_ns);
  const DataPath data_path = batch.front()->request().data_path;
  if (data_path == DataPath::kAcross) allreduce_across(batch, context);
  const std::int64_t launch_ns = now_ns();
  std::optional<Span> about;
  if (tracer_.recording()) {
    about = batch_span(batch, context);
    about->begin_ns = launch_ns;
    const std::uint8_t algorithm = data_path == DataPath::kRing ? kDeviceRingAlgorithm : kNcclAlgorithm;
    about->kind = span_kind(static_cast<std::uint8_t>(batch.front()->request().kind), algorithm);
  }
  data_paths_->launch(batch, context, about);
  add(counters_.communicate_ns, now_ns() - launch_ns);  // the host's part of it; the GPU's part is in the timeline
}

}  // namespace ringtune
