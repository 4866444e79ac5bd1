#include "runtime/rows.h"

#include <numeric>

#include "base/check.h"
#include "collective/alltoall.h"

namespace ringtune {

std::size_t row_bytes_of(const Request& request) noexcept {
  std::size_t bytes = size_of(request.dtype);
  for (std::size_t i = 1; i < request.shape.size(); ++i) bytes *= static_cast<std::size_t>(request.shape[i]);
  return bytes;
}

std::vector<std::size_t> bytes_of_rows(std::span<const std::int64_t> rows, std::size_t row_bytes) {
  std::vector<std::size_t> bytes;
  bytes.reserve(rows.size());
  for (const std::int64_t count : rows) bytes.push_back(static_cast<std::size_t>(count) * row_bytes);
  return bytes;
}

void fill_in_splits(Operation& operation, int size) {
  if (!operation.splits.empty()) return;
  operation.splits.assign(static_cast<std::size_t>(size), operation.request().shape.front() / size);
}

void tell_rows(Operation& operation, std::span<const std::int64_t> rows) {
  operation.gathered_shape = operation.request().shape;
  if (operation.gathered_shape.empty()) operation.gathered_shape.push_back(0);
  operation.gathered_shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::size_t MemberBytes::all_received() const noexcept {
  return std::accumulate(received.begin(), received.end(), std::size_t{0});
}

MemberBytes agree_on_allgather(Operation& operation, const BatchContext& context) {
  const Request& request = operation.request();
  RINGTUNE_CHECK_EQ(context.rows.size(), static_cast<std::size_t>(context.communicator.size()));
  const std::size_t row_bytes = row_bytes_of(request);
  MemberBytes bytes;
  bytes.received = bytes_of_rows(context.rows, row_bytes);
  bytes.sent.assign(context.rows.size(), operation.prepared->bytes);
  tell_rows(operation, context.rows);
  return bytes;
}

MemberBytes agree_on_alltoall(Operation& operation, const BatchContext& context) {
  Mesh& mesh = context.communicator.mesh();
  const std::size_t row_bytes = row_bytes_of(operation.request());
  fill_in_splits(operation, mesh.size());
  MemberBytes bytes;
  bytes.sent = bytes_of_rows(operation.splits, row_bytes);
  operation.splits = exchange_counts(mesh, operation.splits);
  bytes.received = bytes_of_rows(operation.splits, row_bytes);
  tell_rows(operation, operation.splits);
  return bytes;
}

}  // namespace ringtune
