// The algorithms of an allreduce, and the table that chooses one by size, ranks and kind of link. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace ringtune {

/// Wire values: never renumber. Names as in RINGTUNE_ALGORITHM, traces and table files.
enum class Algorithm : std::uint8_t {
  kTable = 0,              // "table": as the table says
  kRing = 1,               // "ring": 2 (n - 1) steps of 1/n of the bytes, pipelined
  kFlat = 2,               // "flat": everybody sends everything to everybody at once, one step
  kRecursiveDoubling = 3,  // "recursive-doubling": log2 n exchanges of everything
  kHalvingDoubling = 4,    // "halving-doubling": log2 n exchanges that halve, then log2 n that double
  kTree = 5,               // "tree": binomial tree to the first rank and back
  kHierarchical = 6,       // "hierarchical": within each host, then across hosts, then within each host
};
inline constexpr int kAlgorithmCount = 7;
[[nodiscard]] std::string_view name_of(Algorithm algorithm);

/// What the ranks of a group are joined by: shared memory throughout, or a network between some of them.
enum class LinkClass : std::uint8_t { kMemory = 0, kNetwork = 1 };

/// One row: holds for links of this class, up to so many ranks and bytes; 0 = without limit.
struct AlgorithmRule {
  LinkClass links = LinkClass::kNetwork;
  std::uint32_t max_ranks = 0;
  std::uint64_t max_bytes = 0;
  Algorithm algorithm = Algorithm::kRing;
  friend bool operator==(const AlgorithmRule&, const AlgorithmRule&) = default;
};

/// Value type. The first row that fits counts; without one it is the ring. Every rank of a job holds rank 0's table.
class AlgorithmTable {
 public:
  /// The built-in rows: measured with `ringtune bench links`, see benchmarks/README.md.
  AlgorithmTable();
  /// Throws InvalidArgument for a row that names kTable.
  explicit AlgorithmTable(std::vector<AlgorithmRule> rules);

  [[nodiscard]] Algorithm choose(LinkClass links, int ranks, std::uint64_t bytes) const noexcept;
  [[nodiscard]] const std::vector<AlgorithmRule>& rules() const noexcept { return rules_; }

  [[nodiscard]] Bytes encode() const;
  /// Throws Protocol.
  [[nodiscard]] static AlgorithmTable decode(ByteView bytes);
  friend bool operator==(const AlgorithmTable&, const AlgorithmTable&) = default;

 private:
  std::vector<AlgorithmRule> rules_;
};

}  // namespace ringtune
