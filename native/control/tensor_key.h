// How a tensor is named between ranks: the same name may be in flight in several process sets.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "control/request.h"

namespace ringtune {

struct TensorKey {
  std::uint32_t process_set = 0;
  std::string name;
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

[[nodiscard]] inline TensorKey key_of(const Request& request) { return {request.process_set, request.name}; }

[[nodiscard]] inline std::size_t hash_of(std::uint32_t process_set, std::string_view name) noexcept {
  return std::hash<std::string_view>{}(name) ^ (process_set * std::size_t{0x9e3779b97f4a7c15});
}

struct TensorKeyHash {
  std::size_t operator()(const TensorKey& key) const noexcept { return hash_of(key.process_set, key.name); }
};

}  // namespace ringtune
