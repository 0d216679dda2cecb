#include "copus/comm/job/healing/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

using Course = Composition::Course;
using Kind = Act::Kind;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> told(Composition& composition) {
  std::vector<std::string> acts;
  for (const Act& act : composition.take_acts()) {
    switch (act.kind) {
      case Kind::start:
        acts.push_back(concat("start ", act.process));
        break;
      case Kind::kill:
        acts.push_back(concat("kill ", act.process));
        break;
      case Kind::ask_to_regroup:
        acts.emplace_back("ask to regroup");
        break;
      case Kind::tell_to_stop:
        acts.emplace_back("tell to stop");
        break;
      case Kind::release:
        acts.push_back(concat("release ", act.process));
        break;
      case Kind::begin_epoch:
        acts.push_back(concat("begin epoch ", composition.epoch()));
        break;
      case Kind::end_job:
        acts.emplace_back("end job");
        break;
    }
  }
  return acts;
}

void pass_long(Composition& composition, double seconds, double step_seconds = 0) {
  for (double passed = 0; passed < seconds; passed += 0.5) composition.pass(0.5, step_seconds);
}

TEST(Composition, GoesOnWithoutAMemberThatWasLost) {
  Composition composition(3, false);
  composition.ends(1, false);
  composition.becomes_ready(2);
  EXPECT_THAT(told(composition), IsEmpty()) << "0 has not left";
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
  EXPECT_THAT(composition.members(), ElementsAre(0, 2));
  EXPECT_THAT(composition.lost(), ElementsAre(1));
  EXPECT_EQ(composition.rank_of(2), 1);
  EXPECT_EQ(composition.rank_of(1), std::nullopt);
}

TEST(Composition, WaitsForTheEndOfAMemberThatHasFailed) {
  Composition composition(2, false);
  composition.fails(1);
  composition.becomes_ready(0);
  composition.becomes_ready(1);
  composition.pass(0.5, 0);
  EXPECT_THAT(told(composition), IsEmpty());
  pass_long(composition, 1);
  EXPECT_THAT(told(composition), ElementsAre("kill 1"));
  composition.ends(1, false);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
}

TEST(Composition, AMemberThatReportsAnErrorOfItsOwnHasLongerToEnd) {
  Composition composition(3, false);
  composition.has_begun();
  composition.fails(1, /*by_own_error=*/true);
  composition.becomes_ready(0);
  composition.becomes_ready(2);
  pass_long(composition, Composition::kill_after_own_error_seconds - 0.5);
  EXPECT_THAT(told(composition), IsEmpty());
  pass_long(composition, 0.5);
  EXPECT_THAT(told(composition), ElementsAre("kill 1"));
  composition.ends(1, false);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
}

TEST(Composition, EndsWhoDoesNotLeaveInTime) {
  for (const double step_seconds : {1.0, 20.0}) {
    Composition composition(3, false);
    composition.ends(0, false);
    composition.becomes_ready(2);
    pass_long(composition, std::max(10.0, 2 * step_seconds) - 1, step_seconds);
    EXPECT_THAT(told(composition), IsEmpty());
    pass_long(composition, 1, step_seconds);
    EXPECT_THAT(told(composition), ElementsAre("kill 1"));
    composition.ends(1, false);
    EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
    EXPECT_THAT(composition.lost(), ElementsAre(0, 1));
  }
}

TEST(Composition, TimeForWhichTheLauncherWasStoppedDoesNotCount) {
  Composition composition(3, false);
  composition.ends(0, false);
  composition.pass(1000, 0);
  EXPECT_THAT(told(composition), IsEmpty());
}

TEST(Composition, TakesNewcomersInBetweenTwoSteps) {
  Composition composition(2, true);
  composition.ends(0, false);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 2"));
  composition.becomes_ready(2);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup"));
  pass_long(composition, 1000);
  EXPECT_THAT(told(composition), IsEmpty()) << "a step may take as long as it takes";
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 2"));
  EXPECT_THAT(composition.members(), ElementsAre(1, 2));
  EXPECT_THAT(composition.lost(), IsEmpty());
}

