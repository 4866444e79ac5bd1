// Tensors from GPU to GPU, by NCCL: no byte of them comes to the host - or, where NCCL is to go within hosts only, a
// share of an allreduce for each rank of a host, between two stages of NCCL's (device_hierarchy.cc). Which operations
// go that way is decided in device_paths.h, but for what no single rank can tell - the same GPU twice, versions that
// do not work together, a network that does not connect: the members of a process set find that out together, in front
// of the first batch of theirs that NCCL is to carry (prepare).
//
// The engine's order of batches is the same on all ranks, and so is the choice of a stream of a GPU for each of them;
// each stream has communicators of its own: so NCCL's operations never wait for one another in a circle. Putting them
// there is all that the host does: a stream waits for the kernels before, and the caller's stream for the result. A
// thread of ours asks NCCL for errors meanwhile.
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
#include "runtime/device_fusion.h"
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
class NcclPath {
 public:
  explicit NcclPath(NcclPathOptions options);
  ~NcclPath();  // after close()
  NcclPath(const NcclPath&) = delete;
  NcclPath& operator=(const NcclPath&) = delete;

  /// `hosts`: of all ranks. `on_failure` is called, on a thread of our own, when NCCL reports an error in a stream.
  void begin(std::vector<std::string> hosts, std::function<void(std::exception_ptr)> on_failure);

  // Any thread.
  /// Why this rank has no NCCL; empty where it has.
  [[nodiscard]] std::string refusal();
  /// Throws what has ended the exchange, if something did: what is in streams means nothing then.
  void check();
  /// The same, if it did before that event came.
  void check_arrival(const CudaEvent& copied);
  /// Ends what is in streams, with results that mean nothing; every later batch fails with `error`. Idempotent.
  void abort(const std::exception_ptr& error) noexcept;

  /// Whether any set goes from GPU to GPU.
  [[nodiscard]] bool connected() {
    const std::lock_guard lock(mutex_);
    return !communicators_.empty();
  }

  // Driving thread. A batch is of operations that all ranks reported as going by NCCL; the members of its set come by
  // in the same order.
  /// Batches to come are dealt to so many streams of a GPU; all ranks switch between the same two batches.
  void use_streams(std::size_t count) noexcept { streams_ = count; }
  /// Connects the set. Blocks the first time. Throws DataPathRefused, on all members, when they cannot go that way;
  /// PeerLost.
  void prepare(std::span<const OperationPtr> batch, const BatchContext& context);
  /// Puts the batch into the stream. `about`: what the timeline says of it, once the GPU has told when it ran; none
  /// while nothing is recorded. Throws DeviceError, Timeout; what abort() was given.
  void launch(std::span<const OperationPtr> batch, const BatchContext& context, const std::optional<Span>& about);
  /// The set is gone; what it has in streams goes on. Does not block.
  void removed(std::uint32_t process_set);

  /// When nothing is launched any more, and before the lanes go: waits for what is in streams, at most `timeout`.
  void close(Deadline timeout) noexcept;

 private:
  /// What has a communicator of its own. All members have the same number of the GPU (find_parting).
  struct Route {
    std::uint32_t process_set = 0;
    std::uint8_t place = 0;
    std::size_t stream = 0;
    bool within_hosts = false;
    friend auto operator<=>(const Route&, const Route&) = default;
  };
  /// What its members have come to.
  struct Set {
    std::shared_ptr<NcclCommunicator> communicator;
    int rank = 0;         // there: among all members, or among those of this host
    int size = 0;         // of it
    std::string refusal;  // why there is none
  };
  struct Card;
  /// A stream that something was launched into, and an event behind all of that.
  struct Tail {
    const CudaDevice* device;  // a lane's
    std::size_t stream;
    CudaEvent last;
  };

  const NcclLibrary& library() { return NcclLibrary::open(options_.nccl_libraries); }
  [[nodiscard]] Deadline patience() const { return Deadline::after(options_.timeout_ns); }
  Card own_card(const DeviceLane& lane, const BatchContext& context, bool first);
  [[nodiscard]] static std::string find_refusal(const std::vector<Card>& cards, const Communicator& communicator,
                                                bool within_hosts);
  [[nodiscard]] HostLayout layout_of(const BatchContext& context) const;
  void meet(Set& set, const DeviceLane& lane, const BatchContext& context);
  void meet_within_hosts(Set& set, const DeviceLane& lane, const BatchContext& context);
  void connect(Set& set, const NcclUniqueId& id, const BatchContext& context);
  Route next_route(std::span<const OperationPtr> batch, const BatchContext& context);
  CudaEvent& last_in(const CudaDevice& device, std::size_t stream);
  void put_batch(NcclCommunicator& communicator, CudaStream& stream, std::span<const OperationPtr> batch,
                 const BatchContext& context);
  void put_packed(NcclCommunicator& communicator, const CudaStream& stream, std::span<const OperationPtr> batch,
                  const BatchContext& context, const BatchTimes& times);
  AdasumCalls adasum_calls(NcclCommunicator& communicator, const CudaStream& stream);
  void launched(DeviceLane& lane, std::size_t stream);
  // device_hierarchy.cc
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
  std::map<Route, Set> sets_;                   // likewise
  std::size_t streams_ = 1;                     // driving thread, as the next three
  std::map<std::uint32_t, std::size_t> dealt_;  // batches by process set
  Route route_;                                 // of the batch that is prepared
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
