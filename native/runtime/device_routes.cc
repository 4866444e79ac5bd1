#include "runtime/device_routes.h"

#include "base/error.h"
#include "base/log.h"

namespace ringtune {
namespace {

constexpr Way kDirectWays[] = {Way::kNccl, Way::kNcclPacked, Way::kHierarchical, Way::kRing};  // the best first

std::string setting_of(GpuPlane plane) {
  const char* const word = plane == GpuPlane::kRing ? "ring" : plane == GpuPlane::kNccl ? "nccl" : "nccl-host";
  return std::string("RINGTUNE_GPU_PLANE=") + word;
}

Way way_of_batch(std::span<const OperationPtr> batch) { return batch.front()->request().way; }

}  // namespace

DeviceRoutes::DeviceRoutes(const DeviceRoutesOptions& options)
    : plane_(options.plane),
      kernels_(options.kernels),
      nccl_({options.nccl_libraries, options.timeout_ns, kernels_}),
      rings_({kernels_, options.ring_buffer_bytes, options.timeout_ns}) {}

void DeviceRoutes::begin(const std::vector<std::string>& hosts, int rank,
                         std::function<void(std::exception_ptr)> on_failure) {
  hosts_ = hosts;
  nccl_.begin(hosts, std::move(on_failure));
  rings_.begin(hosts.at(static_cast<std::size_t>(rank)));
}

HostSpread DeviceRoutes::spread_of(std::uint32_t process_set, std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  const auto [known, fresh] = spreads_.try_emplace(process_set, HostSpread::kOneHost);
  if (!fresh) return known->second;
  std::vector<std::string> hosts;
  for (const int rank : members) hosts.push_back(hosts_.at(static_cast<std::size_t>(rank)));
  const HostLayout layout = layout_of(hosts, 0);  // from everywhere the same of what matters here
  if (layout.hosts() < 2) return known->second;
  return known->second = layout.has_levels() && layout.homogeneous ? HostSpread::kLevels : HostSpread::kUnequal;
}

/// Where that way is one that may be gone: whether what is refused there is an error.
bool DeviceRoutes::must_go(Way way) const noexcept {
  switch (way) {
    case Way::kNccl:
      return plane_ == GpuPlane::kNccl || plane_ == GpuPlane::kNcclHost;
    case Way::kHierarchical:
      return plane_ == GpuPlane::kNcclHost;
    case Way::kNcclPacked:
      return false;  // NCCL alone could not carry it
    default:
      return plane_ == GpuPlane::kRing;
  }
}

bool DeviceRoutes::may_go(Way way, const Request& request, HostSpread spread) const noexcept {
  if (plane_ != GpuPlane::kAuto && !must_go(way == Way::kNcclPacked ? Way::kNccl : way)) return false;
  switch (way) {
    case Way::kNccl:
    case Way::kNcclPacked:
      if (plane_ == GpuPlane::kNcclHost && spread != HostSpread::kOneHost) return false;
      return way == Way::kNccl ? nccl_carries(request) : nccl_carries_packed(request);
    case Way::kHierarchical:
      return hierarchy_carries(request) && spread == HostSpread::kLevels;
    default:
      return ring_carries(request);
  }
}

/// Why it does not go that way; empty when it can, as far as this rank knows.
std::string DeviceRoutes::refusal_of(Way way, const Request& request) {
  if (way == Way::kRing && request.place != 1)
    return "it is on another GPU than the first one that this process has used";
  {
    const std::lock_guard lock(mutex_);
    auto refused = refused_.find({request.process_set, way});
    if (refused == refused_.end() && way == Way::kNcclPacked)
      refused = refused_.find({request.process_set, Way::kNccl});
    if (refused != refused_.end()) return refused->second;
  }
  const bool by_kernels = way == Way::kRing || way == Way::kNcclPacked;
  std::string why = way == Way::kRing ? std::string() : nccl_.refusal();
  if (why.empty() && by_kernels) why = kernels_.refusal();
  if (!why.empty() && !must_go(way)) refuse(way, request.process_set, why);  // asked once
  return why;
}

Way DeviceRoutes::way_of(const Request& request, HostSpread spread) {
  for (const Way way : kDirectWays) {
    if (!may_go(way, request, spread)) continue;
    const std::string why = refusal_of(way, request);
    if (why.empty()) return way;
    if (must_go(way)) {
      throw DeviceError("tensor '" + request.name + "' cannot go " + std::string(text_of(way)) + ", which " +
                        setting_of(plane_) + " asks for: " + why);
    }
  }
  return Way::kStaged;
}

void DeviceRoutes::refuse(Way way, std::uint32_t process_set, const std::string& why) {
  if (must_go(way)) throw DeviceError(why + " (" + setting_of(plane_) + " forbids to go another way instead)");
  const std::lock_guard lock(mutex_);
  if (!refused_.emplace(std::pair(process_set, way), why).second) return;
  log(LogLevel::kInfo, "tensors on GPUs of process set ", process_set, " do not go ", text_of(way), ": ", why);
}

void DeviceRoutes::check(Way way) {
  if (way != Way::kRing) nccl_.check();
}

void DeviceRoutes::check_arrival(Way way, const CudaEvent& copied) {
  way == Way::kRing ? rings_.check_arrival(copied) : nccl_.check_arrival(copied);
}

void DeviceRoutes::abort(const std::exception_ptr& error) noexcept {
  nccl_.abort(error);
  rings_.abort(error);
}

void DeviceRoutes::prepare(std::span<const OperationPtr> batch, const BatchContext& context) {
  way_of_batch(batch) == Way::kRing ? rings_.prepare(batch, context) : nccl_.prepare(batch, context);
}

void DeviceRoutes::launch(std::span<const OperationPtr> batch, const BatchContext& context,
                          const std::optional<Span>& about) {
  way_of_batch(batch) == Way::kRing ? rings_.launch(batch, context, about) : nccl_.launch(batch, context, about);
}

void DeviceRoutes::removed(std::uint32_t process_set) {
  {
    const std::lock_guard lock(mutex_);
    for (const Way way : kDirectWays) refused_.erase({process_set, way});
    spreads_.erase(process_set);
  }
  nccl_.removed(process_set);
  rings_.removed(process_set);
}

void DeviceRoutes::close(Deadline timeout) noexcept {
  nccl_.close(timeout);
  rings_.close(timeout);
  kernels_.close();
}

}  // namespace ringtune
