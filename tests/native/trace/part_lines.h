// What a tracer has written, as lines.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "json_reader.h"
#include "trace/sink.h"
#include "trace/tracer.h"

namespace ringtune::testing_support {

inline const PartHeader kHeader{1, 4, "node", "job"};
inline constexpr std::size_t kHeaderEvents = 2 + 2 * kStageCount + 1;

/// The lines of a part after its header.
inline std::vector<std::string> lines_of(const std::function<void(Tracer&)>& record, TracerOptions options = {}) {
  const TemporaryFile file;
  Tracer tracer(options);
  tracer.start(make_chrome_sink(file.path(), kHeader));
  record(tracer);
  tracer.stop();
  const auto events = events_of(read_file(file.path()));
  return {events.begin() + kHeaderEvents, events.end()};
}

}  // namespace ringtune::testing_support
