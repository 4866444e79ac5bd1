// What one rank asks for, and whether several ranks ask for the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "collective/kind.h"
#include "control/rank_set.h"

namespace ringtune {

/// How the bytes of a tensor on a GPU travel. All ranks take the same path, or the coordinator tells them to take
/// another.
enum class DataPath : std::uint8_t {
  kStaged = 0,  // through the host; also: it is on the host anyway
  kNccl = 1,
  kRing = 2,          // ringtune's own, between GPUs of one host
  kHierarchical = 3,  // by NCCL within hosts, through these across: the part before its bytes cross
  kAcross = 4,        // and the part from there on, an operation of its own on what each rank has by then
  kNcclPacked = 5,    // what NCCL knows only once our kernels have packed it
};
inline constexpr DataPath kLastDataPath = DataPath::kNcclPacked;
[[nodiscard]] std::string_view text_of(DataPath data_path) noexcept;  // "by NCCL"

/// The kind of gradient that a rank has. A rank without a dense one submits an empty allreduce under its name with this
/// kind. Ranks with the same kind run it; otherwise it fails on all of them with SomeAbsent or SomeSparse, which says
/// how to submit it again.
enum class Contribution : std::uint8_t { kDense = 0, kNone = 1, kSparse = 2 };

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
  std::vector<std::int32_t> members;  // add_process_set: ascending
  std::uint32_t subject = 0;          // remove_process_set: the set
  std::optional<DType> wire = {};     // allreduce of a floating dtype: travels as this 16-bit one; empty = as it is
  std::int64_t timeout_ns = 0;        // longest wait for ranks that do not come (control/stall.h); 0 = as in the job
  /// 0: host memory; else a GPU, numbered from 1 in the order in which its rank came to use them. Ranks compare only
  /// whether it is one.
  std::uint8_t place = 0;
  DataPath data_path = DataPath::kStaged;
  std::vector<std::int64_t> whole = {};  // the first part of a tensor that goes in parts: that tensor's shape
  Contribution contribution = Contribution::kDense;  // allreduce only
  friend bool operator==(const Request&, const Request&) = default;
};

/// PersistentCollective operations share one request, so that passing it on costs no copy and a look at the pointer
/// often suffices.
using SharedRequest = std::shared_ptr<const Request>;

/// What some ranks ask for, all alike. Never null.
struct Variant {
  SharedRequest request;
  RankSet ranks;
  friend bool operator==(const Variant& a, const Variant& b) {
    return a.ranks == b.ranks && (a.request == b.request || *a.request == *b.request);
  }
};

/// Adds what `ranks` ask for; joins them to a variant that asks for the same if it is at hand.
void add_variant(std::vector<Variant>& variants, const SharedRequest& request, const RankSet& ranks);

[[nodiscard]] std::size_t element_count(const Request& request);
[[nodiscard]] std::size_t byte_count(const Request& request);  // of the tensor in memory
/// An allreduce, but for Adasum: several can be one batch, and their bytes can travel with the votes of a schedule's
/// round.
[[nodiscard]] bool fusible(const Request& request) noexcept;
[[nodiscard]] DType wire_dtype(const Request& request) noexcept;
[[nodiscard]] std::size_t wire_byte_count(const Request& request);  // of the tensor as it travels
/// Whether a tensor of `dtype` may travel as `wire`.
[[nodiscard]] bool may_travel_as(DType dtype, DType wire) noexcept;
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);  // "[2, 3]"
[[nodiscard]] std::string title_of(const Request& request);                 // "'grad.3' (allreduce)"

void write_request(ByteWriter& out, const Request& request);
[[nodiscard]] Request read_request(ByteReader& in);  // throws Protocol

/// Compares what the ranks sent. Empty when they agree; else a message that names the tensor, the first thing that
/// differs, and every value with the ranks that sent it.
[[nodiscard]] std::optional<std::string> find_mismatch(std::span<const Variant> variants);

/// How a gradient is to be submitted again that only some ranks have, or that some ranks have as a sparse tensor.
struct Uneven {
  Contribution contribution;  // of all ranks: neutral elements where there is none (kNone), or rows (kSparse)
  std::string message;        // which ranks have what
};
/// None when all ranks have the same of it.
[[nodiscard]] std::optional<Uneven> find_uneven(std::span<const Variant> variants);

/// Ranks that have sent the same request, but with different data paths.
struct Parting {
  DataPath refused;     // the best of the paths that only some can take: NCCL, NCCL within hosts, the ring
  std::string message;  // who goes which, and what to do
};
/// None when they agree.
[[nodiscard]] std::optional<Parting> find_parting(std::span<const Variant> variants);

/// "0, 2-5, 9"
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

}  // namespace ringtune
