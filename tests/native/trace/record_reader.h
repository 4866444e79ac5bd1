// Reads parts in the tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trace/batch_slots.h"
#include "trace/part_layout.h"

namespace ringtune::testing_support {

/// What a file says, by the simplest of readers.
struct ReadPart {
  PartFileHeader header{};
  std::vector<Span> spans;  // as they stand; heads of batches among them
  std::map<std::uint32_t, std::string> texts;
  std::map<std::uint32_t, std::string> lists;  // 12 bytes a tensor
  std::vector<std::string> words;              // of each batch
  std::vector<std::pair<Span, std::string>> events;
  std::vector<Span> ends;

  [[nodiscard]] std::string name(const Span& span) const {
    const auto found = texts.find(span.name_id);
    return found == texts.end() ? "" : found->second;
  }
};

inline ReadPart read_records(const std::string& bytes) {
  ReadPart part;
  const std::size_t count = bytes.size() / sizeof(Span);
  if (count < 2) return part;
  std::memcpy(&part.header, bytes.data(), sizeof(part.header));
  std::vector<Span> slots(count);
  std::memcpy(slots.data(), bytes.data(), count * sizeof(Span));
  for (std::size_t at = 2; at < count;) {
    const Span head = slots[at++];
    std::string words;
    for (; at < count && slots[at].stage == Stage::kWords; ++at) {
      words.append(reinterpret_cast<const char*>(&slots[at]), kWordBytes);
    }
    if (head.stage == kTextRecord) {
      part.texts[head.name_id] = words.substr(0, head.bytes);
    } else if (head.stage == kTensorsRecord) {
      part.lists[head.name_id] = words.substr(0, 12 * std::size_t{head.batch_id});
    } else if (head.stage == kEventRecord) {
      part.events.emplace_back(head, words.substr(0, head.bytes));
    } else if (head.stage == kEndRecord) {
      part.ends.push_back(head);
    } else {
      EXPECT_NE(head.stage, Stage::kWords);
      if (is_head(head)) part.words.push_back(words);
      part.spans.push_back(head);
    }
  }
  return part;
}

}  // namespace ringtune::testing_support
