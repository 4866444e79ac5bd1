#include "runtime/gpu/direct_path.h"

#include "base/clock.h"

namespace ringtune {

void DirectPath::run(std::span<const OperationPtr> batch, const BatchContext& context) {
  launch(batch, context, now_ns());
}

void DirectPath::post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) {
  votes_ = &host_.of(context.communicator);
  votes_->post(batch, context, token);
}

std::int64_t DirectPath::finish(std::span<const OperationPtr> batch, const BatchContext& context,
                                std::int64_t agreed_ns) {
  launch(batch, context, votes_->take_votes(batch, context, agreed_ns));
  return now_ns();
}

void DirectPath::launch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns) {
  streams_.prepare(batch, context);
  log_.start(batch, context, begin_ns);
  // The slices of NCCL within hosts lie in host memory between its two stages: they cross hosts over links.
  if (batch.front()->request().data_path == DataPath::kAcross) host_.collectives().run(batch, context);
  const std::int64_t launch_ns = now_ns();
  std::optional<Span> about;
  if (log_.tracer().recording()) {
    about = log_.span_of_batch(batch, context);
    about->begin_ns = launch_ns;
    about->kind = span_kind(static_cast<std::uint8_t>(batch.front()->request().kind), algorithm_);
  }
  streams_.launch(batch, context, about);
  // The host's part of it; the GPU's part is in the timeline.
  add(log_.counters().communicate_ns, now_ns() - launch_ns);
}

}  // namespace ringtune
