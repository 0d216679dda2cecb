#include "copus/report/html_report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/report/run_log.h"
#include "copus/report/run_summary.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::HasSubstr;
using testing::Not;

class HtmlReportTest : public TestDirectory {
 protected:
  HtmlReportTest() { std::filesystem::create_directory(run_dir_); }

  void write_steps(int64_t count) {
    RunLog log(run_dir_);
    for (int64_t step = 1; step <= count; ++step) {
      StepRecord record;
      record.step = step;
      record.consumed_tokens = 100 * step;
      record.elapsed_seconds = 0.5 * static_cast<double>(step);
      record.loss = step == spike_step ? 50 : 2 + std::sin(static_cast<double>(step));
      if (step == nan_step) record.loss = std::numeric_limits<double>::quiet_NaN();
      if (step % 1000 == 0) record.held_out_loss = 1.25;
      log.append(record);
    }
  }

  std::string page() {
    write_html_report(run_dir_);
    return read_text_file(run_dir_ / "report.html");
  }

  static nlohmann::json data(const std::string& page) {
    const std::string start = "<script type=\"application/json\" id=\"data\">";
    const size_t begin = page.find(start) + start.size();
    return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }

  static constexpr int64_t spike_step = 5001;
  static constexpr int64_t nan_step = 5003;
  std::filesystem::path run_dir_ = directory_ / "my-run";
};

TEST_F(HtmlReportTest, EmptyRun) {
  write_steps(0);
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("<h1>my-run</h1>"));
  EXPECT_THAT(html, HasSubstr("not evaluated"));
  EXPECT_EQ(data(html).at("loss").size(), 0U);
}

TEST_F(HtmlReportTest, OneStep) {
  write_steps(1);
  const auto rows = data(page()).at("loss");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0][0], 1);
  EXPECT_EQ(rows[0][1], 100);
  EXPECT_EQ(rows[0][2], 0.5);
  EXPECT_NEAR(rows[0][3].get<double>(), 2 + std::sin(1), 1e-5);
  EXPECT_EQ(rows[0][3], rows[0][4]);
}

