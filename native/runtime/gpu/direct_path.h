// Batches that travel from GPU to GPU: the votes on them go by the host's path, the bytes in a stream. A batch is done
// for the host when it is in a stream: the program's streams wait for the results.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/gpu/stream_path.h"
#include "runtime/host_paths.h"

namespace ringtune {

/// Borrows all. NCCL and the peer ring each have one.
class DirectPath final : public BatchPath {
 public:
  /// `algorithm`: as spans name the path.
  DirectPath(StreamPath& streams, HostPaths& host, BatchLog& log, std::uint8_t algorithm) noexcept
      : streams_(streams), host_(host), log_(log), algorithm_(algorithm) {}

  void run(std::span<const OperationPtr> batch, const BatchContext& context) override;
  void post(std::span<const OperationPtr> batch, const BatchContext& context, std::uint64_t token) override;
  [[nodiscard]] std::optional<bool> agreed(Deadline deadline) override { return votes_->agreed(deadline); }
  std::int64_t finish(std::span<const OperationPtr> batch, const BatchContext& context,
                      std::int64_t agreed_ns) override;
  void decline(const DeclineAction& round, Communicator& communicator) override {
    host_.of(communicator).decline(round, communicator);
  }

 private:
  void launch(std::span<const OperationPtr> batch, const BatchContext& context, std::int64_t begin_ns);

  StreamPath& streams_;
  HostPaths& host_;
  BatchLog& log_;
  const std::uint8_t algorithm_;
  HostPath* votes_ = nullptr;  // of the posted round
};

}  // namespace ringtune
