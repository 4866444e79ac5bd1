// The NCCL path: tensors travel from GPU to GPU, and no byte of them comes to the host. Where NCCL works within hosts
// only, each rank of a host has a share of an allreduce in host memory between two stages of NCCL
// (nccl_within_hosts.cc). data_paths.h decides which operations take this path. What no single rank can tell (the same
// GPU twice, versions that do not work together, a network that does not connect) the members of a process set find out
// together, in front of their first batch (prepare).
//
// The engine's order of batches is the same on all ranks, and so is the stream that each batch gets. Each stream has
// communicators of its own, so that operations of NCCL never wait for one another in a circle. The host only enqueues:
// NCCL's stream waits for the kernels that make the tensor, and the caller's stream waits for the result. A thread of
// the path asks NCCL for errors meanwhile.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collective/host_layout.h"
#include "device/cuda.h"
#include "device/nccl_communicator.h"
#include "runtime/gpu/fusion.h"
#include "runtime/gpu/stream_path.h"
#include "runtime/operation.h"

namespace ringtune {

struct BatchContext;
class Communicator;
class DeviceLane;
struct DeviceTimes;

struct NcclPathOptions {
  std::vector<std::string> nccl_libraries;  // paths, the best first
  std::int64_t timeout_ns = 0;              // of connecting, and of what NCCL does on the host
  KernelCache& kernels;                     // borrowed
};

/// Opens nothing before the first tensor that could travel by NCCL. Thread-safe where said.
class NcclPath final : public StreamPath {
 public:
  explicit NcclPath(NcclPathOptions options);
  ~NcclPath();  // after close()
  NcclPath(const NcclPath&) = delete;
  NcclPath& operator=(const NcclPath&) = delete;

  /// `hosts`: of all ranks. `on_failure` is called, on a thread of this path, when NCCL reports an error in a stream.
  void begin(std::vector<std::string> hosts, std::function<void(std::exception_ptr)> on_failure);

  // Any thread.
  /// Why this rank has no NCCL; empty where it has.
  [[nodiscard]] std::string refusal();
  /// Throws the error that has ended the path, if one has: results in streams are undefined then.
  void check();
  void check_arrival(const CudaEvent& copied) override;
  void abort(const std::exception_ptr& error) noexcept override;

  /// Whether any set goes from GPU to GPU.
  [[nodiscard]] bool connected() {
    const std::lock_guard lock(mutex_);
    return !communicators_.empty();
  }

  // Driving thread.
  /// The next batches are dealt to so many streams of a GPU; all ranks switch between the same two batches.
  void use_streams(std::size_t count) noexcept { streams_ = count; }
  void prepare(std::span<const OperationPtr> batch, const BatchContext& context) override;
  void launch(std::span<const OperationPtr> batch, const BatchContext& context,
              const std::optional<Span>& about) override;
  void removed(std::uint32_t process_set) override;

  void close(Deadline timeout) noexcept override;

 private:
  /// Each key has a communicator of its own. All members give their GPU the same number (find_parting).
  struct CommunicatorKey {
    std::uint32_t process_set = 0;
    std::uint8_t place = 0;
    std::size_t stream = 0;
    bool within_hosts = false;
    friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
  };
  /// What its members have agreed on.
  struct Set {
    std::shared_ptr<NcclCommunicator> communicator;
    int rank = 0;         // there: among all members, or among those of this host
    int size = 0;         // of it
    std::string refusal;  // why there is none
  };
  struct Card;
  /// A stream that has got work, and an event behind all of it.
  struct Tail {
    const CudaDevice* device;  // a lane's
    std::size_t stream;
    CudaEvent last;
  };

  const NcclLibrary& library() { return NcclLibrary::open(options_.nccl_libraries); }
  [[nodiscard]] Deadline call_deadline() const { return Deadline::after(options_.timeout_ns); }
  Card own_card(const DeviceLane& lane, const BatchContext& context, bool first);
  [[nodiscard]] static std::string find_refusal(const std::vector<Card>& cards, const Communicator& communicator,
                                                bool within_hosts);
  [[nodiscard]] HostLayout layout_of(const BatchContext& context) const;
  void handshake(Set& set, const DeviceLane& lane, const BatchContext& context);
  void handshake_within_hosts(Set& set, const DeviceLane& lane, const BatchContext& context);
  void connect(Set& set, const NcclUniqueId& id, const BatchContext& context);
  CommunicatorKey next_key(std::span<const OperationPtr> batch, const BatchContext& context);
  CudaEvent& last_in(const CudaDevice& device, std::size_t stream);
  void put_batch(NcclCommunicator& communicator, CudaStream& stream, std::span<const OperationPtr> batch,
                 const BatchContext& context);
  void put_packed(NcclCommunicator& communicator, const CudaStream& stream, std::span<const OperationPtr> batch,
                  const BatchContext& context, const BatchTimes& times);
  AdasumCalls adasum_calls(NcclCommunicator& communicator, const CudaStream& stream);
  void launched(DeviceLane& lane, std::size_t stream);
  // nccl_within_hosts.cc
  void scatter(std::span<const OperationPtr> batch, const std::optional<Span>& about);
  void put_scatter(const Set& set, CudaStream& stream, std::span<const OperationPtr> batch);
  void gather(std::span<const OperationPtr> batch, const std::optional<Span>& about);
  void put_gather(const Set& set, CudaStream& stream, std::span<const OperationPtr> batch);
  void watch();
  bool look_after(const std::vector<std::shared_ptr<NcclCommunicator>>& all);

  NcclPathOptions options_;
  std::vector<std::string> hosts_;
  std::function<void(std::exception_ptr)> on_failure_;
  DeviceFusion fusion_;                         // driving thread, and close()
  std::map<CommunicatorKey, Set> sets_;         // likewise
  std::size_t streams_ = 1;                     // driving thread, as the next three
  std::map<std::uint32_t, std::size_t> dealt_;  // batches by process set
  CommunicatorKey key_;                         // of the batch that is prepared
  bool packed_ = false;                         // it is to be packed

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::shared_ptr<NcclCommunicator>> communicators_;  // all that are connected or connecting
  std::vector<std::shared_ptr<NcclCommunicator>> retired_;        // of sets that are gone: to be finished
  std::exception_ptr failure_;
  std::deque<std::unique_ptr<Tail>> tails_;
  bool busy_ = false;  // something was launched and not seen to be done
  bool ends_ = false;
  std::thread watcher_;
};

/// Whether NCCL can carry it: a dtype, a reduction and factors that it knows.
[[nodiscard]] bool nccl_carries(const Request& request) noexcept;
/// Whether it cannot as it is, but with kernels before and after: an allreduce that travels as 16 bits, of scaled
/// integers, or Adasum.
[[nodiscard]] bool nccl_carries_packed(const Request& request) noexcept;
/// Whether it can go by NCCL within hosts and through these across.
[[nodiscard]] bool hierarchy_carries(const Request& request) noexcept;

}  // namespace ringtune
