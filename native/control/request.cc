#include "control/request.h"

#include "base/error.h"
#include "fusion/plan.h"

namespace ringtune {

std::size_t element_count(const Request& request) {
  std::size_t count = 1;
  for (const std::int64_t extent : request.shape) count *= static_cast<std::size_t>(extent);
  return count;
}

namespace {

constexpr std::uint8_t kOwnDType = 255;
// Added to the kind:
constexpr std::uint8_t kOnDevice = 128;  // place, data path and whole follow at the end
constexpr std::uint8_t kHasNone = 64;
constexpr std::uint8_t kHasSparse = 32;
static_assert(static_cast<std::uint8_t>(kLastCollectiveKind) < kHasSparse);

/// A peer's numbers must not overflow what is computed from them later.
void check_size(const Request& request) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
  auto left = kMostBytes / static_cast<std::int64_t>(size_of(request.dtype));
  for (const std::int64_t extent : request.shape) {
    if (extent == 0) return;
    left /= extent;
  }
  if (left == 0) throw Protocol("a peer submitted tensor '" + request.name + "' of more bytes than there are");
}

}  // namespace

std::size_t byte_count(const Request& request) { return element_count(request) * size_of(request.dtype); }

bool fusible(const Request& request) noexcept { return fusible(request.kind, request.op); }

DType wire_dtype(const Request& request) noexcept { return request.wire.value_or(request.dtype); }

std::size_t wire_byte_count(const Request& request) { return element_count(request) * size_of(wire_dtype(request)); }

bool may_travel_as(DType dtype, DType wire) noexcept {
  return is_floating(dtype) && dtype != wire && (wire == DType::kFloat16 || wire == DType::kBfloat16);
}

void add_variant(std::vector<Variant>& variants, const SharedRequest& request, const RankSet& ranks) {
  const auto same = [&](const Variant& v) { return v.request == request || *v.request == *request; };
  // The first and the last only: where every rank asks for something else, a search would cost ranks * ranks.
  if (!variants.empty() && same(variants.front())) {
    variants.front().ranks.insert(ranks);
  } else if (!variants.empty() && same(variants.back())) {
    variants.back().ranks.insert(ranks);
  } else {
    variants.push_back({request, ranks});
  }
}

