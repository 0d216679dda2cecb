#include "copus/report/drawn/html_report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "copus/base/error.h"
#include "copus/report/drawn/comparison.h"
#include "copus/report/files/run_summary.h"
#include "copus/report/logs/decision_log.h"
#include "copus/report/logs/run_log.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class HtmlReportTest : public TestDirectory {
 protected:
  void write_steps(int64_t count) { write_steps(run_dir_, count); }

  static void write_steps(const std::filesystem::path& directory, int64_t count) {
    std::filesystem::create_directories(directory);
    RunLog log(directory);
    for (int64_t step = 1; step <= count; ++step) {
      StepRecord record;
      record.step = step;
      record.consumed_tokens = 100 * step;
      record.elapsed_seconds = 0.5 * static_cast<double>(step);
      record.loss = 2 + std::sin(static_cast<double>(step));
      if (step % 1000 == 0) record.held_out_loss = 1.25;
      if (step == 2) record.switch_seconds = 0.75;
      log.append(record);
    }
  }

  std::string page() {
    write_html_report(run_dir_);
    return read_text_file(run_dir_ / "report.html");
  }

  static nlohmann::json data(const std::string& page) {
    const std::string start = "id=\"data\">";
    const size_t begin = page.find(start) + start.size();
    return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }

  // The curves of a page's only run.
  static nlohmann::json curves(const std::string& page) { return data(page).at("runs").at(0).at("curves"); }

  std::filesystem::path run_dir_ = directory_ / "my-run";
};

TEST_F(HtmlReportTest, EmptyRun) {
  write_steps(0);
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("<h1>my-run</h1>"));
  EXPECT_THAT(html, HasSubstr("not evaluated"));
  EXPECT_TRUE(curves(html).empty());
}

TEST_F(HtmlReportTest, OneStep) {
  write_steps(1);
  const auto loss = curves(page()).at("loss");
  EXPECT_EQ(loss.at("step"), nlohmann::json({1}));
  EXPECT_EQ(loss.at("tokens"), nlohmann::json({100}));
  EXPECT_EQ(loss.at("seconds"), nlohmann::json({0.5}));
  EXPECT_NEAR(loss.at("value")[0].get<double>(), 2 + std::sin(1), 1e-5);
  EXPECT_EQ(loss.at("value"), loss.at("smoothed"));
}

// A killed writer leaves such a line.
TEST_F(HtmlReportTest, AHalfWrittenLastLineIsLeftOut) {
  write_steps(2);
  const std::string log = read_text_file(run_dir_ / "run.jsonl");
  write_file_durably(run_dir_ / "run.jsonl", log + "{\"step\":3,\"consumed_sam");
  write_file_durably(run_dir_ / "decisions.jsonl", "{\"event\":\"resu");
  EXPECT_EQ(curves(page()).at("loss").at("step"), nlohmann::json({1, 2}));
}

TEST_F(HtmlReportTest, SeveralRunsBesideEachOther) {
  write_steps(directory_ / "a" / "seed-1", 3);
  write_steps(directory_ / "b" / "seed-1", 5);
  const auto file = directory_ / "both.html";
  write_html_report(std::vector{directory_ / "a" / "seed-1", directory_ / "b" / "seed-1"}, file);
  const std::string html = read_text_file(file);
  const auto runs = data(html).at("runs");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].at("name"), "a/seed-1") << "as much of the path as tells them apart";
  EXPECT_EQ(runs[1].at("name"), "b/seed-1");
  EXPECT_EQ(runs[1].at("curves").at("loss").at("step").back(), 5);
  EXPECT_THAT(html, AllOf(HasSubstr("<h1>2 runs</h1>"), HasSubstr("<span>a/seed-1</span>")));
}

