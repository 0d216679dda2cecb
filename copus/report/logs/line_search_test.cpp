#include "copus/report/logs/line_search.h"

#include <charconv>
#include <random>
#include <vector>

#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

std::optional<int64_t> number_of(std::string_view line) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

class LineSearchTest : public TestDirectory {
 protected:
  std::filesystem::path path_ = directory_ / "lines";
};

TEST_F(LineSearchTest, FindsWhatALookAtEveryLineFinds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    std::vector<std::pair<int64_t, uint64_t>> places;  // number, and the offset of its line
    int64_t number = 0;
    for (uint64_t lines = random() % 20; lines > 0; --lines) {
      if (random() % 8 == 0) text += "no number\n";
      number += static_cast<int64_t>(1 + random() % 3);
      places.emplace_back(number, text.size());
      text += std::to_string(number) + std::string(random() % 3 == 0 ? random() % 9000 : random() % 9, 'x') + "\n";
    }
    if (random() % 2 == 0) text += std::to_string(number + 1);  // a line whose end is not written yet
    write_file_durably(path_, text);
    LineSearch search(path_);
    for (int64_t least = 0; least <= number + 2; ++least) {
      const auto expected = std::ranges::find_if(places, [&](const auto& place) { return place.first >= least; });
      auto found = search.line_from(search.first_at_least(least, number_of));
      while (found && !number_of(found->text)) found = search.line_from(found->end());
      ASSERT_EQ(found.has_value(), expected != places.end()) << least << " in " << text;
      if (found) {
        EXPECT_EQ(found->begin, expected->second);
        EXPECT_EQ(number_of(found->text), expected->first);
      }
    }
  }
}

TEST_F(LineSearchTest, ReadsLittleOfAnyFile) {
  for (const int64_t count : {1000, 100000}) {
    std::string text;
    for (int64_t number = 1; number <= count; ++number) text += std::to_string(number) + std::string(90, '.') + "\n";
    write_file_durably(path_, text);
    LineSearch search(path_);
    const auto found = search.line_from(search.first_at_least(count / 3, number_of));
    ASSERT_TRUE(found);
    EXPECT_EQ(number_of(found->text), count / 3);
    EXPECT_LT(search.bytes_read(), 2 * (27 + 1) * uint64_t{4096}) << "pieces of 4 KiB, as often as 10 MB can be halved";
  }
}

}  // namespace
}  // namespace copus
