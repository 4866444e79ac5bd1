#include "collective/adasum.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "collective/exchange.h"
#include "device/adasum_kernels.h"

namespace ringtune {
namespace {

constexpr const char* kWhat = "Adasum";

/// Sums over the members that hold the two vectors; the same bits on all of them, since an addition does not depend on
/// the order of its two terms.
DotProducts sum_over_holders(Mesh& mesh, const DotProducts& part, int holders) {
  std::array<double, 3> mine{part.ab, part.aa, part.bb};
  for (int step = 1; step < holders; step *= 2) {
    std::array<double, 3> theirs{};
    const int peer = mesh.rank() ^ step;
    const OutgoingParcel out{peer, std::as_bytes(std::span(mine))};
    const IncomingParcel in{peer, std::as_writable_bytes(std::span(theirs))};
    exchange(mesh, {&out, 1}, {&in, 1}, kWhat);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
  }
  return {mine[0], mine[1], mine[2]};
}

/// Half the projection on the other vector is taken away; a zero vector has none.
double factor_of(double dot, double square) noexcept { return square > 0 ? 1.0 - dot / (2.0 * square) : 1.0; }

}  // namespace

std::vector<AdasumLevel> adasum_levels(std::size_t bytes, std::size_t element_bytes, int rank, int size) {
  std::vector<AdasumLevel> levels;
  ChunkRange held{0, bytes};
  for (int distance = 1; distance < size; distance *= 2) {
    std::vector<ChunkRange> halves = cut_chunks(held.size, element_bytes, 2);
    for (ChunkRange& half : halves) half.begin += held.begin;
    const int peer = rank ^ distance;
    const bool lower = rank < peer;
    if (!lower) std::swap(halves[0], halves[1]);
    levels.push_back({peer, lower, halves[0], halves[1], rank / (2 * distance) * 2 * distance, 2 * distance});
    held = halves[0];
  }
  return levels;
}

void adasum_allreduce(Mesh& mesh, std::span<std::byte> data, DType dtype) {
  RINGTUNE_CHECK(is_power_of_two(mesh.size()), "Adasum over ", mesh.size(), " members");
  RINGTUNE_CHECK(is_floating(dtype), "Adasum of ", name_of(dtype));
  if (mesh.size() == 1 || data.empty()) return;
  const std::size_t element = size_of(dtype);
  const std::vector<AdasumLevel> levels = adasum_levels(data.size(), element, mesh.rank(), mesh.size());
  std::vector<std::byte> arrived(levels.front().kept.size);  // the largest of them
  const auto part = [&](const ChunkRange& range) { return data.subspan(range.begin, range.size); };
  for (const AdasumLevel& level : levels) {
    const std::span<std::byte> own = part(level.kept);
    const OutgoingParcel out{level.peer, part(level.given)};
    const IncomingParcel in{level.peer, std::span(arrived).first(own.size())};
    exchange(mesh, {&out, 1}, {&in, 1}, kWhat);
    // The lower members hold a, the others b, on all of them in the same order.
    const std::byte* a = level.lower ? own.data() : arrived.data();
    const std::byte* b = level.lower ? arrived.data() : own.data();
    const std::size_t count = own.size() / element;
    const DotProducts dots = sum_over_holders(mesh, dot_products(a, b, count, dtype), level.holders);
    scaled_sum(own.data(), {a, factor_of(dots.ab, dots.aa), b, factor_of(dots.ab, dots.bb)}, count, dtype);
  }
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    const OutgoingParcel out{level->peer, part(level->kept)};
    const IncomingParcel in{level->peer, part(level->given)};
    exchange(mesh, {&out, 1}, {&in, 1}, kWhat);
  }
}

}  // namespace ringtune
