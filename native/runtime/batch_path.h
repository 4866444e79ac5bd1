// How a batch travels: what every data path offers to the executor, and what is known of a batch besides its tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "collective/communicator.h"
#include "control/actions.h"
#include "runtime/operation.h"

namespace ringtune {

/// Everything a batch needs to know besides its tensors.
struct BatchContext {
  Communicator& communicator;
  std::uint32_t batch_id = 0;
  std::uint32_t knobs_version = 0;
  std::uint32_t step = 0;
  std::span<const std::int64_t> rows;  // allgather: first dimension by position in the set; borrowed
  std::uint32_t process_set = 0;
  bool schedule = false;  // agreed on without a message
};

/// All operations of a batch are of one kind; several only for allreduce. The driving thread. Throws what collectives
/// throw (PeerLost, Timeout), and DataPathRefused for a batch that was to go from GPU to GPU and has not run.
class BatchPath {
 public:
  virtual ~BatchPath() = default;

  /// A negotiated batch, to which all ranks are on their way. Blocks; results are complete on return, those in GPUs'
  /// memory for the streams that wait for them.
  virtual void run(std::span<const OperationPtr> batch, const BatchContext& context) = 0;

  // A batch of a schedule: posted, then asked until all ranks have agreed or one declined, then finished.
  virtual void post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) = 0;
  /// No answer at the deadline. Blocks until then in shared memory; over links never, and the deadline is no matter.
  [[nodiscard]] virtual std::optional<bool> agreed(Deadline deadline) = 0;
  /// Agreed on at `agreed_ns`. When it was done.
  virtual std::int64_t finish(std::span<const OperationPtr> batch, const BatchContext& context,
                              std::int64_t agreed_ns) = 0;
  /// Votes against the next round. Over links this goes on until LinkPath::drained(): meanwhile nothing else is to be
  /// executed.
  virtual void decline(const DeclineAction& round, Communicator& communicator) = 0;
};

/// A path of tensors in host memory. Its rounds also carry the votes of batches whose bytes travel otherwise.
class HostPath : public BatchPath {
 public:
  /// A schedule begins: connects what this batch of it needs. Blocks; all ranks of the communicator come by.
  virtual void prepare(std::span<const SharedRequest> batch, Communicator& communicator) = 0;
  /// Ends the posted round of a batch that all ranks have agreed to and that travels otherwise. When they had.
  virtual std::int64_t take_votes(std::span<const OperationPtr> batch, const BatchContext& context,
                                  std::int64_t agreed_ns) = 0;
  /// Global ranks that the posted round waits for.
  [[nodiscard]] virtual std::vector<int> absent(Communicator& communicator) const = 0;
};

/// Whether it goes from GPU to GPU.
[[nodiscard]] inline bool goes_directly(std::span<const OperationPtr> batch) noexcept {
  return batch.front()->request().data_path != DataPath::kStaged;
}

/// The factor after the reduction over so many ranks: Average is the sum times 1 / size, as in Horovod.
[[nodiscard]] inline double postscale_of(const Request& request, int size) noexcept {
  return request.op == ReduceOp::kAverage ? request.postscale / size : request.postscale;
}

}  // namespace ringtune
