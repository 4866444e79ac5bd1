#include "runtime/gpu/pack.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/check.h"
#include "fusion/plan.h"

namespace ringtune {

std::vector<PackedRound> cut_rounds(std::span<const std::size_t> counts, std::size_t item_bytes, std::size_t capacity) {
  RINGTUNE_CHECK(capacity >= kFusionAlignment && capacity % kFusionAlignment == 0, "a buffer of ", capacity, " bytes");
  std::vector<PackedRound> rounds;
  std::size_t free = 0;  // bytes of the last round that are left, behind the alignment
  for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
    for (std::size_t begin = 0; begin < counts[tensor];) {
      if (free < item_bytes) {
        rounds.emplace_back();
        free = capacity;
      }
      PackedRound& round = rounds.back();
      const std::size_t at = capacity - free;
      const std::size_t count = std::min(counts[tensor] - begin, free / item_bytes);
      round.parts.push_back({tensor, begin, count, at});
      round.bytes = at + count * item_bytes;
      free -= fused_size(count * item_bytes);
      begin += count;
    }
  }
  return rounds;
}

std::vector<std::vector<PackedPart>> cut_shares(std::span<const std::size_t> bytes, std::size_t capacity) {
  const std::size_t share = bytes.empty() ? 0 : capacity / bytes.size() / kFusionAlignment * kFusionAlignment;
  RINGTUNE_CHECK(share > 0, "a buffer of ", capacity, " bytes for ", bytes.size(), " members");
  std::vector<std::vector<PackedPart>> rounds;
  const std::size_t most = *std::ranges::max_element(bytes);
  for (std::size_t begin = 0; begin < most; begin += share) {
    std::vector<PackedPart>& parts = rounds.emplace_back();
    std::size_t at = 0;
    for (std::size_t member = 0; member < bytes.size(); ++member) {
      if (bytes[member] <= begin) continue;
      parts.push_back({member, begin, std::min(share, bytes[member] - begin), at});
      at += fused_size(parts.back().count);
    }
  }
  return rounds;
}

void DevicePacker::move(std::span<const ScaledMove> moves, DType from, DType to, CudaStreamHandle stream) {
  for (auto first = moves.begin(); first != moves.end();) {
    const double factor = first->factor;
    const auto last = std::find_if(first, moves.end(), [&](const ScaledMove& each) { return each.factor != factor; });
    run_.clear();
    std::transform(first, last, std::back_inserter(run_), [](const ScaledMove& each) { return each.move; });
    const DeviceCast cast{from, to, factor};
    kernels_.move(table_of(run_, cast), run_, cast, stream);
    first = last;
  }
}

void DevicePacker::dot_products(std::span<const DeviceMove> pairs, DType dtype, CudaAddress products,
                                CudaStreamHandle stream) {
  kernels_.dot_products(table_of(pairs, {dtype, dtype, 0.0}), pairs, dtype, products, stream);
}

/// The table that was made of these moves, if it is still kept; the kernels compare it with them.
BatchTable& DevicePacker::table_of(std::span<const DeviceMove> moves, const DeviceCast& cast) {
  std::size_t hash = moves.size() + 31 * static_cast<std::size_t>(cast.from) + 67 * static_cast<std::size_t>(cast.to) +
                     std::hash<double>()(cast.factor);
  for (const DeviceMove& move : moves) {
    for (const std::uint64_t word : {move.from, move.to, std::uint64_t{move.count}}) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 29;
    }
  }
  const auto known = places_.find(hash);
  if (known != places_.end()) return *tables_[known->second];
  const std::size_t place = next_;
  next_ = (next_ + 1) % kTables;
  std::unique_ptr<BatchTable>& table = tables_[place];
  if (table == nullptr) {
    table = std::make_unique<BatchTable>(device_);
  } else {
    places_.erase(hashes_[place]);
  }
  places_[hash] = place;
  hashes_[place] = hash;
  return *table;
}

}  // namespace ringtune
