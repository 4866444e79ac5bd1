// Who waits at the store for keys that do not exist yet, and for which keys nobody needs to wait any more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/store_values.h"
#include "transport/store_wire.h"

namespace ringtune {

/// A get that waits for the first of its keys that does not exist: so it costs one entry, however many keys it has.
struct WaitingGet {
  std::uint64_t connection;
  std::uint32_t request;
  bool all;  // kGetAll
  std::vector<std::string> keys;
  std::size_t next = 0;  // those before it exist
};

/// Reads the rest of a request. Throws Protocol.
[[nodiscard]] WaitingGet read_get(std::uint64_t connection, std::uint32_t request, StoreOp op, ByteReader& fields);
/// The answer to a kGetAll; nothing where it would be larger than an answer may be.
[[nodiscard]] std::optional<Bytes> table_of(const std::vector<std::string>& keys, const StoreValues& values);

/// Why keys will not come that begin and end so; an empty text fits every key.
struct Refusal {
  std::string reason;
  std::string begins;
  std::string ends;

  [[nodiscard]] bool covers(std::string_view key) const { return key.starts_with(begins) && key.ends_with(ends); }
};

/// Reads the rest of a request. Throws Protocol, for a text of more than kMaxSentenceBytes as well.
[[nodiscard]] Refusal read_refusal(ByteReader& fields);

/// Refusals in the order in which they came: of those that cover a key the first one counts, which is the cause of the
/// others.
class Refusals {
 public:
  /// Returns the reason that counts from now on for keys of this beginning: an earlier one that covers them all, or
  /// that of `refusal`.
  const std::string& add(Refusal refusal) {
    for (const Refusal& earlier : all_) {
      if (earlier.ends.empty() && refusal.begins.starts_with(earlier.begins)) return earlier.reason;
    }
    all_.push_back(std::move(refusal));
    return all_.back().reason;
  }

  /// nullptr when the key may still come.
  [[nodiscard]] const std::string* reason(std::string_view key) const {
    for (const Refusal& refusal : all_) {
      if (refusal.covers(key)) return &refusal.reason;
    }
    return nullptr;
  }

 private:
  std::vector<Refusal> all_;
};

}  // namespace ringtune