TEST(Composition, SparesThatLeaveAtOnceDoNotHurryTheOthers) {
  Composition composition(3, true);
  composition.asks_to_leave(1);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup"));
  composition.becomes_ready(2);
  pass_long(composition, 100);
  EXPECT_THAT(told(composition), IsEmpty());
  composition.becomes_ready(0);
  pass_long(composition, 10);
  EXPECT_THAT(told(composition), ElementsAre("kill 1")) << "rank 0 has left, and so has the step ended";
}

TEST(Composition, LetsAMemberLeaveAndDoesNotReplaceIt) {
  Composition composition(3, true);
  composition.asks_to_leave(0);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup"));
  for (const int64_t process : {0, 1, 2}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "ask to regroup"));
  EXPECT_THAT(composition.members(), ElementsAre(1, 2, 0)) << "while the others take over what it holds";
  EXPECT_EQ(composition.num_parting(), 1);
  for (const int64_t process : {0, 1, 2}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("release 0", "begin epoch 2"));
  EXPECT_THAT(composition.members(), ElementsAre(1, 2));
  EXPECT_EQ(composition.num_parting(), 0);
  EXPECT_FALSE(composition.is_member(0));
  composition.ends(0, false);
  EXPECT_THAT(told(composition), IsEmpty()) << "however it ends";
}

// The state that it holds may be on its way to members that fail.
TEST(Composition, AMemberThatLeavesStaysUntilAnEpochHasEndedWithoutAFailure) {
  Composition composition(4, false);
  composition.asks_to_leave(1);
  for (const int64_t process : {0, 1, 2, 3}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "begin epoch 1", "ask to regroup"));
  EXPECT_THAT(composition.members(), ElementsAre(0, 2, 3, 1));
  composition.ends(2, false);
  for (const int64_t process : {0, 1, 3}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 2", "ask to regroup"));
  EXPECT_THAT(composition.members(), ElementsAre(0, 3, 1));
  composition.asks_to_leave(0);
  for (const int64_t process : {0, 1, 3}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("release 1", "begin epoch 3", "ask to regroup"));
  EXPECT_THAT(composition.members(), ElementsAre(3, 0)) << "it asked in the meantime";
  composition.ends(3, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("tell to stop", "begin epoch 4"));
  EXPECT_THAT(composition.members(), ElementsAre(0));
  EXPECT_EQ(composition.num_parting(), 0);
}

TEST(Composition, NobodyPartsWhereTheOthersCannotTakeOver) {
  Composition composition(3, true);
  composition.asks_to_leave(0);
  for (const int64_t process : {0, 1, 2}) composition.becomes_ready(process);
  composition.take_acts();
  composition.stop();
  for (const int64_t process : {0, 1, 2}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("tell to stop", "begin epoch 2"));
  EXPECT_THAT(composition.members(), ElementsAre(0, 1, 2));
  EXPECT_EQ(composition.num_parting(), 0);
}

TEST(Composition, StopsWhenAllWantToLeave) {
  Composition composition(2, true);
  composition.asks_to_leave(0);
  composition.asks_to_leave(1);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "tell to stop"));
  composition.becomes_ready(0);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1")) << "which stops in good order";
  EXPECT_THAT(composition.members(), ElementsAre(0, 1));
}

TEST(Composition, StopsWhenTheLastOneWantsToLeave) {
  Composition composition(2, true);
  composition.asks_to_leave(0);
  for (const int64_t process : {0, 1}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "begin epoch 1", "ask to regroup"));
  for (const int64_t process : {0, 1}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("release 0", "begin epoch 2"));
  composition.asks_to_leave(1);
  EXPECT_THAT(told(composition), ElementsAre("tell to stop"));
}