TEST_F(HtmlReportTest, RunsGivenTwiceAndTooManyAreRefused) {
  write_steps(1);
  const auto refusal = [&](const std::vector<std::filesystem::path>& runs) -> std::string {
    try {
      write_html_report(runs, directory_ / "page.html");
    } catch (const UserError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(refusal({run_dir_, run_dir_ / "." / ""}), HasSubstr("given twice"));
  EXPECT_THAT(refusal(std::vector(25, run_dir_)), HasSubstr("more than 24"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "page.html"));
}

// ---- experiments ----

constexpr const char* page_experiment = R"(
base = "run.toml"
seeds = [1, 2]
targets = [3.0]
reference = "slow"
[[arm]]
name = "slow"
[[arm]]
name = "fast"
)";

TEST_F(HtmlReportTest, AnExperimentThatIsNotDoneShowsItsRunsSoFar) {
  write_file_durably(directory_ / "experiment.toml", page_experiment);
  EXPECT_TRUE(is_experiment_directory(directory_));
  EXPECT_FALSE(is_experiment_directory(run_dir_));
  try {
    write_experiment_report(directory_, directory_ / "report.html");
    ADD_FAILURE() << "nothing to show";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nothing has run yet"));
  }
  write_steps(directory_ / "runs" / "fast" / "seed-2", 2);
  write_experiment_report(directory_, directory_ / "report.html");
  const std::string html = read_text_file(directory_ / "report.html");
  EXPECT_THAT(html, HasSubstr("not compared yet"));
  ASSERT_EQ(data(html).at("runs").size(), 1U);
  EXPECT_EQ(data(html).at("runs")[0].at("name"), "fast, seed-2");
  EXPECT_TRUE(data(html).at("comparison").empty());
}

TEST_F(HtmlReportTest, AnExperimentShowsItsComparisonWithIntervals) {
  write_file_durably(directory_ / "experiment.toml", page_experiment);
  const Experiment experiment = parse_experiment(page_experiment, "experiment.toml");
  std::vector<RunOutcome> outcomes;
  for (const auto& [arm, seed, pace] :
       {std::tuple{"slow", 1, 10.0}, {"slow", 2, 20.0}, {"fast", 1, 5.0}, {"fast", 2, 16.0}}) {
    RunOutcome& outcome = outcomes.emplace_back(arm, seed);
    outcome.evaluations = {{0, 0, 4}, {2 * pace, 200, 2}};  // a loss of 3 after `pace` seconds
    outcome.final_loss = 2;
  }
  write_file_durably(directory_ / "results.json", to_json(experiment, compare(experiment, outcomes)));
  write_steps(directory_ / "runs" / "slow" / "seed-1", 2);
  write_steps(directory_ / "runs" / "fast" / "seed-2", 2);
  write_experiment_report(directory_, directory_ / "report.html");

  const std::string html = read_text_file(directory_ / "report.html");
  EXPECT_THAT(html, AllOf(HasSubstr("To a held-out loss of 3"), HasSubstr("<span>reference</span>")));
  EXPECT_THAT(html, testing::ContainsRegex("<span>0\\.632 \\([0-9.]+ to [0-9.]+\\)</span>")) << "sqrt(0.5 x 0.8)";
  const auto comparison = data(html).at("comparison");
  ASSERT_EQ(comparison.size(), 1U);
  EXPECT_EQ(comparison[0].at("reference"), 1);
  ASSERT_EQ(comparison[0].at("rows").size(), 1U);
  const auto row = comparison[0].at("rows")[0];
  EXPECT_EQ(row.at("name"), "fast");
  EXPECT_NEAR(row.at("value").get<double>(), std::sqrt(0.4), 1e-9);
  EXPECT_LT(row.at("low"), row.at("value"));
  EXPECT_GT(row.at("high"), row.at("value"));
  EXPECT_EQ(row.at("seeds"), nlohmann::json({0.5, 0.8}));
  const auto runs = data(html).at("runs");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].at("name"), "slow, seed-1");
  EXPECT_EQ(runs[1].at("name"), "fast, seed-2") << "the first seed that has run";
}

TEST_F(HtmlReportTest, DamagedResultsAreNamed) {
  write_file_durably(directory_ / "experiment.toml", page_experiment);
  for (const std::string& text : {std::string("{"), std::string("{}"), "{\"format\": " + deep_json() + "}",
                                  std::string(R"({"format": "copus-comparison", "version": 2})")}) {
    write_file_durably(directory_ / "results.json", text);
    try {
      write_experiment_report(directory_, directory_ / "report.html");
      ADD_FAILURE() << "accepted " << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("results.json"));
    }
  }
}

// ---- the head ----

