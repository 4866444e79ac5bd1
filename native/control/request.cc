#include "control/request.h"

#include <functional>
#include <map>
#include <sstream>

#include "base/error.h"

namespace ringtune {

std::size_t element_count(const Request& request) {
  std::size_t count = 1;
  for (const std::int64_t extent : request.shape) count *= static_cast<std::size_t>(extent);
  return count;
}

std::size_t byte_count(const Request& request) { return element_count(request) * size_of(request.dtype); }

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
  out.u8(static_cast<std::uint8_t>(request.kind));
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
}

Request read_request(ByteReader& in) {
  Request request;
  request.name = in.string();
  const std::uint8_t kind = in.u8();
  if (kind > static_cast<std::uint8_t>(CollectiveKind::kReducescatter)) {
    throw Protocol("a peer announced tensor '" + request.name + "' with the unknown collective " +
                   std::to_string(kind));
  }
  request.kind = static_cast<CollectiveKind>(kind);
  request.dtype = dtype_from_wire(in.u8());
  request.op = reduce_op_from_wire(in.u8());
  request.root = in.i32();
  request.process_set = in.u32();
  request.prescale = in.f64();
  request.postscale = in.f64();
  request.group = in.string();
  request.group_size = in.u32();
  const std::uint32_t dimensions = in.u32();
  if (dimensions > in.remaining() / sizeof(std::int64_t)) {
    throw Protocol("a peer announced tensor '" + request.name + "' with more dimensions than its message holds");
  }
  request.shape.reserve(dimensions);
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const std::int64_t extent = in.i64();
    if (extent < 0) throw Protocol("a peer announced tensor '" + request.name + "' with a negative extent");
    request.shape.push_back(extent);
  }
  return request;
}

namespace {

using Value = std::function<std::string(const Request&)>;

/// The distinct values of one property, each with the ranks that hold it, in order of first rank.
std::vector<std::pair<std::string, std::vector<int>>> group_by_value(std::span<const Request* const> by_rank,
                                                                     const Value& value) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (int rank = 0; rank < static_cast<int>(by_rank.size()); ++rank) {
    const std::string text = value(*by_rank[static_cast<std::size_t>(rank)]);
    auto it = groups.begin();
    while (it != groups.end() && it->first != text) ++it;
    if (it == groups.end()) it = groups.insert(groups.end(), {text, {}});
    it->second.push_back(rank);
  }
  return groups;
}

struct Property {
  std::string what;  // "data types"
  std::string remedy;
  Value value;
};

std::string number_text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

/// What has to agree for a request like `first`. The head of each message is Horovod's wording, which scripts match.
std::vector<Property> properties_of(const Request& first) {
  const std::string kind(name_of(first.kind));
  std::vector<Property> list;
  list.push_back({"operations", "Call the same collective on every rank.",
                  [](const Request& r) { return "an " + std::string(name_of(r.kind)); }});
  if (first.kind == CollectiveKind::kBarrier) return list;
  list.push_back({"data types", "Submit the same dtype on every rank.",
                  [](const Request& r) { return "type " + std::string(name_of(r.dtype)); }});
  if (first.kind == CollectiveKind::kAllreduce || first.kind == CollectiveKind::kReducescatter) {
    list.push_back({"reduction operation", "Use the same op on every rank.",
                    [](const Request& r) { return "reduction op " + std::string(name_of(r.op)); }});
    list.push_back({"prescale and/or postscale factors", "Use the same factors on every rank.", [](const Request& r) {
                      return "factors " + number_text(r.prescale) + " and " + number_text(r.postscale);
                    }});
  }
  if (first.kind == CollectiveKind::kBroadcast) {
    list.push_back({"BROADCAST root ranks", "Name the same root on every rank.",
                    [](const Request& r) { return "root rank " + std::to_string(r.root); }});
  }
  const bool free_rows = first.kind == CollectiveKind::kAllgather || first.kind == CollectiveKind::kAlltoall;
  list.push_back({kind + " tensor shapes",
                  free_rows ? "Only the first dimension may differ." : "Submit the same shape on every rank.",
                  [free_rows](const Request& r) {
                    if (!free_rows) return "shape " + shape_text(r.shape);
                    std::string text = "shape [*";
                    for (std::size_t i = 1; i < r.shape.size(); ++i) text += ", " + std::to_string(r.shape[i]);
                    return text + (r.shape.empty() ? "] (a scalar)" : "]");
                  }});
  list.push_back({"groups", "Submit the same group of tensors on every rank.", [](const Request& r) {
                    return r.group_size == 0 ? std::string("no group")
                                             : "group '" + r.group + "' of " + std::to_string(r.group_size);
                  }});
  return list;
}

}  // namespace

std::optional<std::string> find_mismatch(std::span<const Request* const> by_rank) {
  const Request& first = *by_rank.front();
  for (const Property& property : properties_of(first)) {
    const auto groups = group_by_value(by_rank, property.value);
    if (groups.size() == 1) continue;
    std::ostringstream out;
    out << "Mismatched " << property.what << ": One rank had " << groups[0].first << ", but another rank had "
        << groups[1].first << ". Tensor '" << first.name << "': ";
    for (std::size_t i = 0; i < groups.size(); ++i) {
      out << (i > 0 ? "; " : "") << groups[i].first << (groups[i].second.size() > 1 ? " on ranks " : " on rank ")
          << rank_list(groups[i].second);
    }
    out << ". " << property.remedy;
    return out.str();
  }
  return std::nullopt;
}

}  // namespace ringtune
