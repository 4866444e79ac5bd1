// The collectives of the runtime. Wire values: never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ringtune {

enum class CollectiveKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kAlltoall = 4,
  kReducescatter = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
};
inline constexpr CollectiveKind kLastCollectiveKind = CollectiveKind::kRemoveProcessSet;
inline constexpr std::size_t kCollectiveKinds = static_cast<std::size_t>(kLastCollectiveKind) + 1;
[[nodiscard]] std::string_view name_of(CollectiveKind kind);  // "ALLREDUCE"

}  // namespace ringtune