TEST(Composition, TheLastOneLeftThatWantsToLeaveStopsTheJob) {
  for (const bool asks_first : {false, true}) {
    Composition composition(2, true);
    if (asks_first) composition.asks_to_leave(1);
    composition.ends(0, false);
    if (!asks_first) composition.asks_to_leave(1);
    composition.take_acts();
    composition.becomes_ready(1);
    EXPECT_THAT(told(composition), ElementsAre("tell to stop", "begin epoch 1"));
    EXPECT_THAT(composition.members(), ElementsAre(1));
    EXPECT_EQ(composition.course(), Course::going_on);
  }
}

TEST(Composition, ANewcomerDoesNotTakeThePlaceOfTheLastOneThatWantsToLeave) {
  Composition composition(3, true);
  composition.ends(2, false);
  composition.becomes_ready(0);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 3"));
  composition.becomes_ready(3);
  composition.asks_to_leave(1);
  composition.ends(0, false);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "tell to stop", "kill 3", "begin epoch 2"));
  EXPECT_THAT(composition.members(), ElementsAre(1));
}

TEST(Composition, NobodyComesOrGoesAfterASignal) {
  Composition composition(3, true);
  composition.ends(2, false);
  composition.becomes_ready(0);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 3"));
  composition.stop();
  composition.stop();
  composition.asks_to_leave(1);
  EXPECT_THAT(told(composition), ElementsAre("tell to stop", "kill 3"));
  composition.ends(3, false);
  composition.ends(1, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 2")) << "it goes on to its end without it";
}

TEST(Composition, AfterASignalOthersComeOnlyWhereNobodyElseCanReadWhatIsLeftAndAfterTwoNobody) {
  for (const bool at_once : {false, true}) {
    Composition composition(2, true, /*restarts=*/1);
    composition.has_begun();
    composition.stop();
    composition.ends(0, false);
    EXPECT_THAT(told(composition), ElementsAre("tell to stop"));
    if (at_once) composition.stop_at_once();
    composition.ends(1, false);
    if (at_once) {
      EXPECT_EQ(composition.course(), Course::failed);
      continue;
    }
    EXPECT_THAT(told(composition), ElementsAre("start 2", "start 3"));
    composition.stop();
    EXPECT_THAT(told(composition), IsEmpty());
    composition.becomes_ready(2);
    composition.becomes_ready(3);
    EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "tell to stop"));
    EXPECT_THAT(composition.members(), ElementsAre(2, 3));
  }
}

TEST(Composition, AJobThatIsToEndDoesNotWaitLongForAnotherMachine) {
  Composition composition(2, true, /*restarts=*/1, /*members_per_machine=*/1);
  composition.has_begun();
  composition.stop();
  composition.ends(1, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("tell to stop", "start 2"));
  for (double passed = 0; passed <= Composition::leave_within_seconds; passed += 0.5) composition.pass(0.5, 0);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
  EXPECT_THAT(composition.members(), ElementsAre(0));
}

TEST(Composition, ASignalDoesNotEndANewcomerThatHasBecomeTheOnlyReader) {
  Composition composition(2, true, /*restarts=*/0);
  composition.has_begun();
  composition.ends(0, false);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 2"));
  composition.ends(1, false);
  composition.stop();
  EXPECT_THAT(told(composition), ElementsAre("tell to stop"));
  composition.becomes_ready(2);
  EXPECT_THAT(composition.members(), ElementsAre(2));
}

TEST(Composition, ASignalDoesNotEndThoseWhoAloneCanReadWhatIsLeft) {
  Composition composition(1, true, /*restarts=*/1);
  composition.has_begun();
  composition.ends(0, false);
  EXPECT_THAT(told(composition), ElementsAre("start 1"));
  composition.stop();
  EXPECT_THAT(told(composition), ElementsAre("tell to stop"));
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "tell to stop"));
}