TEST_F(HtmlReportTest, LongRunIsDecimatedAndKeepsItsEndsAndSpikes) {
  write_steps(20'000);
  const auto curves = data(page());
  const auto& loss = curves.at("loss");
  EXPECT_LE(loss.size(), 2000U);
  EXPECT_GE(loss.size(), 1900U);
  EXPECT_EQ(loss.front()[0], 1);
  EXPECT_EQ(loss.back()[0], 20'000);
  bool has_spike = false;
  int64_t previous = 0;
  for (const auto& row : loss) {
    EXPECT_GT(row[0].get<int64_t>(), previous) << "in order, none twice";
    previous = row[0].get<int64_t>();
    EXPECT_NE(previous, nan_step);
    has_spike |= row[3] == 50;
  }
  EXPECT_TRUE(has_spike);
  EXPECT_EQ(curves.at("held_out_loss").size(), 20U);
}

TEST_F(HtmlReportTest, SmoothedCurveDoesNotLag) {
  RunLog log(run_dir_);
  for (int64_t step = 1; step <= 501; ++step) {
    StepRecord record;
    record.step = step;
    record.loss = 10 - 0.01 * static_cast<double>(step);
    log.append(record);
  }
  const auto curves = data(page());
  for (const auto& row : curves.at("loss")) {
    // The smoothed line follows a straight one, except near the ends, which have neighbours on one side alone.
    const double tolerance = row[0] > 100 && row[0] < 400 ? 1e-5 : 0.06;
    EXPECT_NEAR(row[4].get<double>(), row[3].get<double>(), tolerance) << row;
  }
}

TEST_F(HtmlReportTest, NoiseScaleHasItsIntervalAndTheBatchesBesideIt) {
  {
    RunLog log(run_dir_);
    for (int64_t step = 1; step <= 3; ++step) {
      StepRecord record;
      record.step = step;
      record.consumed_tokens = 100 * step;
      record.elapsed_seconds = 0.5 * static_cast<double>(step);
      record.global_batch = 8 * step;
      record.noise_scale_low = step >= 2 ? 20 : 0;
      if (step == 3) {
        record.noise_scale = 31.25;
        record.noise_scale_high = 50;
        record.critical_batch = 62.5;
      }
      log.append(record);
    }
  }
  EXPECT_EQ(data(page()).at("noise_scale"), nlohmann::json::parse(R"([
    [2, 200, 1.0, null, 20.0, null, null, 16],
    [3, 300, 1.5, 31.25, 20.0, 50.0, 62.5, 24]])"));
}

TEST_F(HtmlReportTest, NoiseScaleOfALongRunIsDecimated) {
  {
    RunLog log(run_dir_);
    for (int64_t step = 1; step <= 10'000; ++step) {
      StepRecord record;
      record.step = step;
      record.noise_scale_low = 2 + std::sin(static_cast<double>(step));
      if (step > 5000) record.noise_scale = 5 + std::sin(static_cast<double>(step));
      log.append(record);
    }
  }
  const auto rows = data(page()).at("noise_scale");
  EXPECT_LE(rows.size(), 2000U);
  EXPECT_GE(rows.size(), 1900U);
  EXPECT_EQ(rows.front()[0], 1);
  EXPECT_EQ(rows.back()[0], 10'000);
}

TEST_F(HtmlReportTest, WithoutNoiseScaleThereIsNothingToDraw) {
  write_steps(3);
  EXPECT_EQ(data(page()).at("noise_scale").size(), 0U);
}

TEST_F(HtmlReportTest, TilesComeFromTheSummary) {
  write_steps(3);
  RunSummary summary;
  summary.held_out_loss = 1.6321;
  summary.steps = 1234;
  summary.consumed_tokens = 10'157'000;
  summary.train_seconds = 125;
  summary.tokens_per_second = 45'310;
  summary.relayouts = 1;
  summary.batch_changes = 2;
  summary.relayout_pause_seconds = {0.25, 0.5};
  summary.skipped_steps = 2;
  summary.parameters = 1'926'400;
  summary.ended = "time limit";
  write_summary(run_dir_, summary);
  const std::string html = page();
  for (const char* text : {"1.6321", "perplexity 5.11", "1234", "2 skipped", "10.2 M", "2 min 05 s", "45.3 k",
                           "1 re-layout<", "2 batch changes, 0.75 s paused", "1.9 M parameters", "time limit"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
}

TEST_F(HtmlReportTest, RunWithoutSummaryShowsWhereItIs) {
  write_steps(1000);
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("not ended"));
  EXPECT_THAT(html, HasSubstr("<div class=\"value\">1000</div>"));
  EXPECT_THAT(html, HasSubstr("1.2500"));
  EXPECT_THAT(html, HasSubstr("8 min 20 s"));
}

TEST_F(HtmlReportTest, WhatComesFromFilesIsEscaped) {
  run_dir_ = directory_ / "<b>&{{tiles}}";
  std::filesystem::create_directory(run_dir_);
  write_steps(1);
  RunSummary summary;
  summary.ended = "</p><script>alert(1)</script>";
  write_summary(run_dir_, summary);
  write_file_durably(run_dir_ / "config.toml", "path = \"</pre><script>alert(2)</script> 'x' & {{data}}\"\n");
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("<h1>&lt;b&gt;&amp;{{tiles}}</h1>"));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html,
              HasSubstr("path = &quot;&lt;/pre&gt;&lt;script&gt;alert(2)&lt;/script&gt; &#39;x&#39; &amp; {{data}}"));
}

TEST_F(HtmlReportTest, PageIsSelfContained) {
  write_steps(2);
  const std::string html = page();
  for (const char* text : {"src=", "<link", "@import", "url(http"}) EXPECT_THAT(html, Not(HasSubstr(text)));
}

TEST_F(HtmlReportTest, NotARunDirectory) {
  try {
    write_html_report(directory_);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("run.jsonl"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "report.html"));
}

}  // namespace
}  // namespace copus
