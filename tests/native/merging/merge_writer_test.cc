#include "merging/merge_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::uint32_t kOverlapping = 3;  // negotiate and queue

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;
File temporary() { return {std::tmpfile(), &std::fclose}; }

SpanRecord span(std::int64_t begin_ns, std::int64_t end_ns, Stage stage, std::int32_t rank = 0,
                std::int64_t batch = 0) {
  SpanRecord record{};
  record.begin_ns = begin_ns;
  record.end_ns = end_ns;
  record.step = -1;
  record.rank = rank;
  record.batch = batch;
  record.stage = static_cast<std::uint8_t>(stage);
  return record;
}

/// Blocks of a part each, sorted and in a file.
struct Blocks {
  File file = temporary();
  std::vector<RecordRun> runs;
  std::int64_t count = 0;

  void add(std::vector<SpanRecord> block, std::uint32_t part, std::int64_t first_row = 0, std::int64_t shift_ns = 0) {
    for (std::size_t i = 0; i < block.size(); ++i) block[i].row = i & (kMostRows - 1);
    sort_records(block);
    const auto size = block.size() * sizeof(SpanRecord);
    const auto offset = count * static_cast<std::int64_t>(sizeof(SpanRecord));
    ASSERT_EQ(::pwrite(fileno(file.get()), block.data(), size, offset), static_cast<ssize_t>(size));
    const auto records = static_cast<std::int64_t>(block.size());
    runs.push_back({count, records, first_row, block.empty() ? 0 : block[0].begin_ns + shift_ns, shift_ns, part});
    count += records;
  }

