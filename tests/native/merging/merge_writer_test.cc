#include "merging/merge_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "trace/span.h"

namespace ringtune {
namespace {

constexpr std::uint32_t kOverlapping = 3;  // negotiate and queue

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;
File temporary() { return {std::tmpfile(), &std::fclose}; }

SpanRow span(std::int64_t begin_ns, std::int64_t end_ns, Stage stage, std::int32_t rank = 0, std::int64_t batch = 0) {
  SpanRow row{};
  row.begin_ns = begin_ns;
  row.end_ns = end_ns;
  row.step = -1;
  row.rank = rank;
  row.batch = batch;
  row.stage = static_cast<std::uint8_t>(stage);
  return row;
}

/// Rows as columns.
struct SpanTable {
  std::vector<std::int64_t> begin_ns, end_ns, bytes, batch, step;
  std::vector<std::int32_t> rank, knobs_version, name, tensor, facts;
  std::vector<std::uint8_t> stage;

  explicit SpanTable(const std::vector<SpanRow>& rows) {
    for (const SpanRow& row : rows) {
      begin_ns.push_back(row.begin_ns);
      end_ns.push_back(row.end_ns);
      bytes.push_back(row.bytes);
      batch.push_back(row.batch);
      step.push_back(row.step);
      rank.push_back(row.rank);
      knobs_version.push_back(row.knobs_version);
      name.push_back(row.name);
      tensor.push_back(row.tensor);
      facts.push_back(row.facts);
      stage.push_back(row.stage);
    }
  }
  [[nodiscard]] SpanColumns columns() const {
    return {begin_ns, end_ns, bytes, batch, step, rank, knobs_version, name, tensor, facts, stage, {0, 40}};
  }
};

std::string merged(const std::vector<SpanRow>& rows, unsigned threads) {
  const SpanTable table(rows);
  const File target = temporary();
  std::vector<std::string> labels;
  for (int stage = 0; stage < 15; ++stage) labels.push_back("s" + std::to_string(stage));
  const SpanTexts texts{{"\"n\"", "\"BUS_BANDWIDTH\""}, {"\"\"", "\"t\""}, {"", "\"step_schedule\":1"}};
  MergeWriter writer({fileno(target.get()), 0}, table.columns(), MergedText(texts, labels), kOverlapping);
  while (writer.write_some(threads)) {
  }
  writer.write_arrows();
  std::string text(static_cast<std::size_t>(writer.target_end()), '\0');
  EXPECT_EQ(::pread(fileno(target.get()), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  return text;
}

TEST(MergeWriter, WritesEveryKindOfSpan) {
  SpanRow whole = span(1'500, 2'500, Stage::kCommunicate, 3, 7);
  whole.bytes = 12;
  whole.step = 2;
  whole.knobs_version = 4;
  whole.tensor = whole.facts = 1;
  SpanRow speed = span(4'000, 4'000, Stage::kCounter);
  speed.name = 1;
  speed.bytes = 10;
  SpanRow flight = span(5'000, 5'000, Stage::kCounter);
  flight.bytes = 11;
  flight.batch = 2;
  EXPECT_EQ(
      merged({span(7'000, 8'000, Stage::kCycle), whole, span(3'000, 3'001, Stage::kQueue), speed, flight,
              span(6'000, 6'000, Stage::kCycle)},
             1),
      R"({"name":"n","cat":"s3","ph":"X","pid":3,"tid":43,"ts":1.500,"dur":1.000,"args":{"tensor":"t","bytes":12,"step_schedule":1,"batch":7,"step":2,"knobs_version":4}},
{"name":"n","cat":"s1","ph":"b","pid":0,"tid":1,"ts":3.000,"id2":{"local":1},"args":{"bytes":0,"knobs_version":0}},
{"name":"n","cat":"s1","ph":"e","pid":0,"tid":1,"ts":3.001,"id2":{"local":1}},
{"name":"BUS_BANDWIDTH","cat":"s14","ph":"C","pid":0,"tid":14,"ts":4.000,"args":{"bytes_per_s":10}},
{"name":"n","cat":"s14","ph":"C","pid":0,"tid":14,"ts":5.000,"args":{"bytes":11,"operations":2}},
{"name":"n","cat":"s8","ph":"i","pid":0,"tid":8,"ts":6.000,"s":"p","args":{"knobs_version":0}},
{"name":"n","cat":"s8","ph":"X","pid":0,"tid":8,"ts":7.000,"dur":1.000,"args":{"bytes":0,"knobs_version":0}},
)");
}

TEST(MergeWriter, JoinsABatchOverTheRanks) {
  std::vector<SpanRow> rows;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    // The second span of a rank's batch has no arrow, nor has a batch of one rank (number 5).
    rows.push_back(span(3'000 - rank, 9'000, Stage::kCommunicate, rank, 6));
    rows.push_back(span(8'000, 9'000, Stage::kCommunicate, rank, 6));
    rows.push_back(span(10'000, 11'000, Stage::kCommunicate, rank, rank == 0 ? 5 : 0));
  }
  const std::string text = merged(rows, 2);
  EXPECT_EQ(text.substr(text.find(R"({"name":"batch")")),
            R"({"name":"batch","cat":"batch","ph":"s","id":1,"pid":2,"tid":3,"ts":2.998},
{"name":"batch","cat":"batch","ph":"t","id":1,"pid":1,"tid":3,"ts":2.999},
{"name":"batch","cat":"batch","ph":"f","bp":"e","id":1,"pid":0,"tid":3,"ts":3.000},
)");
}

TEST(MergeWriter, ThreadsWriteWhatOneWritesInOrder) {
  std::mt19937 random(5);
  std::vector<SpanRow> rows;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 200'000; ++i) {  // several blocks
      const std::int64_t begin_ns = i * 10 + static_cast<std::int64_t>(random() % 15'000);
      rows.push_back(span(begin_ns, begin_ns + random() % 50, static_cast<Stage>(random() % 6), rank, random() % 9));
    }
  }
  const std::string alone = merged(rows, 1);
  EXPECT_TRUE(alone == merged(rows, 4));
  EXPECT_GT(std::ranges::count(alone, '\n'), 600'000);
  const SpanTable table(rows);
  SpanOrder order(table.columns(), kOverlapping, 3);
  std::vector<SpanRow> found(rows.size() + 1);
  found.resize(order.next(found));
  ASSERT_EQ(found.size(), rows.size());
  EXPECT_TRUE(std::ranges::is_sorted(
      found, {}, [](const SpanRow& row) { return std::tuple(row.begin_ns, row.rank, row.stage, -row.end_ns); }));
}

TEST(SpanOrder, PairsWhatDoesNotNest) {
  const SpanTable table({span(1, 11, Stage::kWait), span(6, 21, Stage::kWait), span(6, 10, Stage::kWait),
                         span(31, 31, Stage::kWait), span(1, 11, Stage::kWait, 1), span(0, 1, Stage::kQueue, 1)});
  SpanOrder order(table.columns(), kOverlapping, 2);
  std::vector<SpanRow> found(10);
  found.resize(order.next(found));
  std::vector<std::tuple<std::int64_t, std::int64_t, int, std::int64_t>> rows;
  for (const SpanRow& row : found) rows.emplace_back(row.begin_ns, row.end_ns, row.rank, row.pair);
  EXPECT_EQ(rows, (decltype(rows){{0, 1, 1, 1},
                                  {1, 11, 0, 0},
                                  {1, 11, 1, 0},
                                  {6, 21, 0, 2},  // from 6 to 21 within 1 to 11
                                  {6, 10, 0, 0},
                                  {31, 31, 0, 0}}));
  EXPECT_EQ(order.pairs(), 2);
}

TEST(MergeWriter, AFileThatCannotBeWrittenIsAnError) {
  const SpanTable table(std::vector<SpanRow>(20'000, span(0, 1, Stage::kWait)));
  MergeWriter writer({-1, 0}, table.columns(),
                     MergedText({{"\"n\""}, {"\"\""}, {""}}, std::vector<std::string>(15, "s")), 0);
  EXPECT_THROW((void)writer.write_some(3), std::system_error);
}

}  // namespace
}  // namespace ringtune