TEST(Composition, FailsWhereNobodyIsLeftToGoOn) {
  Composition composition(2, true);
  composition.ends(0, false);
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 2"));
  composition.becomes_ready(2);
  composition.ends(1, false);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "kill 2", "end job"));
  EXPECT_EQ(composition.course(), Course::failed);
  EXPECT_TRUE(composition.can_begin_again());
}

TEST(Composition, WhereAllHaveEndedOthersTakeOverOnceAllOfThemAreReady) {
  Composition composition(2, false, 1);
  composition.has_begun();
  composition.ends(0, false);
  composition.ends(1, false);
  EXPECT_THAT(told(composition), ElementsAre("start 2", "start 3"));
  composition.becomes_ready(3);
  EXPECT_THAT(told(composition), IsEmpty());
  composition.becomes_ready(2);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
  EXPECT_THAT(composition.members(), ElementsAre(2, 3));
  EXPECT_THAT(composition.lost(), ElementsAre(0, 1));
}

TEST(Composition, AllAreStartedAgainAsOftenAsWasSaidWithoutProgress) {
  Composition composition(1, true, 2);
  composition.has_begun();
  for (int64_t process = 0; process < 5; ++process) {
    if (process == 2) composition.advances();
    composition.ends(process, false);
    if (process == 4) break;
    EXPECT_THAT(told(composition), ElementsAre(concat("start ", process + 1)));
    composition.becomes_ready(process + 1);
    EXPECT_THAT(told(composition), ElementsAre(concat("begin epoch ", process + 1)));
  }
  EXPECT_THAT(told(composition), ElementsAre("end job"));
  EXPECT_EQ(composition.course(), Course::failed);
}

TEST(Composition, BeforeTrainingHasBegunNobodyIsStartedWhereAllHaveEnded) {
  Composition composition(1, true, 2);
  composition.ends(0, false);
  EXPECT_THAT(told(composition), ElementsAre("end job"));
}

TEST(Composition, AJobWhoseRanksWereKilledBeforeTrainingBeganCanBeginAgainWhoeverKilledThem) {
  Composition composition(3, false);
  composition.ends(0, false);
  composition.fails(1);
  composition.becomes_ready(2);
  pass_long(composition, Composition::kill_after_seconds);
  EXPECT_THAT(told(composition), ElementsAre("kill 1"));
  composition.ends(1, false);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
  EXPECT_FALSE(composition.can_begin_again());
  composition.ends(2, false);
  EXPECT_THAT(told(composition), ElementsAre("end job"));
  EXPECT_TRUE(composition.can_begin_again());
}

TEST(Composition, BeforeTrainingHasBegunAnErrorOfARanksOwnEndsTheJobForGood) {
  for (const bool is_killed : {false, true}) {  // during unwinding
    Composition composition(3, true, /*restarts=*/3);
    composition.ends(0, false);
    composition.fails(1, /*by_own_error=*/true);
    if (is_killed) composition.fails(1);
    EXPECT_EQ(composition.course(), Course::going_on) << "its message is still to come";
    composition.ends(1, false);
    EXPECT_THAT(told(composition), ElementsAre("end job"));
    composition.ends(2, false);
    EXPECT_FALSE(composition.can_begin_again());
  }
}

TEST(Composition, AJobDoesNotBeginAgainThatHasBegunIsToStopOrHasLostAMachine) {
  for (const int64_t why : {0, 1, 2, 3}) {
    Composition composition(2, false);
    if (why == 1) composition.has_begun();
    if (why == 2) composition.stop();
    if (why == 3) composition.cannot_be_replaced(1);
    composition.ends(0, false);
    composition.ends(1, false);
    EXPECT_EQ(composition.course(), Course::failed);
    EXPECT_EQ(composition.can_begin_again(), why == 0) << why;
  }
}