  /// Merging leaves holes in the file.
  [[nodiscard]] Blocks copy() const {
    Blocks other;
    std::string bytes(static_cast<std::size_t>(count) * sizeof(SpanRecord), '\0');
    EXPECT_EQ(::pread(fileno(file.get()), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(::pwrite(fileno(other.file.get()), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    other.runs = runs;
    other.count = count;
    return other;
  }

  [[nodiscard]] std::string merged(std::uint32_t parts, unsigned threads) const {
    const File target = temporary();
    std::vector<std::string> labels;
    for (int stage = 0; stage < 15; ++stage) labels.push_back("s" + std::to_string(stage));
    const PartTexts texts{{"\"n\"", "\"BUS_BANDWIDTH\""}, {"\"\"", "\"t\""}, {"", "\"step_schedule\":1"}};
    MergeWriter writer({fileno(file.get()), fileno(target.get()), 0}, runs,
                       MergedText(std::vector<PartTexts>(parts, texts), labels), parts, kOverlapping);
    while (writer.write_some(threads)) {
    }
    writer.write_arrows(100);
    std::string text(static_cast<std::size_t>(writer.target_end()), '\0');
    EXPECT_EQ(::pread(fileno(target.get()), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }
};

TEST(MergeWriter, WritesEveryKindOfSpan) {
  Blocks blocks;
  SpanRecord whole = span(1'500, 2'500, Stage::kCommunicate, 3, 7);
  whole.bytes = 12;
  whole.step = 2;
  whole.knobs_version = 4;
  whole.tensor = whole.facts = 1;
  SpanRecord speed = span(4'000, 4'000, Stage::kCounter);
  speed.name = 1;
  speed.bytes = 10;
  SpanRecord flight = span(5'000, 5'000, Stage::kCounter);
  flight.bytes = 11;
  flight.batch = 2;
  blocks.add({whole, span(3'000, 3'001, Stage::kQueue), speed, flight, span(6'000, 6'000, Stage::kCycle),
              span(7'000, 8'000, Stage::kCycle)},
             0);
  EXPECT_EQ(
      blocks.merged(1, 1),
      R"({"name":"n","cat":"s3","ph":"X","pid":3,"tid":3,"ts":1.500,"dur":1.000,"args":{"tensor":"t","bytes":12,"step_schedule":1,"batch":7,"step":2,"knobs_version":4}},
{"name":"n","cat":"s1","ph":"b","pid":0,"tid":1,"ts":3.000,"id2":{"local":2},"args":{"bytes":0,"knobs_version":0}},
{"name":"n","cat":"s1","ph":"e","pid":0,"tid":1,"ts":3.001,"id2":{"local":2}},
{"name":"BUS_BANDWIDTH","cat":"s14","ph":"C","pid":0,"tid":14,"ts":4.000,"args":{"bytes_per_s":10}},
{"name":"n","cat":"s14","ph":"C","pid":0,"tid":14,"ts":5.000,"args":{"bytes":11,"operations":2}},
{"name":"n","cat":"s8","ph":"i","pid":0,"tid":8,"ts":6.000,"s":"p","args":{"knobs_version":0}},
{"name":"n","cat":"s8","ph":"X","pid":0,"tid":8,"ts":7.000,"dur":1.000,"args":{"bytes":0,"knobs_version":0}},
)");
}

TEST(MergeWriter, JoinsABatchOverTheRanks) {
  Blocks blocks;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    // The second span of a rank's batch has no arrow, nor has a batch of one rank (number 5).
    blocks.add(
        {span(3'000 - rank, 9'000, Stage::kCommunicate, rank, 6), span(8'000, 9'000, Stage::kCommunicate, rank, 6),
         span(10'000, 11'000, Stage::kCommunicate, rank, rank == 0 ? 5 : 0)},
        static_cast<std::uint32_t>(rank));
  }
  const std::string text = blocks.merged(3, 2);
  EXPECT_EQ(text.substr(text.find(R"({"name":"batch")")),
            R"({"name":"batch","cat":"batch","ph":"s","id":102,"pid":2,"tid":3,"ts":2.998},
{"name":"batch","cat":"batch","ph":"t","id":102,"pid":1,"tid":3,"ts":2.999},
{"name":"batch","cat":"batch","ph":"f","bp":"e","id":102,"pid":0,"tid":3,"ts":3.000},
)");
}

TEST(MergeWriter, ThreadsWriteWhatOneWrites) {
  std::mt19937 random(5);
  Blocks blocks;
  constexpr std::uint32_t kParts = 3;
  for (std::uint32_t part = 0; part < kParts; ++part) {
    for (int block = 0; block < 8; ++block) {
      std::vector<SpanRecord> some;
      for (int i = 0; i < 2'000; ++i) {
        const std::int64_t begin_ns = block * 10'000 + static_cast<std::int64_t>(random() % 15'000);
        some.push_back(span(begin_ns, begin_ns + random() % 50, static_cast<Stage>(random() % 6),
                            static_cast<std::int32_t>(part), random() % 9));
      }
      blocks.add(std::move(some), part, block * 2'000, part * 100);
    }
  }
  Blocks same = blocks.copy();
  std::ranges::reverse(same.runs);
  const std::string alone = blocks.merged(kParts, 1);
  EXPECT_TRUE(alone == same.merged(kParts, 4));
  EXPECT_EQ(std::ranges::count(alone, '\n') > 48'000, true);
}

TEST(RecordMerge, GivesRecordsInOrderAndPairsWhatDoesNotNest) {
  Blocks blocks;
  blocks.add(
      {span(0, 10, Stage::kWait), span(5, 20, Stage::kWait), span(5, 9, Stage::kWait), span(30, 30, Stage::kWait)}, 0,
      0, 1);
  blocks.add({span(1, 11, Stage::kWait, 1), span(0, 1, Stage::kQueue, 1)}, 1);
  RecordMerge merge(fileno(blocks.file.get()), blocks.runs, 2, kOverlapping);
  std::vector<PlacedRecord> found(10);
  found.resize(merge.next(found));
  std::vector<std::tuple<std::int64_t, std::int64_t, int, bool>> rows;
  for (const PlacedRecord& placed : found) {
    rows.emplace_back(placed.record.begin_ns, placed.place, placed.record.rank, placed.paired);
  }
  EXPECT_EQ(rows, (decltype(rows){{0, 4, 1, true},
                                  {1, 1, 0, false},
                                  {1, 2, 1, false},
                                  {6, 3, 0, true},  // from 6 to 21 within 1 to 11
                                  {6, 5, 0, false},
                                  {31, 7, 0, false}}));
}

TEST(MergeWriter, AFileThatCannotBeWrittenIsAnError) {
  Blocks blocks;
  blocks.add(std::vector<SpanRecord>(20'000, span(0, 1, Stage::kWait)), 0);
  MergeWriter writer({fileno(blocks.file.get()), -1, 0}, blocks.runs,
                     MergedText({PartTexts{{"\"n\""}, {"\"\""}, {""}}}, std::vector<std::string>(15, "s")), 1, 0);
  EXPECT_THROW((void)writer.write_some(3), std::system_error);
}

}  // namespace
}  // namespace ringtune