std::string title_of(const Request& request) {
  std::string kind(name_of(request.kind));
  for (char& letter : kind) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return "'" + request.name + "' (" + kind + ")";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string rank_list(std::span<const int> ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

void write_request(ByteWriter& out, const Request& request) {
  out.string(request.name);
  out.u8(static_cast<std::uint8_t>(static_cast<unsigned>(request.kind) | (request.place == 0 ? 0U : kOnDevice) |
                                   (request.contribution == Contribution::kNone ? kHasNone : 0U) |
                                   (request.contribution == Contribution::kSparse ? kHasSparse : 0U)));
  out.u8(static_cast<std::uint8_t>(request.dtype));
  out.u8(static_cast<std::uint8_t>(request.op));
  out.i32(request.root);
  out.u32(request.process_set);
  out.f64(request.prescale);
  out.f64(request.postscale);
  out.string(request.group);
  out.u32(request.group_size);
  out.u32(static_cast<std::uint32_t>(request.shape.size()));
  for (const std::int64_t extent : request.shape) out.i64(extent);
  out.u32(static_cast<std::uint32_t>(request.members.size()));
  for (const std::int32_t rank : request.members) out.i32(rank);
  out.u32(request.subject);
  out.u8(request.wire ? static_cast<std::uint8_t>(*request.wire) : kOwnDType);
  out.i64(request.timeout_ns);
  if (request.place == 0) return;
  out.u8(request.place);
  out.u8(static_cast<std::uint8_t>(request.data_path));
  out.u32(static_cast<std::uint32_t>(request.whole.size()));
  for (const std::int64_t extent : request.whole) out.i64(extent);
}

namespace {

/// The length of a list of `item_bytes` each, which `what` names; never more than the message can hold.
std::uint32_t read_length(ByteReader& in, std::size_t item_bytes, const Request& request, const char* what) {
  const std::uint32_t count = in.u32();
  if (count > in.remaining() / item_bytes) {
    throw Protocol("a peer submitted tensor '" + request.name + "' with more " + what + " than its message holds");
  }
  return count;
}

std::int64_t read_extent(ByteReader& in, const Request& request) {
  const std::int64_t value = in.i64();
  if (value < 0) throw Protocol("a peer submitted tensor '" + request.name + "' with a negative extent");
  return value;
}

std::optional<DType> read_wire_dtype(ByteReader& in, const Request& request) {
  const std::uint8_t number = in.u8();
  if (number == kOwnDType) return std::nullopt;
  const DType wire = dtype_from_wire(number);
  if (request.kind != CollectiveKind::kAllreduce || !may_travel_as(request.dtype, wire)) {
    throw Protocol("a peer submitted tensor '" + request.name + "' of type " + std::string(name_of(request.dtype)) +
                   " to travel as " + std::string(name_of(wire)));
  }
  return wire;
}

void read_device(ByteReader& in, Request& request) {
  request.place = in.u8();
  if (request.place == 0) throw Protocol("a peer submitted tensor '" + request.name + "' on a GPU without a number");
  const std::uint8_t data_path = in.u8();
  if (data_path > static_cast<std::uint8_t>(kLastDataPath)) {
    throw Protocol("a peer submitted tensor '" + request.name + "' to take the unknown data path " +
                   std::to_string(data_path));
  }
  request.data_path = static_cast<DataPath>(data_path);
  const std::uint32_t dimensions = read_length(in, sizeof(std::int64_t), request, "dimensions");
  for (std::uint32_t i = 0; i < dimensions; ++i) request.whole.push_back(read_extent(in, request));
}

Contribution read_contribution(std::uint8_t head, const Request& request) {
  const bool none = (head & kHasNone) != 0;
  const bool sparse = (head & kHasSparse) != 0;
  if (none && sparse) throw Protocol("a peer submitted tensor '" + request.name + "' as missing and as sparse");
  if (none) return Contribution::kNone;
  return sparse ? Contribution::kSparse : Contribution::kDense;
}

std::int32_t read_member(ByteReader& in, const Request& request) {
  const std::int32_t rank = in.i32();
  if (rank < 0 || rank > kLargestRank) {
    throw Protocol("a peer submitted '" + request.name + "' for the rank " + std::to_string(rank));
  }
  return rank;
}

}  // namespace

Request read_request(ByteReader& in) {
  Request request;
  request.name = in.string();
  const std::uint8_t head = in.u8();
  const auto kind = static_cast<std::uint8_t>(head & ~(kOnDevice | kHasNone | kHasSparse));
  if (kind > static_cast<std::uint8_t>(kLastCollectiveKind)) {
    throw Protocol("a peer submitted tensor '" + request.name + "' with the unknown collective " +
                   std::to_string(kind));
  }
  request.kind = static_cast<CollectiveKind>(kind);
  request.contribution = read_contribution(head, request);
  request.dtype = dtype_from_wire(in.u8());
  const bool reduces = request.kind == CollectiveKind::kAllreduce || request.kind == CollectiveKind::kReducescatter;
  if (reduces && !is_reduced(request.dtype)) {
    throw Protocol("a peer submitted tensor '" + request.name + "' of type " + std::string(name_of(request.dtype)) +
                   " to be reduced");
  }
  request.op = reduce_op_from_wire(in.u8());
  request.root = in.i32();
  request.process_set = in.u32();
  request.prescale = in.f64();
  request.postscale = in.f64();
  request.group = in.string();
  request.group_size = in.u32();
  const std::uint32_t dimensions = read_length(in, sizeof(std::int64_t), request, "dimensions");
  for (std::uint32_t i = 0; i < dimensions; ++i) request.shape.push_back(read_extent(in, request));
  const std::uint32_t members = read_length(in, sizeof(std::int32_t), request, "members");
  for (std::uint32_t i = 0; i < members; ++i) request.members.push_back(read_member(in, request));
  request.subject = in.u32();
  request.wire = read_wire_dtype(in, request);
  request.timeout_ns = in.i64();
  if (request.timeout_ns < 0) throw Protocol("a peer submitted tensor '" + request.name + "' with a negative timeout");
  if ((head & kOnDevice) != 0) read_device(in, request);
  if (request.contribution != Contribution::kDense &&
      (request.kind != CollectiveKind::kAllreduce || element_count(request) != 0)) {
    throw Protocol("a peer submitted tensor '" + request.name + "' as a missing gradient that has elements");
  }
  check_size(request);
  return request;
}

}  // namespace ringtune
