#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include "control/request.h"

namespace ringtune {
namespace {

using Value = std::function<std::string(const Request&)>;
using ValueGroup = std::pair<std::string, RankSet>;

/// The distinct values of one property, each with the ranks that hold it, in order of first rank.
std::vector<ValueGroup> group_by_value(std::span<const Variant> variants, const Value& value) {
  std::vector<ValueGroup> groups;
  for (const Variant& variant : variants) {
    const std::string text = value(*variant.request);
    const auto same = [&](const ValueGroup& group) { return group.first == text; };
    auto it = std::find_if(groups.begin(), groups.end(), same);
    if (it == groups.end()) it = groups.insert(groups.end(), {text, {}});
    it->second.insert(variant.ranks);
  }
  std::sort(groups.begin(), groups.end(),
            [](const ValueGroup& a, const ValueGroup& b) { return a.second.first() < b.second.first(); });
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
  if (first.kind == CollectiveKind::kAddProcessSet) {
    list.push_back({"process sets", "Add the same process set on every rank.", [](const Request& r) {
                      return "process set [" + rank_list(std::vector<int>(r.members.begin(), r.members.end())) + "]";
                    }});
    return list;
  }
  if (first.kind == CollectiveKind::kRemoveProcessSet) {
    list.push_back({"process sets", "Remove the same process set on every rank.",
                    [](const Request& r) { return "process set " + std::to_string(r.subject); }});
    return list;
  }
  list.push_back({kind + " CPU/GPU device selection",
                  "Keep the tensor on the CPU of every rank, or on a GPU of every rank.",
                  [](const Request& r) { return std::string("device ") + (r.place == 0 ? "CPU" : "GPU"); }});
  list.push_back({"data types", "Submit the same dtype on every rank.",
                  [](const Request& r) { return "type " + std::string(name_of(r.dtype)); }});
  if (first.kind == CollectiveKind::kAllreduce || first.kind == CollectiveKind::kReducescatter) {
    list.push_back({"reduction operation", "Use the same op on every rank.",
                    [](const Request& r) { return "reduction op " + std::string(name_of(r.op)); }});
    list.push_back({"prescale and/or postscale factors", "Use the same factors on every rank.", [](const Request& r) {
                      return "factors " + number_text(r.prescale) + " and " + number_text(r.postscale);
                    }});
    list.push_back({"compression", "Use the same compression on every rank.",
                    [](const Request& r) { return std::string(name_of(wire_dtype(r))) + " on the wire"; }});
  }
  if (first.kind == CollectiveKind::kBroadcast) {
    list.push_back({"BROADCAST root ranks", "Name the same root on every rank.",
                    [](const Request& r) { return "root rank " + std::to_string(r.root); }});
  }
  const bool free_rows = first.kind == CollectiveKind::kAllgather || first.kind == CollectiveKind::kAlltoall;
  list.push_back({kind + " tensor shapes",
                  free_rows ? "Only the first dimension may differ." : "Submit the same shape on every rank.",
                  [free_rows](const Request& r) {
                    if (!free_rows) return "shape " + shape_text(r.whole.empty() ? r.shape : r.whole);
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

std::string_view text_of(DataPath data_path) noexcept {
  switch (data_path) {
    case DataPath::kNccl:
      return "by NCCL";
    case DataPath::kRing:
      return "by ringtune's ring";
    case DataPath::kHierarchical:
      return "by NCCL within hosts";
    case DataPath::kAcross:
      return "on across hosts";
    case DataPath::kNcclPacked:
      return "packed by NCCL";
    default:
      return "through the host";
  }
}

std::optional<Parting> find_parting(std::span<const Variant> variants) {
  bool several = false;  // GPUs of a rank: the ranks choose a communicator by the number of the GPU
  const auto data_path_of = [&several](const Request& r) {
    if (r.data_path == DataPath::kStaged) return std::string(text_of(r.data_path));
    several = several || r.place > 1;
    return std::string(text_of(r.data_path)) +
           (r.place > 1 ? " from GPU number " + std::to_string(r.place) + " of those used" : "");
  };
  const std::vector<ValueGroup> groups = group_by_value(variants, data_path_of);
  if (groups.size() < 2) return std::nullopt;
  std::string text = "tensor '" + variants.front().request->name + "' would go ";
  for (const auto& [data_path, ranks] : groups) {
    if (data_path != groups.front().first) text += ", and ";
    text += data_path + (ranks.count() > 1 ? " on ranks " : " on rank ") + rank_list(ranks.ranks());
  }
  const auto goes = [&](DataPath data_path) {
    return std::any_of(variants.begin(), variants.end(),
                       [data_path](const Variant& v) { return v.request->data_path == data_path; });
  };
  DataPath refused = DataPath::kRing;
  if (goes(DataPath::kNccl)) {
    refused = DataPath::kNccl;
  } else if (goes(DataPath::kNcclPacked)) {
    refused = DataPath::kNcclPacked;
  } else if (goes(DataPath::kHierarchical) || goes(DataPath::kAcross)) {
    refused = DataPath::kHierarchical;
  }
  text +=
      refused == DataPath::kRing
          ? ". The ring needs all of them: the same RINGTUNE_GPU_DATA_PATH, and NVRTC for its kernels on every rank."
          : ". NCCL needs all of them: the same RINGTUNE_GPU_DATA_PATH, NCCL on every host, and a GPU for each rank.";
  if (refused == DataPath::kNcclPacked)
    text += " What is packed also needs NVRTC for ringtune's kernels on every rank.";
  if (several) text += " Ranks with several GPUs must come to use them in the same order.";
  return Parting{refused, text};
}

std::optional<Uneven> find_uneven(std::span<const Variant> variants) {
  const auto text_of_contribution = [](const Request& r) {
    if (r.contribution == Contribution::kNone) return std::string("no gradient");
    return r.contribution == Contribution::kSparse ? std::string("a sparse gradient") : std::string("a dense gradient");
  };
  const std::vector<ValueGroup> groups = group_by_value(variants, text_of_contribution);
  if (groups.size() < 2) return std::nullopt;
  const bool sparse = std::any_of(variants.begin(), variants.end(),
                                  [](const Variant& v) { return v.request->contribution == Contribution::kSparse; });
  std::string text = "tensor '" + variants.front().request->name + "' has ";
  for (const auto& [what, ranks] : groups) {
    if (what != groups.front().first) text += ", and ";
    text += what + (ranks.count() > 1 ? " on ranks " : " on rank ") + rank_list(ranks.ranks());
  }
  return Uneven{sparse ? Contribution::kSparse : Contribution::kNone, text};
}

std::optional<std::string> find_mismatch(std::span<const Variant> variants) {
  if (variants.size() < 2) return std::nullopt;
  const auto earlier = [](const Variant& a, const Variant& b) { return a.ranks.first() < b.ranks.first(); };
  const Request& first = *std::min_element(variants.begin(), variants.end(), earlier)->request;
  for (const Property& property : properties_of(first)) {
    const std::vector<ValueGroup> groups = group_by_value(variants, property.value);
    if (groups.size() == 1) continue;
    std::ostringstream out;
    out << "Mismatched " << property.what << ": One rank had " << groups[0].first << ", but another rank had "
        << groups[1].first << ". Tensor '" << first.name << "': ";
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const RankSet& ranks = groups[i].second;
      out << (i > 0 ? "; " : "") << groups[i].first << (ranks.count() > 1 ? " on ranks " : " on rank ")
          << rank_list(ranks.ranks());
    }
    out << ". " << property.remedy;
    return out.str();
  }
  return std::nullopt;
}

}  // namespace ringtune
