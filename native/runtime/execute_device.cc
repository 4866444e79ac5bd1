// Batches that go from GPU to GPU.
#include "base/check.h"
#include "runtime/device_exchange.h"
#include "runtime/executor.h"

namespace ringtune {

/// Done when they are in a stream: the program's streams wait for the results.
void Executor::launch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns) {
  RINGTUNE_CHECK(exchange_ != nullptr, "a batch is to go from GPU to GPU, and nothing is there to carry it");
  exchange_->prepare(batch, context);
  record_start(batch, context, begin_ns);
  const std::int64_t launch_ns = now_ns();
  exchange_->launch(batch, context);
  std::size_t bytes = 0;
  for (const OperationPtr operation : batch) bytes += operation->prepared->bytes;
  record_batch(batch, context, launch_ns, bytes);
}

}  // namespace ringtune
