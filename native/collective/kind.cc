#include "collective/kind.h"

#include <array>
#include <cstddef>

#include "base/check.h"

namespace ringtune {

std::string_view name_of(CollectiveKind kind) {
  constexpr std::array<std::string_view, 6> kNames{"ALLREDUCE", "ALLGATHER", "BROADCAST",
                                                   "BARRIER",   "ALLTOALL",  "REDUCESCATTER"};
  const auto index = static_cast<std::size_t>(kind);
  RINGTUNE_CHECK_LT(index, kNames.size(), "no such collective");
  return kNames[index];
}

}  // namespace ringtune
