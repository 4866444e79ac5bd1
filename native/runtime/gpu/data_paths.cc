#include "runtime/gpu/data_paths.h"

#include "base/error.h"
#include "base/log.h"

namespace ringtune {
namespace {

constexpr DataPath kDirectPaths[] = {DataPath::kNccl, DataPath::kNcclPacked, DataPath::kHierarchical,
                                     DataPath::kRing};  // the best first

std::string text_of_setting(GpuDataPath setting) {
  const char* const word = setting == GpuDataPath::kRing   ? "ring"
                           : setting == GpuDataPath::kNccl ? "nccl"
                                                           : "nccl-host";
  return std::string("RINGTUNE_GPU_DATA_PATH=") + word;
}

}  // namespace

DevicePaths::DevicePaths(const DevicePathsOptions& options)
    : setting_(options.setting),
      kernels_(options.kernels),
      nccl_({options.nccl_libraries, options.timeout_ns, kernels_}),
      rings_({kernels_, options.ring_buffer_bytes, options.timeout_ns, options.setting == GpuDataPath::kRing}) {}

void DevicePaths::begin(const std::vector<std::string>& hosts, int rank,
                        std::function<void(std::exception_ptr)> on_failure) {
  hosts_ = hosts;
  nccl_.begin(hosts, std::move(on_failure));
  rings_.begin(hosts.at(static_cast<std::size_t>(rank)));
}

HostSpread DevicePaths::spread_of(std::uint32_t process_set, std::span<const int> members) {
  if (members.size() < 2) return HostSpread::kOneMember;
  const std::lock_guard lock(mutex_);
  const auto [known, fresh] = spreads_.try_emplace(process_set, HostSpread::kOneHost);
  if (!fresh) return known->second;
  std::vector<std::string> hosts;
  for (const int rank : members) hosts.push_back(hosts_.at(static_cast<std::size_t>(rank)));
  const HostLayout layout = layout_of(hosts, 0);  // the same for any rank in what is asked of it here
  if (layout.hosts() < 2) return known->second;
  return known->second = layout.has_levels() && layout.homogeneous ? HostSpread::kLevels : HostSpread::kUnequal;
}

/// Whether the setting makes it an error when this path, which it allows, is refused.
bool DevicePaths::must_go(DataPath data_path) const noexcept {
  switch (data_path) {
    case DataPath::kNccl:
      return setting_ == GpuDataPath::kNccl || setting_ == GpuDataPath::kNcclHost;
    case DataPath::kHierarchical:
      return setting_ == GpuDataPath::kNcclHost;
    case DataPath::kNcclPacked:
      return false;  // NCCL alone could not carry it
    default:
      return setting_ == GpuDataPath::kRing;
  }
}

bool DevicePaths::may_go(DataPath data_path, const Request& request, HostSpread spread) const noexcept {
  if (setting_ != GpuDataPath::kAuto && !must_go(data_path == DataPath::kNcclPacked ? DataPath::kNccl : data_path))
    return false;
  switch (data_path) {
    case DataPath::kNccl:
    case DataPath::kNcclPacked:
      if (setting_ == GpuDataPath::kNcclHost && (spread == HostSpread::kLevels || spread == HostSpread::kUnequal))
        return false;
      return data_path == DataPath::kNccl ? nccl_carries(request) : nccl_carries_packed(request);
    case DataPath::kHierarchical:
      return hierarchy_carries(request) && spread == HostSpread::kLevels;
    default:
      return ring_carries(request) && spread != HostSpread::kOneMember;
  }
}

/// Why the request cannot take that path; empty when it can, as far as this rank knows.
std::string DevicePaths::refusal_of(DataPath data_path, const Request& request) {
  if (data_path == DataPath::kRing && request.place != 1)
    return "it is on another GPU than the first one that this process has used";
  {
    const std::lock_guard lock(mutex_);
    auto refused = refused_.find({request.process_set, data_path});
    if (refused == refused_.end() && data_path == DataPath::kNcclPacked)
      refused = refused_.find({request.process_set, DataPath::kNccl});
    if (refused != refused_.end()) return refused->second;
  }
  const bool by_kernels = data_path == DataPath::kRing || data_path == DataPath::kNcclPacked;
  std::string why = data_path == DataPath::kRing ? std::string() : nccl_.refusal();
  if (why.empty() && by_kernels) why = kernels_.refusal();
  if (!why.empty() && !must_go(data_path)) refuse(data_path, request.process_set, why);  // asked once
  return why;
}

DataPath DevicePaths::data_path_of(const Request& request, HostSpread spread) {
  for (const DataPath data_path : kDirectPaths) {
    if (!may_go(data_path, request, spread)) continue;
    const std::string why = refusal_of(data_path, request);
    if (why.empty()) return data_path;
    if (must_go(data_path)) {
      throw DeviceError("tensor '" + request.name + "' cannot go " + std::string(text_of(data_path)) + ", which " +
                        text_of_setting(setting_) + " asks for: " + why);
    }
  }
  return DataPath::kStaged;
}

void DevicePaths::refuse(DataPath data_path, std::uint32_t process_set, const std::string& why) {
  if (must_go(data_path))
    throw DeviceError(why + " (" + text_of_setting(setting_) + " allows no other data path instead)");
  const std::lock_guard lock(mutex_);
  if (!refused_.emplace(std::pair(process_set, data_path), why).second) return;
  log(LogLevel::kInfo, "tensors on GPUs of process set ", process_set, " do not go ", text_of(data_path), ": ", why);
}

void DevicePaths::check(DataPath data_path) {
  if (data_path != DataPath::kRing) nccl_.check();
}

void DevicePaths::check_arrival(DataPath data_path, const CudaEvent& copied) { of(data_path).check_arrival(copied); }

void DevicePaths::abort(const std::exception_ptr& error) noexcept {
  nccl_.abort(error);
  rings_.abort(error);
}

void DevicePaths::removed(std::uint32_t process_set) {
  {
    const std::lock_guard lock(mutex_);
    for (const DataPath data_path : kDirectPaths) refused_.erase({process_set, data_path});
    spreads_.erase(process_set);
  }
  nccl_.removed(process_set);
  rings_.removed(process_set);
}

void DevicePaths::close(Deadline timeout) noexcept {
  nccl_.close(timeout);
  rings_.close(timeout);
  kernels_.close();
}

}  // namespace ringtune
