#include "copus/base/text/json_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace copus {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(JsonText, ReadsWhatIsJson) {
  EXPECT_EQ(parse_json(R"({"a": [1, 2.5, "three", null, true]})").at("a").size(), 5u);
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\": NaN}", "1e999", "nul", "\"\xff\"", "{}{}"}) {
    EXPECT_TRUE(parse_json(text).is_discarded()) << text;
  }
}

TEST(JsonText, RefusesDeepNestingBeforeAValueIsMade) {
  EXPECT_EQ(parse_json(nested(deepest_json)).size(), 1u);
  EXPECT_TRUE(parse_json(nested(deepest_json + 1)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1'000'000)).is_discarded());
  std::string objects;
  for (int i = 0; i < deepest_json + 1; ++i) objects += "{\"a\":";
  EXPECT_TRUE(nests_too_deeply(objects));
}

// Brackets within strings do not count as nesting, whatever precedes them.
TEST(JsonText, DoesNotCountWhatStandsInStrings) {
  const std::string brackets(1000, '[');
  EXPECT_EQ(parse_json("[\"" + brackets + "\"]").at(0), brackets);
  EXPECT_EQ(parse_json(R"(["\")" + brackets + "\"]").at(0), "\"" + brackets);
  EXPECT_EQ(parse_json(R"(["\\", ")" + brackets + "\"]").at(1), brackets);
  EXPECT_TRUE(nests_too_deeply(R"(["\\", )" + brackets));
  EXPECT_FALSE(nests_too_deeply(R"(["\\\", )" + brackets));
}

// Many siblings do not make a value deep.
TEST(JsonText, CountsDepthAndNotNumber) {
  std::string list = "[[]";
  for (int i = 0; i < 1000; ++i) list += ",[{}]";
  EXPECT_EQ(parse_json(list + "]").size(), 1001u);
}

TEST(JsonText, FindsANameThatAnObjectHasTwice) {
  EXPECT_EQ(repeated_name(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 1}]})"), std::nullopt);
  EXPECT_EQ(repeated_name(R"({"a": 1, "b": 2, "a": 3})"), "a");
  EXPECT_EQ(repeated_name(R"({"a": {"b": 1, "c": [], "b": 1}})"), "b");
  EXPECT_EQ(repeated_name(R"([{"a": 1}, {"\u0061": 1, "a": 2}])"), "a");
  EXPECT_EQ(repeated_name(R"({"": 1, "": 2})"), "");
  EXPECT_EQ(repeated_name(R"({"a": 1, "a": )"), "a");
  for (const char* text : {"", "{", "{\"a\": 1, ", "nul", "1e999"})
    EXPECT_EQ(repeated_name(text), std::nullopt) << text;
}

TEST(JsonText, TellsWhetherANameIsRepeated) {
  for (const char* text : {R"({"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 1}]})", R"({"a:": ":", "\":": "\\"})", "[]",
                           "1", R"([{"": {}}, {"": []}])"}) {
    EXPECT_FALSE(repeats_names(text, parse_json(text))) << text;
  }
  for (const char* text :
       {R"({"a": 1, "b": 2, "a": 3})", R"({"a": {"b": 1, "c": [], "b": 1}})", R"([{"a": 1}, {"\u0061": 1, "a": 2}])",
        R"({"": 1, "": 2})", R"({"a": {"b": 1, "c": 2}, "a": {}})", R"({"a": {}, "a": {"b": 1, "c": 2}})"}) {
    EXPECT_TRUE(repeats_names(text, parse_json(text))) << text;
  }
}

TEST(JsonText, TellsIntegersThatFit) {
  EXPECT_EQ(integer_of(parse_json("9223372036854775807")), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(integer_of(parse_json("-9223372036854775808")), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(integer_of(parse_json("0")), 0);
  for (const char* text : {"9223372036854775808", "18446744073709551615", "1e3", "1.0", "true", "\"1\"", "null", "x"}) {
    EXPECT_EQ(integer_of(parse_json(text)), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace copus
