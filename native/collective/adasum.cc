#include "collective/adasum.h"

#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "collective/exchange.h"
#include "collective/ring_schedule.h"
#include "device/adasum_kernels.h"

namespace ringtune {
namespace {

constexpr const char* kWhat = "Adasum";

/// Sums over the 2 * distance members that hold the two vectors; the same bits on all of them, since an addition does
/// not depend on the order of its two terms.
DotProducts sum_over_holders(Mesh& mesh, const DotProducts& part, int distance) {
  std::array<double, 3> mine{part.ab, part.aa, part.bb};
  for (int step = 1; step <= distance; step *= 2) {
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

struct Level {
  ChunkRange kept;
  ChunkRange given;
};

}  // namespace

void adasum_allreduce(Mesh& mesh, std::span<std::byte> data, DType dtype) {
  RINGTUNE_CHECK(is_power_of_two(mesh.size()), "Adasum over ", mesh.size(), " members");
  RINGTUNE_CHECK(is_floating(dtype), "Adasum of ", name_of(dtype));
  if (mesh.size() == 1 || data.empty()) return;
  const std::size_t element = size_of(dtype);
  std::vector<std::byte> arrived(data.size() - data.size() / element / 2 * element);  // the larger half
  std::vector<Level> levels;
  ChunkRange held{0, data.size()};
  for (int distance = 1; distance < mesh.size(); distance *= 2) {
    const int peer = mesh.rank() ^ distance;
    const bool lower = mesh.rank() < peer;
    const std::size_t left = held.size / element / 2 * element;
    const ChunkRange low{held.begin, left};
    const ChunkRange high{held.begin + left, held.size - left};
    levels.push_back(lower ? Level{low, high} : Level{high, low});
    const auto [kept, given] = levels.back();
    const std::span<std::byte> own = data.subspan(kept.begin, kept.size);
    const OutgoingParcel out{peer, data.subspan(given.begin, given.size)};
    const IncomingParcel in{peer, std::span(arrived).first(kept.size)};
    exchange(mesh, {&out, 1}, {&in, 1}, kWhat);
    // The lower members hold a, the others b, on all of them in the same order.
    const std::byte* a = lower ? own.data() : arrived.data();
    const std::byte* b = lower ? arrived.data() : own.data();
    const DotProducts dots = sum_over_holders(mesh, dot_products(a, b, kept.size / element, dtype), distance);
    scaled_sum(own.data(), {a, factor_of(dots.ab, dots.aa), b, factor_of(dots.ab, dots.bb)}, kept.size / element,
               dtype);
    held = kept;
  }
  for (int distance = mesh.size() / 2; distance > 0; distance /= 2) {
    const auto [kept, given] = levels.back();
    levels.pop_back();
    const int peer = mesh.rank() ^ distance;
    const OutgoingParcel out{peer, data.subspan(kept.begin, kept.size)};
    const IncomingParcel in{peer, data.subspan(given.begin, given.size)};
    exchange(mesh, {&out, 1}, {&in, 1}, kWhat);
  }
}

}  // namespace ringtune
