// Rows of gathered and exchanged tensors: how many go to and come from each member, and what shape that gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/batch_path.h"

namespace ringtune {

/// How many bytes go to and come from each member, by position.
struct MemberBytes {
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
  [[nodiscard]] std::size_t all_received() const noexcept;
};
/// The bytes of an allgather. Sets the shape of the operation's result.
[[nodiscard]] MemberBytes agree_on_allgather(Operation& operation, const BatchContext& context);
/// The bytes of an alltoall. Sets the shape of the operation's result and the rows from each member. Only the senders
/// know how many rows come, so counts are exchanged ahead of the rows; a tensor whose splits change with every call can
/// still be negotiated by its number. Blocks; throws as the collectives.
[[nodiscard]] MemberBytes agree_on_alltoall(Operation& operation, const BatchContext& context);

/// Bytes of one row: of everything under one index of the first dimension.
[[nodiscard]] std::size_t row_bytes_of(const Request& request) noexcept;
/// Bytes of so many rows each.
[[nodiscard]] std::vector<std::size_t> bytes_of_rows(std::span<const std::int64_t> rows, std::size_t row_bytes);
/// Of an alltoall: equal shares where it has no splits.
void fill_in_splits(Operation& operation, int size);
/// Of an allgather or alltoall: so many rows come from each member, which gives the shape of the result.
void tell_rows(Operation& operation, std::span<const std::int64_t> rows);

}  // namespace ringtune
