// How a tensor is named between ranks: the same name may be in flight in several process sets.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "control/request.h"

namespace ringtune {

struct TensorKey {
  std::uint32_t process_set = 0;
  std::string name;
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

[[nodiscard]] inline TensorKey key_of(const Request& request) { return {request.process_set, request.name}; }

struct TensorKeyHash {
  std::size_t operator()(const TensorKey& key) const noexcept {
    return std::hash<std::string>{}(key.name) ^ (key.process_set * std::size_t{0x9e3779b97f4a7c15});
  }
};

}  // namespace ringtune
