// What a part of a timeline holds about GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "merging/event_line.h"
#include "trace/json_reader.h"

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
    const std::string text = testing_support::read_file(path);
    for (const std::string& line : testing_support::events_of(text)) {
      EventLine event;
      if (parse_event(line, event) && event.has(Field::kDuration)) {
        const std::int64_t begin_ns = event.number(Field::kMoment, 0);
        spans[std::string(event.text(Field::kName))].push_back(
            {begin_ns, begin_ns + event.number(Field::kDuration, 0), event.number(Field::kBytes, -1),
             event.number(Field::kDevice, -1), event.number(Field::kBatch, 0), std::string(event.text(Field::kTensor)),
             std::string(event.text(Field::kAlgorithm))});
      }
      if (parse_event(line, event) && event.text(Field::kName) == "BUS_BANDWIDTH") {
        speeds.push_back(event.number(Field::kSpeed, -1));
      }
      std::smatch found;
      const std::regex clock(R"("DEVICE_CLOCK".*"device":0,"error_ns":(\d+))");
      if (std::regex_search(line, found, clock)) error_ns = std::max<std::int64_t>(error_ns, std::stoll(found[1]));
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
