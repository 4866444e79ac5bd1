#include "collective/algorithm.h"

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::size_t kRuleBytes = 14;

std::vector<AlgorithmRule> built_in() {
  using enum Algorithm;
  constexpr LinkClass kNet = LinkClass::kNetwork;
  constexpr LinkClass kMem = LinkClass::kMemory;
  return {
      {kNet, 4, 64 << 10, kRecursiveDoubling}, {kNet, 4, 0, kRing},
      {kNet, 0, 32 << 10, kRecursiveDoubling}, {kNet, 0, 512 << 10, kHalvingDoubling},
      {kMem, 2, 64 << 10, kRecursiveDoubling}, {kMem, 0, 16 << 10, kRecursiveDoubling},
  };
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  const std::string_view name = algorithm_name(static_cast<std::uint8_t>(algorithm));
  RINGTUNE_CHECK(!name.empty(), "no algorithm of number ", static_cast<int>(algorithm));
  return name;
}

AlgorithmTable::AlgorithmTable() : rules_(built_in()) {}

AlgorithmTable::AlgorithmTable(std::vector<AlgorithmRule> rules) : rules_(std::move(rules)) {
  for (const AlgorithmRule& rule : rules_) {
    if (rule.algorithm == Algorithm::kTable) {
      throw InvalidArgument("a row of the algorithm table says 'table' itself: name an algorithm");
    }
  }
}

Algorithm AlgorithmTable::choose(LinkClass links, int ranks, std::uint64_t bytes) const noexcept {
  for (const AlgorithmRule& rule : rules_) {
    if (rule.links == links && (rule.max_ranks == 0 || static_cast<std::uint32_t>(ranks) <= rule.max_ranks) &&
        (rule.max_bytes == 0 || bytes <= rule.max_bytes)) {
      return rule.algorithm;
    }
  }
  return Algorithm::kRing;
}

Bytes AlgorithmTable::encode() const {
  ByteWriter out;
  out.u32(static_cast<std::uint32_t>(rules_.size()));
  for (const AlgorithmRule& rule : rules_) {
    out.u8(static_cast<std::uint8_t>(rule.links));
    out.u32(rule.max_ranks);
    out.u64(rule.max_bytes);
    out.u8(static_cast<std::uint8_t>(rule.algorithm));
  }
  return out.take();
}

AlgorithmTable AlgorithmTable::decode(ByteView bytes) {
  ByteReader in(bytes);
  const std::uint32_t count = in.u32();
  if (count > in.remaining() / kRuleBytes) throw Protocol("an algorithm table promises more rows than it holds");
  std::vector<AlgorithmRule> rules;
  for (std::uint32_t i = 0; i < count; ++i) {
    AlgorithmRule rule;
    const std::uint8_t links = in.u8();
    rule.max_ranks = in.u32();
    rule.max_bytes = in.u64();
    const std::uint8_t algorithm = in.u8();
    if (links > 1 || algorithm == 0 || algorithm >= kAlgorithmCount) {
      throw Protocol("an algorithm table holds a row that this version does not know");
    }
    rule.links = static_cast<LinkClass>(links);
    rule.algorithm = static_cast<Algorithm>(algorithm);
    rules.push_back(rule);
  }
  in.expect_end();
  return AlgorithmTable(std::move(rules));
}

}  // namespace ringtune