// They did not receive the plan of the run from anyone.
TEST(Composition, NewcomersAloneDoNotBeginARun) {
  Composition composition(2, true);
  composition.ends(1, false);
  composition.becomes_ready(0);
  composition.becomes_ready(2);
  composition.becomes_ready(0);
  EXPECT_THAT(composition.members(), ElementsAre(0, 2));
  composition.take_acts();
  composition.ends(0, false);
  composition.becomes_ready(2);
  EXPECT_THAT(told(composition), ElementsAre("end job"));
  composition.ends(2, false);
  EXPECT_TRUE(composition.can_begin_again());
}

TEST(Composition, TheOthersWaitForThoseWhoTakeOverOnAMachineWhereAllHaveEnded) {
  Composition composition(4, true, 1, 2);
  composition.has_begun();
  composition.ends(2, false);
  composition.ends(3, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), IsEmpty());
  composition.becomes_ready(1);
  EXPECT_THAT(told(composition), ElementsAre("start 4", "start 5"));
  composition.becomes_ready(4);
  composition.ends(5, false);
  EXPECT_THAT(told(composition), ElementsAre("start 6"));
  composition.becomes_ready(6);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
  EXPECT_THAT(composition.members(), ElementsAre(0, 1, 4, 6));
}

TEST(Composition, NobodyWaitsForAMachineThatIsGoneOrForNewcomersThatHang) {
  Composition composition(4, true, 1, 2);
  composition.has_begun();
  composition.cannot_be_replaced(2);
  composition.cannot_be_replaced(3);
  for (const int64_t process : {2, 3}) composition.ends(process, false);
  for (const int64_t process : {0, 1}) composition.becomes_ready(process);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1"));
  for (const int64_t process : {0, 1}) composition.ends(process, false);
  EXPECT_THAT(told(composition), ElementsAre("start 4", "start 5"));
  composition.becomes_ready(4);
  pass_long(composition, Composition::set_up_within_seconds + 1);
  EXPECT_THAT(told(composition), ElementsAre("kill 5"));
  composition.ends(5, false);
  EXPECT_THAT(told(composition), ElementsAre("start 6"));
  composition.ends(6, false);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 2")) << "4 is there, and the next one starts after a pause";
  composition.pass(0.5, 0);
  EXPECT_THAT(told(composition), ElementsAre("start 7"));
}

TEST(Composition, EndsInGoodOrderWithItsFirstMemberAndLetsSparesGo) {
  Composition composition(3, true);
  composition.ends(1, true);
  EXPECT_THAT(told(composition), ElementsAre("release 0", "release 2"));
  composition.ends(0, true);
  composition.ends(2, true);
  EXPECT_THAT(told(composition), IsEmpty());
  EXPECT_EQ(composition.course(), Course::done);
}

TEST(Composition, AFailureWhenOthersEndInGoodOrderCostsNothing) {
  for (const bool first_the_failure : {false, true}) {
    Composition composition(3, true);
    composition.ends(first_the_failure ? 1 : 0, !first_the_failure);
    composition.ends(first_the_failure ? 0 : 1, first_the_failure);
    EXPECT_EQ(composition.course(), Course::done);
    composition.take_acts();
    composition.fails(2);
    EXPECT_THAT(told(composition), ElementsAre("kill 2")) << "it may be stopped, and would never end";
    EXPECT_EQ(composition.course(), Course::done);
  }
}

TEST(Composition, WhoeverComesToTheEndLetsSparesGo) {
  Composition composition(2, true);
  composition.comes_to_the_end();
  EXPECT_THAT(told(composition), ElementsAre("release 0", "release 1"));
  EXPECT_EQ(composition.course(), Course::done);

  Composition other(2, true);
  other.asks_to_leave(1);
  other.comes_to_the_end();
  EXPECT_THAT(told(other), ElementsAre("ask to regroup"));
  EXPECT_EQ(other.course(), Course::going_on) << "it leaves since it was asked";
}

