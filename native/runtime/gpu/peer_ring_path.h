// The peer ring path: tensors travel from GPU to GPU by ringtune's own ring (collective/device_ring.h). It serves ranks
// of one host that have no NCCL, or share a GPU, which NCCL refuses. data_paths.h decides which operations take it.
// That all members of a process set are on one host, have the kernels and reach one another's memory, they find out
// together in front of their first batch (prepare).
//
// A process set has a stream, a buffer and words of its own (ring_set.h). The host only enqueues. The engine's order of
// batches is the same on all ranks, so rings never wait for one another in a circle.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "device/cuda.h"
#include "runtime/gpu/kernel_cache.h"
#include "runtime/gpu/stream_path.h"
#include "runtime/operation.h"

namespace ringtune {

struct BatchContext;
class BatchTimes;
class DeviceRingSet;

struct PeerRingPathOptions {
  KernelCache& kernels;          // borrowed
  std::size_t buffer_bytes = 0;  // of a process set; the least of its members' counts
  std::int64_t timeout_ns = 0;   // of what a set that is removed has in its stream
  bool shares_gpus = false;      // also between ranks on one GPU, whose processes take turns there
};

/// Thread-safe as StreamPath says.
class PeerRingPath final : public StreamPath {
 public:
  explicit PeerRingPath(PeerRingPathOptions options);
  ~PeerRingPath();  // after close()
  PeerRingPath(const PeerRingPath&) = delete;
  PeerRingPath& operator=(const PeerRingPath&) = delete;

  void begin(std::string host) { host_ = std::move(host); }  // of this rank

  void check_arrival(const CudaEvent& copied) override;
  void abort(const std::exception_ptr& error) noexcept override;
  void prepare(std::span<const OperationPtr> batch, const BatchContext& context) override;
  void launch(std::span<const OperationPtr> batch, const BatchContext& context,
              const std::optional<Span>& about) override;
  void removed(std::uint32_t process_set) override;
  void close(Deadline timeout) noexcept override;

 private:
  /// What a set's members have agreed on.
  struct Place {
    std::shared_ptr<DeviceRingSet> ring;
    std::string refusal;  // why there is none
  };
  struct Card;

  void handshake(Place& place, const CudaDevice& device, const BatchContext& context);
  static std::string refusal_of_shared_gpus(const std::vector<Card>& cards, const BatchContext& context);
  std::size_t compare(const std::vector<Card>& cards, const BatchContext& context, std::string& refusal) const;
  static void put_batch(DeviceRingSet& ring, std::span<const OperationPtr> batch, const BatchContext& context,
                        const BatchTimes& times);
  void rethrow_failure();
  void retire();
  void finish(std::shared_ptr<DeviceRingSet> ring, Deadline deadline) noexcept;

  PeerRingPathOptions options_;
  std::string host_;
  std::map<std::uint32_t, Place> sets_;  // driving thread, and close()
  const CudaDevice* device_ = nullptr;   // the lane's, once there was a ring to be made

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::shared_ptr<DeviceRingSet>> rings_;    // all that are not finished
  std::vector<std::shared_ptr<DeviceRingSet>> retired_;  // of sets that are gone: to be finished
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread retiring_;  // once a set is gone
};

/// Whether the ring can carry it: kind, reduction, dtype and factors.
[[nodiscard]] bool ring_carries(const Request& request) noexcept;

}  // namespace ringtune
