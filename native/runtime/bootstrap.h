// What the members of a process set tell one another over their host links before they take a data path of GPUs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "collective/collectives.h"
#include "collective/communicator.h"

namespace ringtune {

/// Text in a struct that is sent as it is; cut to what fits.
template <std::size_t Size>
void write(std::array<char, Size>& field, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), Size - 1), field.begin());
}

/// Everybody's, by position. All members come by. Blocks; throws PeerLost, Timeout.
template <typename T>
std::vector<T> gather(const T& own, Communicator& communicator) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto size = static_cast<std::size_t>(communicator.size());
  Bytes all(size * sizeof(T));
  std::memcpy(all.data() + static_cast<std::size_t>(communicator.rank()) * sizeof(T), &own, sizeof(T));
  ring_allgather(communicator.ring(), all, std::vector<std::size_t>(size, sizeof(T)), {});
  std::vector<T> values(size);
  std::memcpy(values.data(), all.data(), all.size());
  return values;
}

[[nodiscard]] inline std::string rank_at(const Communicator& communicator, std::size_t position) {
  return "rank " + std::to_string(communicator.members()[position]);
}

/// The first of the members' complaints with the rank whose it is, if there is any.
template <typename T, std::size_t Size>
std::string first_complaint(const std::vector<T>& all, std::array<char, Size> T::* text,
                            const Communicator& communicator) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const char* const complaint = (all[i].*text).data();
    if (*complaint != '\0') return rank_at(communicator, i) + ": " + complaint;
  }
  return {};
}

}  // namespace ringtune
