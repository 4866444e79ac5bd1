#include "merging/span_order.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>
#include <utility>

namespace ringtune {
namespace {

constexpr std::size_t kBlockRows = std::size_t{1} << 18;

/// Moved about instead of rows.
struct Key {
  std::int64_t begin_ns;
  std::uint32_t row;
};

}  // namespace

SpanRow SpanColumns::row(std::uint32_t at) const {
  const auto code = static_cast<std::size_t>(facts[at]);
  const std::int32_t track = stage[at] + (code < thread_tracks.size() ? thread_tracks[code] : 0);
  return {begin_ns[at], end_ns[at], bytes[at], batch[at], step[at], rank[at], knobs_version[at],
          name[at],     tensor[at], facts[at], stage[at], track,    0};
}

bool SpanColumns::stands_before(std::uint32_t a, std::uint32_t b) const {
  if (begin_ns[a] != begin_ns[b]) return begin_ns[a] < begin_ns[b];
  if (rank[a] != rank[b]) return rank[a] < rank[b];
  if (stage[a] != stage[b]) return stage[a] < stage[b];
  if (end_ns[a] != end_ns[b]) return end_ns[a] > end_ns[b];
  return a < b;
}

SpanOrder::SpanOrder(SpanColumns columns, std::uint32_t always_paired, unsigned threads)
    : columns_(std::move(columns)), always_paired_(always_paired), rows_(columns.count()) {
  std::iota(rows_.begin(), rows_.end(), 0U);
  sort_blocks(threads);
  for (std::size_t at = 0; at < rows_.size(); at += kBlockRows) {
    heap_.push_back(Block(rows_).subspan(at, std::min(kBlockRows, rows_.size() - at)));
  }
  for (std::size_t at = heap_.size() / 2; at-- > 0;) sink(at);
}

void SpanOrder::sort_blocks(unsigned threads) {
  const std::size_t blocks = (rows_.size() + kBlockRows - 1) / kBlockRows;
  std::atomic<std::size_t> next{0};
  const auto sort_some = [&] {
    std::vector<Key> keys;
    for (std::size_t block = 0; (block = next.fetch_add(1)) < blocks;) {
      const auto rows =
          std::span(rows_).subspan(block * kBlockRows, std::min(kBlockRows, rows_.size() - block * kBlockRows));
      keys.resize(rows.size());
      std::ranges::transform(rows, keys.begin(), [&](std::uint32_t row) { return Key{columns_.begin_ns[row], row}; });
      std::ranges::sort(keys, [&](const Key& a, const Key& b) {
        return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : columns_.stands_before(a.row, b.row);
      });
      std::ranges::transform(keys, rows.begin(), &Key::row);
    }
  };
  std::vector<std::jthread> helpers;  // joined at the end of the block
  for (unsigned i = 1; i < std::min<std::size_t>(threads, blocks); ++i) helpers.emplace_back(sort_some);
  sort_some();
}

std::size_t SpanOrder::next(std::span<SpanRow> out) {
  for (std::size_t count = 0; count < out.size(); ++count) {
    if (heap_.empty()) return count;
    Block& first = heap_.front();
    SpanRow& row = out[count] = columns_.row(first.front());
    if ((always_paired_ >> row.stage & 1) != 0 || badly_nested(row)) row.pair = ++pairs_;
    first = first.subspan(1);
    if (first.empty()) {
      std::swap(heap_.front(), heap_.back());
      heap_.pop_back();
    }
    sink(0);
  }
  return out.size();
}

/// Restores the heap's order below one place.
void SpanOrder::sink(std::size_t at) {
  const auto before = [&](std::size_t a, std::size_t b) {
    return columns_.stands_before(heap_[a].front(), heap_[b].front());
  };
  for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && before(child + 1, child)) ++child;
    if (!before(child, at)) return;
    std::swap(heap_[at], heap_[child]);
    at = child;
  }
}

/// As `badly_nested` of ringtune/timeline/merging/merged_file.py, span by span.
bool SpanOrder::badly_nested(const SpanRow& row) {
  Track& enclosing = tracks_[std::int64_t{row.rank} << 32 | row.track];
  while (!enclosing.empty() && enclosing.back() <= row.begin_ns) enclosing.pop_back();
  if (!enclosing.empty() && row.end_ns > enclosing.back()) return true;
  enclosing.push_back(row.end_ns);
  return false;
}

}  // namespace ringtune