TEST(Composition, NewcomersThatEndEarlyAreStartedAgainAfterLongerAndLongerPauses) {
  Composition composition(2, true);
  composition.ends(1, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 2"));
  composition.ends(2, false);
  EXPECT_THAT(told(composition), ElementsAre("start 3"));
  double pause = Composition::first_pause_seconds;
  int64_t newcomer = 3;
  for (; pause < Composition::longest_pause_seconds; pause *= 2) {
    composition.ends(newcomer, true);
    EXPECT_EQ(composition.pause_before_replacing(newcomer), pause);
    for (double passed = 0.5; passed < pause; passed += 0.5) composition.pass(0.5, 0);
    EXPECT_THAT(told(composition), IsEmpty());
    EXPECT_TRUE(composition.has_delayed());
    composition.pass(0.5, 0);
    EXPECT_THAT(told(composition), ElementsAre(concat("start ", ++newcomer)));
    EXPECT_FALSE(composition.has_delayed());
  }
  composition.ends(newcomer, false);
  EXPECT_EQ(composition.pause_before_replacing(newcomer), Composition::longest_pause_seconds);
  for (double passed = 0; passed < Composition::longest_pause_seconds; passed += 0.5) composition.pass(0.5, 0);
  EXPECT_THAT(told(composition), ElementsAre(concat("start ", ++newcomer)));
  composition.becomes_ready(newcomer);
  composition.ends(newcomer, false);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", concat("start ", newcomer + 1))) << "it had been ready";
}

TEST(Composition, ANewcomerThatNobodyCanDoWithoutIsStartedAgainSoonAndNotForEver) {
  Composition composition(1, false, /*restarts=*/1);
  composition.has_begun();
  composition.ends(0, false);
  EXPECT_THAT(told(composition), ElementsAre("start 1"));
  int64_t newcomer = 1;
  double passed = 0;
  while (composition.course() == Course::going_on && passed < 2 * Composition::bring_back_within_seconds) {
    composition.ends(newcomer, false);
    EXPECT_LE(composition.pause_before_replacing(newcomer).value_or(0), Composition::longest_pause_where_needed);
    for (; composition.has_delayed(); passed += 0.5) composition.pass(0.5, 0);
    if (!told(composition).empty()) ++newcomer;
  }
  EXPECT_EQ(composition.course(), Course::failed);
  EXPECT_NEAR(passed, Composition::bring_back_within_seconds, Composition::longest_pause_where_needed);
}

TEST(Composition, ANewcomerThatIsDelayedComesSoonerOnceNobodyCanDoWithoutIt) {
  Composition composition(2, true, /*restarts=*/1);
  composition.has_begun();
  composition.ends(1, false);
  composition.becomes_ready(0);
  for (int64_t newcomer = 2; newcomer < 10; ++newcomer) {
    composition.ends(newcomer, false);
    while (composition.has_delayed()) composition.pass(0.5, 0);
  }
  composition.ends(10, false);
  EXPECT_GT(*composition.pause_before_replacing(10), Composition::longest_pause_where_needed);
  composition.ends(0, false);
  EXPECT_EQ(composition.course(), Course::going_on);
  EXPECT_EQ(composition.pause_before_replacing(10), Composition::longest_pause_where_needed);
}

TEST(Composition, ADelayedNewcomerIsNotStartedWhereTheJobStopsOrItsMachineGoes) {
  for (const bool stops : {true, false}) {
    Composition composition(1, false, /*restarts=*/1);
    composition.has_begun();
    composition.ends(0, false);
    composition.ends(1, false);
    composition.ends(2, false);
    EXPECT_TRUE(composition.has_delayed());
    stops ? composition.stop_at_once() : composition.cannot_be_replaced(2);
    EXPECT_FALSE(composition.has_delayed());
    composition.pass(0.1, 0);
    EXPECT_EQ(composition.course(), Course::failed);
  }
}

TEST(Composition, WhoeverIsStartedStandsForOneThatWasLost) {
  Composition composition(4, true);
  composition.ends(1, false);
  composition.ends(3, false);
  composition.becomes_ready(0);
  composition.becomes_ready(2);
  const std::vector<Act> acts = composition.take_acts();
  ASSERT_EQ(acts.size(), 3);
  EXPECT_EQ(acts[1].process * 10 + acts[1].replaces, 41);
  EXPECT_EQ(acts[2].process * 10 + acts[2].replaces, 53);
  composition.ends(5, false);
  EXPECT_EQ(composition.take_acts().at(0).replaces, 5);
}

TEST(Composition, StartsNobodyForThoseWhoseMachineIsGone) {
  Composition composition(4, true);
  composition.ends(1, false);
  composition.becomes_ready(0);
  composition.becomes_ready(2);
  composition.becomes_ready(3);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 4"));
  // A member and a newcomer leave with the machine, before and after they have ended.
  composition.cannot_be_replaced(3);
  composition.cannot_be_replaced(4);
  composition.ends(4, true);
  composition.ends(3, false);
  composition.ends(2, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 2", "start 5")) << "for 2 alone";
  composition.ends(5, true);
  EXPECT_THAT(told(composition), ElementsAre("start 6"));
}

TEST(Composition, WhoeverAloneCanReadWhatIsLeftIsTakenInWhateverItsNumber) {
  Composition composition(4, true, /*restarts=*/1, /*members_per_machine=*/2);
  composition.has_begun();
  const auto leave = [&](std::initializer_list<int64_t> members) {
    for (const int64_t member : members) composition.becomes_ready(member);
  };
  composition.ends(0, false);
  leave({1, 2, 3});
  composition.ends(2, false);
  leave({1, 3});
  leave({5, 1, 3});
  EXPECT_THAT(composition.members(), ElementsAre(1, 3, 5));
  composition.ends(1, false);
  composition.ends(3, false);
  leave({5, 4});
  EXPECT_THAT(composition.members(), ElementsAre(4, 5));
}

TEST(Composition, ANewcomerWhoseMachineGoesIsNotTakenIn) {
  Composition composition(2, true);
  composition.ends(0, false);
  composition.becomes_ready(1);
  composition.becomes_ready(2);
  composition.cannot_be_replaced(2);
  composition.becomes_ready(1);
  EXPECT_EQ(composition.epoch(), 2);
  EXPECT_THAT(composition.members(), ElementsAre(1));
}

TEST(Composition, TheFirstRankIsOneThatWasAMemberBefore) {
  Composition composition(3, true);
  composition.has_begun();
  composition.ends(1, false);
  composition.ends(2, false);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("begin epoch 1", "start 3", "start 4"));
  composition.becomes_ready(4);
  composition.becomes_ready(0);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "begin epoch 2"));
  composition.becomes_ready(3);
  composition.ends(0, false);
  composition.becomes_ready(4);
  EXPECT_THAT(told(composition), ElementsAre("ask to regroup", "begin epoch 3", "start 5", "kill 3", "start 6"));
  EXPECT_THAT(composition.members(), ElementsAre(4));
}