TEST_F(HtmlReportTest, TilesComeFromTheSummary) {
  write_steps(1234);
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

TEST_F(HtmlReportTest, ARunThatGoesOnAfterItsStopShowsWhereItIsNow) {
  write_steps(40);
  RunSummary summary;
  summary.steps = 30;
  summary.ended = "interrupted";
  write_summary(run_dir_, summary);
  {
    DecisionLog log(run_dir_);
    SwitchReport report;
    report.after_step = 35;
    report.to.global_batch = 2 * report.from.global_batch;
    report.outcome = SwitchReport::Outcome::moved;
    log.append(report);
  }
  const std::string html = page();
  for (const char* text : {"not ended", "<div class=\"value\">40</div>", "0 re-layouts<", "1 batch change,"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  EXPECT_THAT(html, Not(HasSubstr("interrupted")));
}

// File names may be any bytes.
TEST_F(HtmlReportTest, ANameThatIsNotUtf8IsReplacedWhereItIsNot) {
  run_dir_ = directory_ / "caf\xe9";
  write_steps(1);
  EXPECT_EQ(data(page()).at("runs")[0].at("name"), "caf\xef\xbf\xbd");
}

TEST_F(HtmlReportTest, WhatComesFromFilesIsEscaped) {
  run_dir_ = directory_ / "<b>&{{tiles}}";
  write_steps(1);
  {
    DecisionLog log(run_dir_);
    Decision decision;
    decision.step = 1;
    decision.choice.reason = "</script><script>alert(3)</script>";
    log.append(decision);
    decision.moves = true;
    log.append(decision);
    SwitchReport report;
    report.after_step = 1;
    log.append(report);
  }
  RunSummary summary;
  summary.ended = "</p><script>alert(1)</script>";
  write_summary(run_dir_, summary);
  write_file_durably(run_dir_ / "config.toml", "path = \"</pre><script>alert(2)</script> 'x' & {{data}}\"\n");
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("<h1>&lt;b&gt;&amp;{{tiles}}</h1>"));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("</script><script>alert")));
  EXPECT_EQ(data(html).at("runs")[0].at("switches")[0].at("reason"), "</script><script>alert(3)</script>");
  EXPECT_THAT(html,
              HasSubstr("path = &quot;&lt;/pre&gt;&lt;script&gt;alert(2)&lt;/script&gt; &#39;x&#39; &amp; {{data}}"));
}

TEST_F(HtmlReportTest, PageIsSelfContained) {
  write_steps(2);
  const std::string html = page();
  for (const char* text : {"src=", "<link", "@import", "url("}) EXPECT_THAT(html, Not(HasSubstr(text)));
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

TEST_F(HtmlReportTest, OfAConfigurationOfManyFilesTheMiddleIsLeftOut) {
  write_steps(1);
  std::string config = "[data]\ntrain = [\n";
  for (int i = 0; i < 20'000; ++i) config += concat("  \"first/", i, ".txt\",\n");
  write_file_durably(run_dir_ / "config.toml", config + "]\n[train]\nseed = 1\n");
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("first/0.txt"));
  EXPECT_THAT(html, HasSubstr("lines of config.toml are left out"));
  EXPECT_THAT(html, HasSubstr("seed = 1"));
  EXPECT_LT(html.size(), config.size());
}

TEST_F(HtmlReportTest, APageOfALongRunIsDrawnFromSomeOfItsSteps) {
  constexpr int64_t steps = 30000;
  write_steps(steps);
  ASSERT_GT(std::filesystem::file_size(run_dir_ / "run.jsonl"), uint64_t{16} << 20);
  write_file_durably(run_dir_ / "config.toml", "[evaluate]\ninterval = 1000\n");
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr(concat("of ", steps, " steps")));
  EXPECT_THAT(html, HasSubstr("none skipped"));
  EXPECT_LT(html.size(), size_t{3} << 20);
  const auto loss = curves(html).at("loss");
  EXPECT_EQ(loss.at("step").front(), 1);
  EXPECT_EQ(loss.at("step").back(), steps);
  EXPECT_EQ(loss.at("step").size(), 2000u);
  EXPECT_EQ(curves(html).at("held_out_loss").at("step").size(), 30u);
}

}  // namespace
}  // namespace copus
