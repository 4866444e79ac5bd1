// What one rank asks for, and whether several ranks ask for the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "collective/kind.h"

namespace ringtune {

/// A collective on one tensor. Two equal requests are interchangeable: equality is what the response cache keys on.
struct Request {
  std::string name;  // with the operation's prefix, e.g. "allreduce.layer1.weight"
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;  // broadcast only
  std::uint32_t process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string group;             // tensors of one group run only when all members are ready
  std::uint32_t group_size = 0;  // 0 = no group
  std::vector<std::int64_t> shape;
  friend bool operator==(const Request&, const Request&) = default;
};

/// Repeated operations share one request, so that passing it on costs no copy and a look at the pointer often suffices.
using SharedRequest = std::shared_ptr<const Request>;

[[nodiscard]] std::size_t element_count(const Request& request);
[[nodiscard]] std::size_t byte_count(const Request& request);
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);  // "[2, 3]"

void write_request(ByteWriter& out, const Request& request);
[[nodiscard]] Request read_request(ByteReader& in);  // throws Protocol

/// Compares what the ranks sent (index = rank; none is null). Empty when they agree; else a message that names the
/// tensor, the first thing that differs, and every value with the ranks that sent it.
[[nodiscard]] std::optional<std::string> find_mismatch(std::span<const Request* const> by_rank);

/// "0, 2-5, 9"
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

}  // namespace ringtune
