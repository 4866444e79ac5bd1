#include "runtime/batch_copies.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cpu_kernels.h"
#include "fusion/plan.h"
#include "runtime/batch_path.h"
#include "trace/piece_log.h"

namespace ringtune {

BatchCopies::Place BatchCopies::place_of(const Operation& operation, std::size_t begin, int size) const noexcept {
  const std::size_t bytes = operation.prepared->wire_bytes;
  return {&operation, begin, bytes, bytes, postscale_of(operation.request(), size)};
}

std::size_t BatchCopies::lay_out(std::span<const OperationPtr> batch, int size) {
  RINGTUNE_CHECK(!batch.empty());
  wire_ = wire_dtype(batch.front()->request());
  dtype_ = batch.front()->request().dtype;
  places_.clear();
  taken_.clear();
  total_ = 0;
  in_place_ = false;
  for (const OperationPtr operation : batch) {
    Place& place = places_.emplace_back(place_of(*operation, total_, size));
    place.padded = fused_size(place.bytes);
    total_ += place.padded;
  }
  return total_;
}

void BatchCopies::lay_in_place(Operation& operation, int size) {
  wire_ = dtype_ = operation.request().dtype;
  places_.assign(1, place_of(operation, 0, size));
  taken_.clear();
  total_ = places_.front().bytes;
  in_place_ = true;
  buffer_ = {operation.output, total_};
}

void BatchCopies::copy_in(std::size_t index) { copy_in(places_[index], 0, places_[index].padded); }
void BatchCopies::copy_out(std::size_t index) { copy_out(places_[index], 0, places_[index].bytes); }

void BatchCopies::copy_in(const Place& place, std::size_t begin, std::size_t end) {
  const std::size_t element = size_of(wire_);
  const std::size_t first = std::min(begin, place.bytes) / element;
  const std::size_t count = std::min(end, place.bytes) / element - first;
  std::byte* const target = buffer_.data() + place.begin;
  const std::byte* const source = place.operation->input + first * size_of(dtype_);
  const double prescale = place.operation->request().prescale;
  if (count > 0 && (source != target + first * element || prescale != 1.0)) {
    convert_copy(target + first * element, wire_, source, dtype_, count, prescale);
  }
  // The padding travels and is added up as well: zeros, so that no stale bits turn into slow or trapping numbers.
  if (end > place.bytes) std::memset(target + std::max(begin, place.bytes), 0, end - std::max(begin, place.bytes));
}

void BatchCopies::copy_out(const Place& place, std::size_t begin, std::size_t end) {
  const std::size_t element = size_of(wire_);
  const std::size_t first = std::min(begin, place.bytes) / element;
  const std::size_t count = std::min(end, place.bytes) / element - first;
  const std::byte* const source = buffer_.data() + place.begin + first * element;
  std::byte* const target = place.operation->output + first * size_of(dtype_);
  if (count == 0 || (source == target && place.postscale == 1.0)) return;
  convert_copy(target, dtype_, source, wire_, count, place.postscale);
}

template <typename Visit>
void BatchCopies::walk(ChunkRange range, Visit&& visit) {
  const std::size_t end = range.begin + range.size;
  const auto after = [](std::size_t at, const Place& place) { return at < place.begin; };
  auto place = std::upper_bound(places_.begin(), places_.end(), range.begin, after);
  for (--place; place != places_.end() && place->begin < end; ++place) {
    const std::size_t first = std::max(range.begin, place->begin) - place->begin;
    visit(*place, first, std::min(end - place->begin, place->padded));
  }
}

void BatchCopies::stage_in(ChunkRange range) {
  if (range.size == 0) return;
  const PieceTimer timer(Piece::kPack, range.size);
  walk(range, [&](const Place& place, std::size_t begin, std::size_t end) { copy_in(place, begin, end); });
}

void BatchCopies::stage_out(ChunkRange range) {
  if (range.size == 0 || in_place_) return;
  take_out(range);
  if (!taken_.empty() && taken_.back().begin + taken_.back().size == range.begin) {
    taken_.back().size += range.size;
  } else {
    taken_.push_back(range);
  }
}

void BatchCopies::take_out(ChunkRange range) {
  const PieceTimer timer(Piece::kSpread, range.size);
  walk(range, [&](const Place& place, std::size_t begin, std::size_t end) { copy_out(place, begin, end); });
}

void BatchCopies::stage_out_rest() {
  std::sort(taken_.begin(), taken_.end(), [](const ChunkRange& a, const ChunkRange& b) { return a.begin < b.begin; });
  taken_.push_back({total_, 0});
  std::size_t at = 0;
  for (const ChunkRange& range : taken_) {
    if (range.begin > at) take_out({at, range.begin - at});
    at = range.begin + range.size;
  }
}

}  // namespace ringtune
