#include "collective/alltoall.h"

#include <cstring>
#include <numeric>

#include "base/check.h"
#include "collective/exchange.h"

namespace ringtune {
namespace {

/// Where each block begins.
std::vector<std::size_t> begins_of(std::span<const std::size_t> sizes) {
  std::vector<std::size_t> begins(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), std::size_t{0});
  return begins;
}

}  // namespace

std::vector<std::int64_t> exchange_counts(Mesh& mesh, std::span<const std::int64_t> counts) {
  const auto size = static_cast<std::size_t>(mesh.size());
  RINGTUNE_CHECK_EQ(counts.size(), size, "one count for each member");
  std::vector<std::int64_t> received(counts.begin(), counts.end());
  std::vector<std::size_t> bytes(size, sizeof(std::int64_t));
  alltoall(mesh, std::as_bytes(counts), bytes, std::as_writable_bytes(std::span(received)), bytes);
  return received;
}

void alltoall(Mesh& mesh, std::span<const std::byte> input, std::span<const std::size_t> send_bytes,
              std::span<std::byte> output, std::span<const std::size_t> receive_bytes) {
  const int size = mesh.size();
  const auto own = static_cast<std::size_t>(mesh.rank());
  RINGTUNE_CHECK_EQ(send_bytes.size(), static_cast<std::size_t>(size), "one block for each member");
  RINGTUNE_CHECK_EQ(receive_bytes.size(), static_cast<std::size_t>(size), "one block from each member");
  RINGTUNE_CHECK_EQ(send_bytes[own], receive_bytes[own], "what a member sends to itself");
  const std::vector<std::size_t> send_begins = begins_of(send_bytes);
  const std::vector<std::size_t> receive_begins = begins_of(receive_bytes);
  RINGTUNE_CHECK_LE(send_begins.back() + send_bytes.back(), input.size());
  RINGTUNE_CHECK_EQ(receive_begins.back() + receive_bytes.back(), output.size());
  std::vector<OutgoingParcel> outgoing;
  std::vector<IncomingParcel> incoming;
  // Each begins with its successor, so that not all go at the same member first.
  for (int step = 1; step < size; ++step) {
    const auto to = static_cast<std::size_t>((mesh.rank() + step) % size);
    const auto from = static_cast<std::size_t>((mesh.rank() + size - step) % size);
    if (send_bytes[to] > 0) outgoing.push_back({static_cast<int>(to), input.subspan(send_begins[to], send_bytes[to])});
    if (receive_bytes[from] > 0) {
      incoming.push_back({static_cast<int>(from), output.subspan(receive_begins[from], receive_bytes[from])});
    }
  }
  if (send_bytes[own] > 0) {
    std::memcpy(output.data() + receive_begins[own], input.data() + send_begins[own], send_bytes[own]);
  }
  exchange(mesh, outgoing, incoming, "alltoall");
}

}  // namespace ringtune
