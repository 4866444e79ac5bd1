// What a store keeps, and for whom: how much of its memory a client may take, and all of them together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/bytes.h"

namespace ringtune {

/// Bytes of keys and values that a store keeps.
struct StoreLimits {
  /// Set by one connection and not overwritten since. A launcher's values are its process's own: they have the limit
  /// of all.
  std::size_t client_bytes = std::size_t{256} << 20;
  std::size_t all_bytes = std::size_t{4} << 30;
};

/// Keys and values; used by one thread.
class StoreValues {
 public:
  static constexpr std::uint64_t kNobody = 0;
  /// What a key costs beside its and its value's bytes, so that empty values in any number have a limit as well.
  static constexpr std::size_t kEntryBytes = 128;

  explicit StoreValues(const StoreLimits& limits) noexcept : limits_(limits) {}
  /// nullptr where the key is not there.
  [[nodiscard]] const Bytes* find(const std::string& key) const;
  /// Why `owner` may not set a value of so many bytes; empty where it may.
  [[nodiscard]] std::string refusal(std::uint64_t owner, bool is_launcher, const std::string& key,
                                    std::size_t bytes) const;
  /// Sets it, whatever the limits; `owner`: whose it is from now on.
  void put(std::uint64_t owner, const std::string& key, Bytes value);
  /// This client has ended: what it has set stays, as nobody's.
  void forget(std::uint64_t owner) { held_.erase(owner); }

 private:
  struct Value {
    std::uint64_t owner = kNobody;
    Bytes bytes;
  };
  void release(const std::string& key, const Value& value);

  StoreLimits limits_;
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<std::uint64_t, std::size_t> held_;  // by each client that is there and has set something
  std::size_t all_ = 0;
};

}  // namespace ringtune
