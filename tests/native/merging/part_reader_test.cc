#include "merging/part_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace ringtune {
namespace {

const std::vector<std::string> kLabels{"negotiate", "queue", "copy_in", "communicate", "copy_out",
                                       "wait",      "step",  "range",   "cycle"};

using Row = std::tuple<int, std::int64_t, std::int64_t, std::string, std::int64_t>;  // stage, begin, end, tensor, bytes

std::vector<Row> rows_of(PartReader& reader) {
  std::vector<Row> rows;
  for (const SpanRecord& record : reader.records()) {
    rows.emplace_back(record.stage, record.begin_ns, record.end_ns, reader.tensors().texts()[record.tensor],
                      record.bytes);
  }
  return rows;
}

std::string wait_line(const std::string& moment, const std::string& arguments = R"("bytes":3)") {
  return R"({"name":"WAIT","cat":"wait","ph":"X","pid":1,"tid":5,"ts":)" + moment + R"(,"dur":0.5,"args":{)" +
         arguments + "}}";
}

const std::string kList =
    R"({"name":"ringtune_tensors","ph":"M","pid":1,"tid":0,"args":{"id":4,"names":["a","b\"]"],"bytes":[8,16]}})";

TEST(PartReader, TakesKeysInAnyOrderAndPiecesOfAnySize) {
  const std::string text = "[\n" + wait_line("1.25", R"("step":2,"bytes":3,"tensor":"t","knobs_version":1)") + ",\n" +
                           R"({"args":{},"dur":1,"ts":-2,"pid":1,"cat":"wait","name":"WAIT","tid":0,"ph":"X"})" +
                           "\n]\n";
  for (std::size_t piece = 1; piece < text.size(); ++piece) {
    PartReader reader(kLabels);
    for (std::size_t at = 0; at < text.size(); at += piece) reader.feed(std::string_view(text).substr(at, piece));
    reader.finish();
    EXPECT_EQ(rows_of(reader), (std::vector<Row>{{5, 1250, 1750, "t", 3}, {5, -2000, -1000, "", 0}}));
    EXPECT_EQ(reader.rest(), "[\n]\n");
    EXPECT_FALSE(reader.odd());
  }
}

TEST(PartReader, TakesKeysOfEarlierVersions) {
  PartReader reader(kLabels);
  reader.feed(wait_line("1", R"("bytes":3,"plan":1,"peer":2,"step":5,"epoch":4)") + ",\n" +
              wait_line("2", R"("bytes":3,"step_schedule":1,"peer":2,"step":5,"knobs_version":4)") + "\n");
  ASSERT_EQ(reader.records().size(), 2U);
  for (const SpanRecord& record : reader.records()) {
    EXPECT_EQ(record.knobs_version, 4);
    EXPECT_EQ(reader.facts().texts()[record.facts], R"("step_schedule":1,"peer":2)");
  }
}

TEST(PartReader, MakesTheTensorsOfABatch) {
  PartReader reader(kLabels);
  reader.feed(kList + ",\n");
  reader.feed(R"({"name":"NEGOTIATE_ALLREDUCE","cat":"negotiate","ph":"X","pid":1,"tid":0,"ts":1.000,"dur":2.000,)"
              R"("args":{"tensors":4,"submitted":[0,5000],"queued_ns":10,"step":0,"knobs_version":1}})"
              "\n");
  reader.feed(R"({"name":"MEMCPY","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":4.000,"dur":0.030,)"
              R"("args":{"tensors":4,"copied":[10,20],"step":0,"knobs_version":1}})"
              "\n");
  EXPECT_EQ(rows_of(reader), (std::vector<Row>{{0, 1000, 3000, "a", 8},
                                               {1, 3000, 3010, "a", 8},
                                               {0, 6000, 6000, "b\\\"]", 16},  // submitted after the agreement
                                               {1, 6000, 6010, "b\\\"]", 16},
                                               {2, 4000, 4010, "a", 8},
                                               {2, 4010, 4030, "b\\\"]", 16}}));
  EXPECT_EQ(reader.rest(), kList + ",\n");
}

