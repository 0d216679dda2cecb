#include "copus/config/settings.h"

#include <gmock/gmock.h>

#include <cmath>

#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string settings_error(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return user_error([&] { read_settings(toml, "run.toml", overrides); });
}

const Setting& get(const Setting& root, const char* section, const char* key) { return *root.find(section)->find(key); }

TEST(Settings, KnowWhereTheyWereWritten) {
  const Setting root = read_settings("[train]\nseed = 3\n\n[data]\ntrain = ['a', 'b']\n", "run.toml",
                                     {"train.seed=4", "log.interval=5"});
  EXPECT_EQ(get(root, "data", "train").origin, "run.toml:5");
  EXPECT_EQ(get(root, "data", "train").children[1].origin, "run.toml:5");
  EXPECT_EQ(get(root, "train", "seed").origin, "--set train.seed=4");
  EXPECT_EQ(std::get<int64_t>(get(root, "train", "seed").value), 4);
  EXPECT_EQ(std::get<int64_t>(get(root, "log", "interval").value), 5);
  EXPECT_EQ(root.find("nothing"), nullptr);
}

TEST(Settings, OverridesAreTomlOrElseStrings) {
  const auto value = [](const std::string& text) {
    return get(read_settings("", "run.toml", {"data.train=" + text}), "data", "train");
  };
  EXPECT_EQ(std::get<std::string>(value("a/b.txt").value), "a/b.txt");
  EXPECT_EQ(std::get<std::string>(value("'a b'").value), "a b");
  EXPECT_EQ(std::get<std::string>(value("").value), "");
  EXPECT_EQ(std::get<std::string>(value("3m").value), "3m");
  EXPECT_EQ(std::get<std::string>(value("a=b").value), "a=b");
  EXPECT_EQ(std::get<std::string>(value("1\nother = 2").value), "1\nother = 2") << "no way to smuggle in a second key";
  EXPECT_EQ(std::get<double>(value("1e-3").value), 1e-3);
  EXPECT_EQ(std::get<bool>(value("true").value), true);
  EXPECT_EQ(value("[1, 2]").children.size(), 2u);
  EXPECT_EQ(value("{ path = 'x' }").children.front().name, "path");
}

TEST(Settings, TheLastOverrideCounts) {
  const Setting root = read_settings("", "run.toml", {"train.seed=1", "train.seed=2"});
  EXPECT_EQ(std::get<int64_t>(get(root, "train", "seed").value), 2);
}

// A key of many parts makes nested tables, which are converted and deleted recursively.
TEST(Settings, RefusesKeysOfManyParts) {
  std::string key = "a";
  for (int i = 0; i < 200000; ++i) key += ".a";
  EXPECT_THAT(settings_error("[train]\nseed = 1\n" + key + " = 1\n"),
              AllOf(HasSubstr("run.toml:3:"), HasSubstr("more than 8 parts")));
  EXPECT_THAT(settings_error("[" + key + "]\n"), HasSubstr("run.toml:1: a key"));
  EXPECT_THAT(settings_error("x = { " + key + " = 1 }"), HasSubstr("run.toml:1: a key"));
  EXPECT_THAT(settings_error("x = { \"a\" . 'b'.\"c\".d.e.f.g.h.i = 1 }"), HasSubstr("run.toml:1: a key"));
  EXPECT_THAT(settings_error("x = 'a.b' # no \"string\n" + key + " = 1"), HasSubstr("run.toml:2: a key"));
  EXPECT_THAT(settings_error("x = \"\"\"\n\\\"\"\"\"\" # it has ended\n[a]\n" + key + " = 1"),
              HasSubstr("run.toml:4: a key"));

  // Overrides cannot bring in such keys either.
  const Setting root = read_settings("", "run.toml", {"data.train={ " + key + " = 1 }"});
  EXPECT_EQ(get(root, "data", "train").kind, Setting::Kind::text);
}

TEST(Settings, TakesDotsThatJoinNoKeys) {
  const std::string toml =
      "list = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5] # a.b.c.d.e.f.g.h.i.j\n"
      "text = 'a.b.c.d.e.f.g.h.i.j'\n"
      "long = '''\n'a'.b.c.d\n.e.f.g.h.i.j'''''\n"
      "a.b.c.d.e.f.g.h = \"\\\"a.b.c.d.e.f.g.h.i.j\"\n";
  const Setting root = read_settings(toml, "run.toml", {"data.train=../../a.b.c.d.e.f.g.h.i.j"});
  EXPECT_EQ(root.find("list")->children.size(), 9u);
  EXPECT_EQ(std::get<std::string>(root.find("long")->value), "'a'.b.c.d\n.e.f.g.h.i.j''");
  EXPECT_EQ(std::get<std::string>(get(root, "data", "train").value), "../../a.b.c.d.e.f.g.h.i.j");
}

TEST(Settings, MalformedTomlNamesLineAndColumn) {
  EXPECT_THAT(settings_error("[train]\nseed = \n"), AllOf(HasSubstr("run.toml:2:"), HasSubstr("not valid TOML")));
  EXPECT_THAT(settings_error("[train]\nseed == 3\n"), HasSubstr("run.toml:2:7"));
  EXPECT_THAT(settings_error("[train\n"), HasSubstr("run.toml:1:"));
  EXPECT_THAT(settings_error("[train]\nseed = 1\nseed = 2\n"), AllOf(HasSubstr("run.toml:3:"), HasSubstr("seed")));
  EXPECT_THAT(settings_error("a = \"\xff\"\n"), HasSubstr("not valid TOML"));
  EXPECT_THAT(settings_error("seed = 99999999999999999999"), HasSubstr("run.toml:1:"));
  EXPECT_THAT(settings_error("train = corpus.txt"),
              HasSubstr("expected [section], and key = value with texts in quotes"));
  EXPECT_THAT(settings_error("\n{\"train\": 1}"), HasSubstr("this looks like JSON"));
}

TEST(Settings, MalformedOverridesAreQuoted) {
  for (const char* text : {"seed", "seed=3", "train.seed", ".seed=3", "train.=3", "model.rope_scaling.factor=3", ""}) {
    EXPECT_THAT(settings_error("", {text}), AllOf(HasSubstr(concat("--set ", text)), HasSubstr("section.key=value")));
  }
  EXPECT_THAT(settings_error("train = 3", {"train.seed=3"}), AllOf(HasSubstr("run.toml:1"), HasSubstr("[train]")));
  EXPECT_THAT(settings_error("", {"data.train=\xff"}), HasSubstr("UTF-8"));
}

TEST(Settings, WrittenValuesReadBackEqual) {
  std::string every_character;
  for (int character = 1; character < 128; ++character) every_character += static_cast<char>(character);
  for (const std::string& text : {std::string(), std::string("\0", 1), every_character,
                                  std::string("é\u2028\U0001F600"), std::string("\"\"\""), std::string("'\\'")}) {
    const Setting root = read_settings(concat("[a]\nb = ", quote(text)), "", {});
    EXPECT_EQ(std::get<std::string>(get(root, "a", "b").value), text);
  }
  for (const double number : {0.0, -1.0, 3.0, 0.1, 1e-8, 1e300, 5e-324, 1.7976931348623157e308, 123456789.125, 1e22}) {
    const Setting root = read_settings(concat("[a]\nb = ", write_number(number)), "", {});
    EXPECT_EQ(std::get<double>(get(root, "a", "b").value), number) << write_number(number);
  }
}

}  // namespace
}  // namespace copus
