// The chart of a plan: its content, and that it is self-contained.
#include "copus/plan/plan_chart.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

TEST(PlanChart, DrawsALineForEachLayoutAndMarksTheFastest) {
  const std::string svg = to_svg(small_question({16, 32, 64, 128}), written_down_plan());
  EXPECT_EQ(count(svg, "class=\"line\""), 2);
  EXPECT_EQ(count(svg, "class=\"best\""), 3) << "one for each batch at which something fits";
  EXPECT_EQ(count(svg, "class=\"change\""), 1);
  EXPECT_THAT(svg, AllOf(HasSubstr(">d=2,t=4,p=1</text>"), HasSubstr(">d=8,t=1,p=1</text>"), HasSubstr(">128</text>")));
  EXPECT_THAT(svg, AllOf(HasSubstr("small on 8 x GPU"), HasSubstr("prefers-color-scheme: dark")));
}

// At batch 16 the two speeds are 2048 and 1638, at 64 they are 2730 and 2482. The lines cross at 0.623 of the way,
// which is 450.1 on the axis from 72 to 650 with three doublings.
TEST(PlanChart, TheChangeIsWhereTheLinesCross) {
  const std::string svg = to_svg(small_question({16, 32, 64, 128}), written_down_plan());
  const double ahead = 2048 - 2048 / 1.25, behind = 8192 / 3.0 - 8192 / 3.3;
  const double place = 72 + (650 - 72) * (2 * ahead / (ahead + behind)) / 3;
  char expected[64];
  std::snprintf(expected, sizeof expected, "class=\"change\" x1=\"%.1f\"", place);
  EXPECT_THAT(svg, HasSubstr(expected));
}

TEST(PlanChart, ALineIsInterruptedWhereItsLayoutDoesNotFit) {
  Plan plan = written_down_plan();
  plan.batches[1].layouts = {written_down(8, 1, 1, 32, 1.6)};  // d=2,t=4,p=1 only at 16 and 64
  const std::string svg = to_svg(small_question({16, 32, 64, 128}), plan);
  const size_t line = svg.find("class=\"line\"");
  const std::string path = svg.substr(line, svg.find("/>", line) - line);
  EXPECT_EQ(count(path, "M"), 2) << path;
  EXPECT_EQ(count(path, "L"), 0) << path;
}

TEST(PlanChart, ShowsNoMoreLinesThanThereAreColours) {
  Plan plan = written_down_plan();
  for (BatchPlan& batch : plan.batches) {
    for (int64_t t = 2; t <= 256 && !batch.layouts.empty(); t *= 2) {
      batch.layouts.push_back(written_down(1, t, 3, batch.global_batch, 20 + static_cast<double>(t)));
    }
  }
  EXPECT_EQ(count(to_svg(small_question({16, 32, 64, 128}), plan), "class=\"line\""), 6);
}

// With one layout at one batch there is no range of speeds; low speeds need decimals to be distinguished.
TEST(PlanChart, EqualAndSlowSpeedsHaveAnAxis) {
  Plan plan = written_down_plan();
  plan.batches = {{16, {written_down(8, 1, 1, 16, 1)}}, {32, {}}};
  for (const double speed : {1000.0, 1.0}) {
    plan.batches[0].layouts[0].tokens_per_second_per_gpu = speed;
    const std::string svg = to_svg(small_question({16, 32}), plan);
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  }
  plan.batches[0].layouts.push_back(written_down(2, 4, 1, 16, 1));
  plan.batches[0].layouts[1].tokens_per_second_per_gpu = 0.8;
  EXPECT_THAT(to_svg(small_question({16, 32}), plan), AllOf(HasSubstr(">0.85</text>"), HasSubstr(">0.90</text>")));
}

TEST(PlanChart, LabelsOfBatchesLeaveEachOtherRoom) {
  Plan plan;
  for (int64_t batch = 1; batch <= (int64_t{1} << 24); batch *= 2) {
    plan.batches.push_back({batch, {written_down(8, 1, 1, batch, static_cast<double>(batch))}});
  }
  const std::string svg = to_svg(small_question({1, 2}), plan);
  EXPECT_THAT(svg, HasSubstr(">16</text>"));
  // The axis is 578 units wide, and seven digits are wider than two of the 24 distances.
  EXPECT_FALSE(svg.find(">1048576</text>") != svg.npos && svg.find(">2097152</text>") != svg.npos);
  EXPECT_FALSE(svg.find(">2097152</text>") != svg.npos && svg.find(">4194304</text>") != svg.npos);
}

TEST(PlanChart, NamesAreEscaped) {
  PlanQuestion question = small_question({16, 64});
  question.cluster.device.name = "<b>&\"GPU\"";
  const std::string svg = to_svg(question, written_down_plan());
  EXPECT_THAT(svg, AllOf(HasSubstr("&lt;b&gt;&amp;&quot;GPU&quot;"), Not(HasSubstr("<b>"))));
}

nlohmann::json data_of_page(const std::string& page) {
  const std::string start = "id=\"data\">";
  const size_t begin = page.find(start) + start.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(PlanChart, ThePageStandsByItself) {
  const std::string page = to_html(small_question({16, 32, 64, 128}), written_down_plan(), 10);
  EXPECT_THAT(page, AllOf(HasSubstr("<summary>Global batch 64</summary>"), HasSubstr("default-src 'none'"),
                          HasSubstr("Between 16 and 64"), Not(HasSubstr("src="))));
  EXPECT_EQ(count(page, "<details class"), 3) << "of the batches at which something fits";
}

TEST(PlanChart, ThePageHoldsTheLinesAndHowSureTheyAre) {
  Plan plan = written_down_plan();
  plan.batches[0].layouts[0].relative_deviation = std::log(1.25);
  const nlohmann::json data = data_of_page(to_html(small_question({16, 32, 64, 128}), plan, 10));
  EXPECT_EQ(data.at("batches"), nlohmann::json({16, 32, 64, 128}));
  ASSERT_EQ(data.at("layouts").size(), 2U);
  EXPECT_EQ(data.at("layouts")[0].at("name"), "d=2,t=4,p=1");
  EXPECT_EQ(data.at("layouts")[0].at("speeds")[0], 2048);
  EXPECT_TRUE(data.at("layouts")[0].at("speeds")[1].is_null()) << "nothing fits at 32";
  EXPECT_EQ(data.at("fastest").at("batches"), nlohmann::json({16, 64, 128}));
  EXPECT_NEAR(data.at("fastest").at("low")[0].get<double>(), 2048 / 1.25, 1e-6);
  EXPECT_NEAR(data.at("fastest").at("high")[0].get<double>(), 2048 * 1.25, 1e-6);
  ASSERT_EQ(data.at("changes").size(), 1U);
  EXPECT_GT(data.at("changes")[0], 16);
  EXPECT_LT(data.at("changes")[0], 64);
}

}  // namespace
}  // namespace copus
