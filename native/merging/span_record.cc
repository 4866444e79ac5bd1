#include "merging/span_record.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ringtune {
namespace {

/// Moved about instead of whole records.
struct Key {
  std::int64_t begin_ns;
  std::uint32_t at;
};

}  // namespace

void sort_records(std::span<SpanRecord> block) {
  std::vector<Key> keys(block.size());
  for (std::size_t i = 0; i < block.size(); ++i) keys[i] = {block[i].begin_ns, static_cast<std::uint32_t>(i)};
  std::ranges::sort(keys, [&](const Key& a, const Key& b) {
    if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
    const SpanRecord& first = block[a.at];
    const SpanRecord& second = block[b.at];
    if (stands_before(first, second)) return true;
    return !stands_before(second, first) && first.row < second.row;
  });
  const std::vector<SpanRecord> unsorted(block.begin(), block.end());
  std::ranges::transform(keys, block.begin(), [&](const Key& key) { return unsorted[key.at]; });
}

}  // namespace ringtune