class PartReaderRest : public ::testing::TestWithParam<std::string> {};
TEST_P(PartReaderRest, IsLeftAsItStood) {
  PartReader reader(kLabels);
  reader.feed(kList + "\n" + GetParam() + "\n");
  EXPECT_EQ(reader.pending(), 0U);
  EXPECT_EQ(reader.rest(), kList + "\n" + GetParam() + "\n");
  EXPECT_FALSE(reader.odd());
}
INSTANTIATE_TEST_SUITE_P(
    Lines, PartReaderRest,
    ::testing::Values(
        "", "[", "{", "{}", wait_line("1e3"), wait_line("1.0001"), wait_line("01"), wait_line("1."),
        wait_line("2200000000000001"), wait_line("1", R"("bytes":1.5)"), wait_line("1", R"("bytes":"3")"),
        wait_line("1", R"("bytes":1234567890123456789)"), wait_line("1", R"("bytes":3,"bytes":3)"),
        wait_line("1", R"("epoch":1,"knobs_version":1)"), wait_line("1", R"("bytes":3,"more":3)"),
        wait_line("1", R"("knobs_version":2147483648)"), wait_line("1", R"("bytes": 3)"),
        wait_line("1", R"("tensor":"\")"), wait_line("1") + "}", wait_line("1") + "," + wait_line("1"),
        wait_line("1", R"("submitted":[1])"), wait_line("1", R"("tensors":4,"submitted":[0,1])"),
        R"({"name":"x","cat":"wait","ph":"X","pid":1,"tid":5,"ts":1,"args":{}})",
        R"({"name":"x","cat":"what","ph":"X","pid":1,"tid":5,"ts":1,"dur":1,"args":{}})",
        R"({"name":"x","cat":"","ph":"X","pid":1,"tid":5,"ts":1,"dur":1,"args":{}})",
        R"({"name":"x","cat":"wait","ph":"X","pid":1,"tid":5,"ts":1,"dur":-1,"args":{}})",
        R"({"name":"x","cat":"wait","ph":"X","pid":4294967296,"tid":5,"ts":1,"dur":1,"args":{}})",
        R"({"name":"x","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":1,"dur":1,"args":{"tensors":4,"copied":[1]}})",
        R"({"name":"x","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":1,"dur":1,"args":{"tensors":4,"copied":[1,2,3]}})",
        R"({"name":"x","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":1,"dur":1,"args":{"tensors":4,"copied":[1,-2]}})",
        R"({"name":"x","cat":"copy_in","ph":"X","pid":1,"tid":2,"ts":1,"dur":1,"args":{"tensors":5,"copied":[1,2]}})",
        R"({"name":"x","cat":"copy_in","ph":"X","pid":2,"tid":2,"ts":1,"dur":1,"args":{"tensors":4,"copied":[1,2]}})"));

std::string half(char phase, int identity, const std::string& moment) {
  return R"({"name":"QUEUE","cat":"queue","ph":")" + std::string(1, phase) + R"(","pid":1,"tid":1,"ts":)" + moment +
         R"(,"id2":{"local":)" + std::to_string(identity) + (phase == 'b' ? R"(},"args":{"bytes":3}},)" : "}},") + "\n";
}

TEST(PartReader, JoinsPairsThatStandTogether) {
  PartReader reader(kLabels);
  reader.feed(half('b', 7, "1") + half('e', 7, "2") + half('b', 8, "1") + half('e', 8, "1"));
  reader.finish();
  EXPECT_EQ(rows_of(reader), (std::vector<Row>{{1, 1000, 2000, "", 3}, {1, 1000, 1000, "", 3}}));
  EXPECT_EQ(reader.pairs(), 2U);
  EXPECT_FALSE(reader.odd());
}

class PartReaderOdd : public ::testing::TestWithParam<std::string> {};
TEST_P(PartReaderOdd, IsSaid) {
  PartReader reader(kLabels);
  reader.feed(GetParam());
  reader.finish();
  EXPECT_TRUE(reader.odd());
}
INSTANTIATE_TEST_SUITE_P(Texts, PartReaderOdd,
                         ::testing::Values(half('b', 7, "1"), half('e', 7, "1"), half('b', 7, "1") + half('e', 8, "2"),
                                           half('b', 7, "2") + half('e', 7, "1"),
                                           half('b', 7, "1") + half('b', 8, "1") + half('e', 8, "2"),
                                           kList + "\n" + kList + "\n"));

TEST(PartReader, CountsRowsAnewAfterEveryBlock) {
  PartReader reader(kLabels);
  for (int block = 0; block < 3; ++block) {
    reader.feed(wait_line("1") + "\n" + wait_line("2") + "\n");
    ASSERT_EQ(reader.pending(), 2U);
    EXPECT_EQ(reader.records()[0].row, 0U);
    EXPECT_EQ(reader.records()[1].row, 1U);
    reader.clear();
  }
}

TEST(TextCodes, GivesEveryTextOneCode) {
  TextCodes codes;
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 5000; ++i) EXPECT_EQ(codes.of("layer" + std::to_string(i)), i);
  }
  EXPECT_EQ(codes.texts().size(), 5000U);
}

}  // namespace
}  // namespace ringtune
