// What a part of a timeline holds about GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "trace/event_text.h"
#include "trace/json_reader.h"
#include "trace/record_reader.h"

namespace ringtune::testing_support {

struct Seen {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int64_t bytes;
  std::int64_t device;
  std::int64_t batch;
  std::string tensor;
  std::string algorithm;
};

/// The spans of a part by name, and the largest error that it tells of GPU 0's clock.
struct Part {
  explicit Part(const std::string& path) {
    const ReadPart part = read_records(read_file(path));
    for (const Span& span : part.spans) {
      if (span.stage == Stage::kCounter) {
        if (span.kind == static_cast<std::uint8_t>(Count::kBusBandwidth)) {
          speeds.push_back(static_cast<std::int64_t>(span.bytes));
        }
        continue;
      }
      if (is_head(span) || span.stage == Stage::kCycle) continue;
      std::string text;
      append_event_head(text, span, 0, json_quote(part.name(span)));
      const std::string_view algorithm =
          span.stage == Stage::kCommunicate && span.kind >> 4 != 0 ? algorithm_name(span.kind >> 4) : "";
      spans[text.substr(9, text.find('"', 9) - 9)].push_back(  // behind {"name":"
          {span.begin_ns, span.end_ns, static_cast<std::int64_t>(span.bytes), is_of_device(span.stage) ? span.peer : -1,
           span.batch_id, part.name(span), std::string(algorithm)});
    }
    for (const auto& [event, args] : part.events) {
      std::smatch found;
      const std::regex device(R"("device":0,"error_ns":(\d+))");
      if (part.name(event) == "DEVICE_CLOCK" && std::regex_search(args, found, device)) {
        error_ns = std::max<std::int64_t>(error_ns, std::stoll(found[1]));
      }
    }
  }
  std::map<std::string, std::vector<Seen>> spans;
  std::vector<std::int64_t> speeds;  // bytes a second
  std::int64_t error_ns = -1;
};

/// Between two looks at the host's clock.
struct Moment {
  template <typename Act>
  explicit Moment(const Act& act) : before_ns(now_ns()) {
    act();
    after_ns = now_ns();
  }
  std::int64_t before_ns;
  std::int64_t after_ns;
};

inline void expect_at(std::int64_t ns, const Moment& moment, std::int64_t error_ns, const char* what) {
  EXPECT_GE(ns, moment.before_ns - error_ns) << what;
  EXPECT_LE(ns, moment.after_ns + error_ns) << what;
}

}  // namespace ringtune::testing_support
