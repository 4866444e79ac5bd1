#include "trace/json.h"

#include <gtest/gtest.h>

#include "trace/json_checker.h"
#include "trace/sink.h"

namespace ringtune {
namespace {

using testing_support::is_json_object;

TEST(TraceJson, QuotesWhatJsonForbids) {
  EXPECT_EQ(json_quote("a\"b\\c\n\r\t\x01\x7f"), "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\"");
  EXPECT_EQ(json_quote(std::string_view("\0", 1)), "\"\\u0000\"");
  EXPECT_EQ(json_quote("größe/层/🙂"), "\"größe/层/🙂\"");
}

// Overlong, surrogate, above U+10FFFF, cut short, stray continuation, bytes that never occur.
class TraceJsonInvalid : public ::testing::TestWithParam<const char*> {};
TEST_P(TraceJsonInvalid, Utf8BecomesTheReplacementCharacter) {
  EXPECT_EQ(utf8_length(GetParam()), 0U);
  const std::string quoted = json_quote(GetParam());
  EXPECT_NE(quoted.find("\xEF\xBF\xBD"), std::string::npos);
  EXPECT_TRUE(is_json_object("{\"name\":" + quoted + "}"));
}
INSTANTIATE_TEST_SUITE_P(Bytes, TraceJsonInvalid,
                         ::testing::Values("\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe5\xb1",
                                           "\x80", "\xff"));

class TraceJsonObject : public ::testing::TestWithParam<const char*> {};
TEST_P(TraceJsonObject, IsAccepted) { EXPECT_TRUE(is_json_object(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Texts, TraceJsonObject,
                         ::testing::Values("{}", " { } ", R"({"a":[1,-0.5e+3,true,false,null,"x\u00e9\n",{}],"b":0})",
                                           "{\"a\" :\n[ ]}"));

class TraceJsonNoObject : public ::testing::TestWithParam<const char*> {};
TEST_P(TraceJsonNoObject, IsRefused) { EXPECT_FALSE(is_json_object(GetParam())); }
INSTANTIATE_TEST_SUITE_P(Texts, TraceJsonNoObject,
                         ::testing::Values("", "[]", "1", "{", "{}}", "{\"a\"}", "{\"a\":}", "{a:1}", "{\"a\":1,}",
                                           "{\"a\":01}", "{\"a\":.5}", "{\"a\":1.}", "{\"a\":nan}", "{\"a\":\"\x01\"}",
                                           "{\"a\":\"\\x\"}", "{\"a\":\"\\u12g4\"}", "{\"a\":\"\xff\"}", "{'a':1}"));

TEST(TraceJson, DepthIsBounded) {
  EXPECT_FALSE(is_json_object("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}"));
}

}  // namespace
}  // namespace ringtune