// Processes that obey the launcher or fail, in random order.
class RandomJob {
 public:
  RandomJob(uint64_t seed, int64_t size) : random_(seed), composition_(size, seed % 3 > 0) {
    for (const int64_t process : composition_.members()) {
      states_[process] = State::working;
      before_.insert(process);
    }
  }

  void run(int64_t events) {
    for (int64_t i = 0; i < events && composition_.course() == Course::going_on; ++i) {
      strike();
      carry_out();
    }
    // From now on nothing more fails, and every process that others wait for arrives.
    for (int64_t i = 0; i < 200; ++i) {
      for (const int64_t process : living()) {
        go_on(process);
        carry_out();
      }
      composition_.pass(0.5, 0);
      carry_out();
    }
    if (composition_.course() == Course::going_on) {
      EXPECT_FALSE(composition_.epoch_is_to_end());
      for (const int64_t member : composition_.members()) EXPECT_EQ(states_[member], State::working);
      for (const int64_t process : living()) EXPECT_TRUE(composition_.is_member(process)) << process;
    } else if (composition_.course() == Course::failed) {
      EXPECT_THAT(living(), IsEmpty());
    }
  }

 private:
  enum class State { setting_up, working, ready, released, hanging, ended };

  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }

  std::vector<int64_t> living() const {
    std::vector<int64_t> numbers;
    for (const auto& [number, state] : states_) {
      if (state != State::ended) numbers.push_back(number);
    }
    return numbers;
  }

  void end(int64_t process, bool in_good_order) {
    if (composition_.is_member(process) && !in_good_order) lost_.insert(process);
    states_[process] = State::ended;
    composition_.ends(process, in_good_order);
  }

  void strike() {
    const std::vector<int64_t> numbers = living();
    if (numbers.empty()) return;
    const int64_t process = numbers[below(std::ssize(numbers))];
    switch (below(40)) {
      case 0:
      case 1:
        return end(process, false);
      case 2:
        if (composition_.is_member(process)) composition_.fails(process);
        return;
      case 3:
        if (states_[process] == State::working) states_[process] = State::hanging;
        return;
      case 4:
        return composition_.asks_to_leave(process);
      case 5:
        if (below(10) == 0) composition_.stop();
        return;
      case 6:
        if (below(10) == 0 && states_[process] == State::working) end(process, true);
        return;
      case 7:
      case 8:
      case 9:
        return composition_.pass(0.5, 0);
      default:
        return go_on(process);
    }
  }

  void go_on(int64_t process) {
    State& state = states_[process];
    if (state == State::setting_up || (state == State::working && composition_.epoch_is_to_end())) {
      state = State::ready;
      composition_.becomes_ready(process);
    } else if (state == State::released) {
      end(process, true);
    }
  }

  void carry_out() {
    for (auto acts = composition_.take_acts(); !acts.empty(); acts = composition_.take_acts()) {
      for (const Act& act : acts) carry_out(act);
    }
  }

  void carry_out(const Act& act) {
    switch (act.kind) {
      case Kind::start:
        EXPECT_FALSE(states_.contains(act.process)) << "a number is given once";
        states_[act.process] = State::setting_up;
        return;
      case Kind::kill:
        EXPECT_NE(states_[act.process], State::ended);
        return end(act.process, false);
      case Kind::release:
        if (states_[act.process] != State::hanging) states_[act.process] = State::released;
        return;
      case Kind::begin_epoch:
        return begin_epoch();
      default:
        return;
    }
  }

  void begin_epoch() {
    EXPECT_EQ(composition_.epoch(), ++epochs_);
    const std::vector<int64_t>& members = composition_.members();
    const auto parting = members.end() - composition_.num_parting();
    EXPECT_TRUE(std::is_sorted(members.begin(), parting));
    EXPECT_TRUE(std::all_of(parting, members.end(), [&](int64_t member) { return before_.contains(member); }));
    EXPECT_TRUE(before_.contains(members.front())) << "somebody who has the state leads";
    for (const int64_t member : members) EXPECT_EQ(states_[member], State::ready) << member;
    EXPECT_EQ(std::set<int64_t>(composition_.lost().begin(), composition_.lost().end()), lost_);
    lost_.clear();
    for (const int64_t member : members) states_[member] = State::working;
    before_ = {members.begin(), members.end()};
  }

  std::mt19937_64 random_;
  Composition composition_;
  std::map<int64_t, State> states_;
  std::set<int64_t> lost_, before_;  // in this epoch; the members of this epoch
  int64_t epochs_ = 0;
};

TEST(Composition, ComesToAnEpochOrAnEndWhateverHappens) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    RandomJob(seed, 1 + static_cast<int64_t>(seed % 5)).run(400);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace copus
