// Executes batches: picks the data path by which a batch travels, for each communicator and tensor.
#pragma once

#include <optional>
#include <span>

#include "collective/communicator.h"
#include "fusion/knobs.h"
#include "runtime/batch_log.h"
#include "runtime/batch_path.h"
#include "runtime/gpu/direct_path.h"
#include "runtime/host_paths.h"

namespace ringtune {

class DevicePaths;

/// Borrows the counters and the tracer. The driving thread but where said.
class Executor {
 public:
  /// `data_paths`: carry what goes from GPU to GPU; null: nothing does.
  Executor(Counters& counters, Tracer& tracer, DevicePaths* data_paths = nullptr);

  /// Not while a round is posted.
  void set_knobs(const Knobs& knobs) noexcept;
  /// Records the pieces of every batch from now on, or no longer. Any thread.
  void record_pieces(bool on) noexcept { log_.record_pieces(on); }
  /// As BatchPath::run, by the path that the batch takes.
  void execute(std::span<const OperationPtr> batch, const BatchContext& context);
  /// The path that a batch with this request takes among ranks whose path in host memory is `host`.
  [[nodiscard]] BatchPath& path_of(const Request& request, HostPath& host);
  [[nodiscard]] HostPaths& host() noexcept { return host_; }

 private:
  BatchLog log_;
  HostPaths host_;
  DevicePaths* data_paths_;
  // By what carries the bytes. The host-staged path is none: its tensors lie in host memory when a batch is made of
  // them, and what carries them to and from there is gpu/host_staged_path.h.
  std::optional<DirectPath> nccl_;
  std::optional<DirectPath> ring_;
};

}  // namespace ringtune
