// Tests the tables of switches with their reasons, and of decisions not to switch.
#include "copus/report/drawn/page_history.h"

#include <gmock/gmock.h>

namespace copus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Configuration in_batch(int64_t batch) { return {{}, batch, 1}; }

Decision made_after(int64_t step, bool moves, std::string reason) {
  Decision decision;
  decision.step = step;
  decision.current = in_batch(8);
  decision.moves = moves;
  if (moves) decision.choice.target = in_batch(16);
  decision.choice.reason = std::move(reason);
  decision.choice.predicted_gain = 0.25;
  return decision;
}

SwitchReport switch_after(int64_t step, SwitchReport::Outcome outcome) {
  SwitchReport report;
  report.after_step = step;
  report.from = in_batch(8);
  report.to = in_batch(16);
  report.outcome = outcome;
  if (outcome != SwitchReport::Outcome::moved) report.reason = "rank 3 lacks memory";
  return report;
}

std::vector<StepRecord> ten_steps() {
  std::vector<StepRecord> records(10);
  for (size_t i = 0; i < records.size(); ++i) records[i].step = static_cast<int64_t>(i) + 1;
  return records;
}

TEST(PageHistory, ASwitchHasTheReasonOfItsDecisionAndWhatCameOfIt) {
  const auto switches = switches_of(
      {made_after(2, false, "holds"), made_after(3, true, "pays"), switch_after(5, SwitchReport::Outcome::moved),
       LoggedRealised{8, {.from = in_batch(8), .to = in_batch(16), .realised_gain = 0.2}}});
  ASSERT_EQ(switches.size(), 1U);
  EXPECT_EQ(switches[0].reason, "pays");
  EXPECT_EQ(switches[0].predicted_gain, 0.25);
  ASSERT_TRUE(switches[0].realised);
  EXPECT_EQ(switches[0].realised->realised_gain, 0.2);
  const auto marks = switch_marks(switches, ten_steps());
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].at("label"), "1");
  EXPECT_EQ(marks[0].at("step"), 5);
  EXPECT_EQ(marks[0].at("change"), "B=8 -> B=16");
  EXPECT_EQ(marks[0].at("reason"), "pays");
  EXPECT_EQ(marks[0].at("moved"), true);
  EXPECT_THAT(switch_table(switches).rows[0],
              ElementsAre("1", "5", "B=8 -&gt; B=16", "pays", "+25.0 %", "+20.0 %", "0 s", "0 s", "none", "moved"));
}

TEST(PageHistory, AUsersSwitchAndARefusedOneSayThat) {
  const auto switches = switches_of({LoggedCommand{4, {Command::Kind::force, in_batch(16)}},
                                     switch_after(4, SwitchReport::Outcome::moved), made_after(6, true, "pays"),
                                     switch_after(7, SwitchReport::Outcome::vetoed)});
  ASSERT_EQ(switches.size(), 2U);
  EXPECT_THAT(switches[0].reason, HasSubstr("copus ctl"));
  EXPECT_FALSE(switches[0].predicted_gain);
  const auto marks = switch_marks(switches, ten_steps());
  EXPECT_EQ(marks[1].at("moved"), false);
  EXPECT_EQ(marks[1].at("outcome"), "refused: rank 3 lacks memory");
}

TEST(PageHistory, OtherRanksAreMarkedAndEndWhatWasAnnounced) {
  RanksChanged change;
  change.after_step = 4;
  change.ranks = 3;
  change.from = {{.data_parallel = 4}, 8, 2};
  change.to = {{.data_parallel = 2}, 8, 4};
  change.reason = "rank 1 <was lost>";
  const std::vector<DecisionEvent> events{made_after(3, true, "pays"), change,
                                          LoggedCommand{4, {Command::Kind::pin, std::nullopt}},
                                          switch_after(7, SwitchReport::Outcome::moved)};
  const auto switches = switches_of(events);
  ASSERT_EQ(switches.size(), 1U);
  EXPECT_EQ(switches[0].reason, "") << "the switch that was announced has not come";
  const auto marks = rank_marks(events, ten_steps());
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].at("label"), "R");
  EXPECT_EQ(marks[0].at("step"), 4);
  EXPECT_THAT(marks[0].at("change").get<std::string>(), testing::StartsWith("with 3 ranks: "));
  EXPECT_EQ(marks[0].at("reason"), "rank 1 <was lost>");
  const WebTable table = decision_table(events, 100);
  ASSERT_EQ(table.rows.size(), 3U);
  EXPECT_THAT(table.rows[1][1], testing::StartsWith("goes on with 3 ranks: "));
  EXPECT_EQ(table.rows[1][4], "rank 1 &lt;was lost&gt;");
}

TEST(PageHistory, DecisionsThatHeldAreListedAndThinnedEvenly) {
  std::vector<DecisionEvent> events{ControllerBegin{}};
  for (int64_t step = 1; step <= 8; ++step) events.emplace_back(made_after(step, step == 4, "reason <b>"));
  events.emplace_back(ControllerResumed{8});
  events.emplace_back(Unmeasured{8, "the norm was <None>"});
  EXPECT_EQ(held_decisions(events, ten_steps(), 100).at("step"), nlohmann::json({1, 2, 3, 5, 6, 7, 8}));
  EXPECT_EQ(held_decisions(events, ten_steps(), 3).at("step").size(), 3U);
  const WebTable all = decision_table(events, 100);
  EXPECT_EQ(all.rows.size(), 11U) << "the beginning, eight decisions, the resumption, what was not measured";
  EXPECT_EQ(all.rows[10][1], "is not measured");
  EXPECT_EQ(all.rows[10][4], "the norm was &lt;None&gt;");
  EXPECT_EQ(all.rows[1][1], "holds");
  EXPECT_EQ(all.rows[4][1], "moves B=8 -&gt; B=16");
  EXPECT_EQ(all.rows[1][4], "reason &lt;b&gt;");
  EXPECT_EQ(decision_table(events, 3).rows.size(), 7U) << "what did not hold stays";
}

}  // namespace
}  // namespace copus
