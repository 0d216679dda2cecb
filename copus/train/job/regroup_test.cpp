// Tests ranks that end anywhere, alone or with all other ranks of their machine. The remaining ranks must continue from
// the decided step boundary with exactly the state that the run would have had there. Ranks are threads, which end
// where they report their place, as they do before everything that they do. Machines are simulated: ranks of two
// machines share nothing but messages.
#include "copus/train/job/regroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/comm/first_ranks_world.h"
#include "copus/comm/messages/tcp_world.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/comm/testing/noticed_places_world.h"
#include "copus/comm/testing/test_worlds.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/testing/state_damage.h"
#include "copus/train/testing/switch_test_support.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;

// Thrown by a rank that ends. The others only notice that it is gone.
struct Killed {};

// A world whose rank ends at its `places_left`-th report of a place. `end` is called before any other rank knows of it.
class MortalWorld final : public NoticedPlacesWorld {
 public:
  MortalWorld(std::unique_ptr<World> inner, int64_t& places_left, std::function<void()> end)
      : NoticedPlacesWorld(std::move(inner)), places_left_(places_left), end_(std::move(end)) {}

  void set_place(std::string_view place) override {
    const bool counts = places_left_ > 0;
    if (counts) --places_left_;
    if (counts && places_left_ == 0) {
      end_();
      inner().health().report({rank(), std::string(place), "killed"});
      // A process that dies takes its threads with it; here threads must end before the objects that they use. They
      // have ended when a wait ends because of the failure. So wait in an unused group, in which nothing is ever sent.
      std::vector<int64_t> backwards;
      for (int64_t each = size(); each > 0; --each) backwards.push_back(each - 1);
      Communicator& unused = inner().group(backwards);
      EXPECT_THROW(unused.receive(&places_left_, 1, DataType::int64, size() - 1 - (rank() + 1) % size()), RankFailure);
      throw Killed();  // NOLINT(bugprone-std-exception-baseclass): no code under test may catch it
    }
    NoticedPlacesWorld::set_place(place);
  }

 private:
  int64_t& places_left_;
  const std::function<void()> end_;
};

// The launcher of these tests: lets all remaining processes meet again, and keeps the arenas of ended processes.
class Meeting {
 public:
  struct Invitation {
    Epoch epoch;
    std::vector<KeptArena> kept;
    std::function<std::unique_ptr<World>(int64_t rank)> join;
  };

  // `machines`: by process; empty: one machine. Processes meet in shared memory, or over TCP.
  Meeting(int64_t size, std::vector<int64_t> machines, WorldKind kind)
      : machines_(std::move(machines)), kind_(kind), next_number_(size) {
    for (int64_t process = 0; process < size; ++process) living_.insert(process);
  }

  Invitation next(int64_t process) {
    std::unique_lock lock(mutex_);
    ready_.insert(process);
    const int64_t mine = number_;
    begin_if_all_are_ready();
    changed_.wait(lock, [&] { return number_ > mine; });
    Invitation invitation = epochs_.at(mine);
    for (const auto& [owner, arena] : kept_) {
      if (machines_.empty() || machines_.at(owner) == machines_.at(process)) invitation.kept.push_back(arena);
    }
    return invitation;
  }
  void gone(int64_t process) {
    const std::scoped_lock lock(mutex_);
    living_.erase(process);
    ready_.erase(process);
    begin_if_all_are_ready();
  }
  // Records that a process has ended. Returns the number of the process that replaces it on its machine.
  int64_t replaced(int64_t process) {
    const std::scoped_lock lock(mutex_);
    const int64_t newcomer = next_number_++;
    if (!machines_.empty()) machines_.push_back(machines_.at(process));
    living_.erase(process);
    ready_.erase(process);
    living_.insert(newcomer);
    return newcomer;
  }
  void keep(int64_t process, const StateArena& arena) {
    const std::scoped_lock lock(mutex_);
    kept_[process] = {process, getpid(), arena.file().number()};
  }
  int64_t machine_of(int64_t process) {
    const std::scoped_lock lock(mutex_);
    return machines_.empty() ? 0 : machines_.at(process);
  }

 private:
  void begin_if_all_are_ready() {
    if (living_.empty() || ready_ != living_) return;
    Epoch epoch{.number = number_, .processes = {living_.begin(), living_.end()}, .lost = {}};
    if (!machines_.empty()) {
      for (const int64_t process : epoch.processes) epoch.machines.push_back(machines_[process]);
    }
    const int64_t size = std::ssize(epoch.processes);
    epochs_.push_back({std::move(epoch), {}, kind_ == WorldKind::tcp ? over_tcp(size) : in_shared_memory(size)});
    ready_.clear();
    ++number_;
    changed_.notify_all();
  }

  static std::function<std::unique_ptr<World>(int64_t)> in_shared_memory(int64_t size) {
    auto segment = std::make_shared<SharedSegment>(SharedSegment::create(size));
    return [segment, size](int64_t rank) { return join_shared_memory(segment, rank, size, 60, false); };
  }

  static std::function<std::unique_ptr<World>(int64_t)> over_tcp(int64_t size) {
    struct Places {
      explicit Places(int64_t ranks) : told(ranks) {
        for (auto& place : told) found.push_back(place.get_future().share());
      }
      std::vector<std::promise<std::string>> told;
      std::vector<std::shared_future<std::string>> found;
    };
    auto places = std::make_shared<Places>(size);
    return [places, size](int64_t rank) {
      const TcpMeeting meeting{"127.0.0.1",
                               [&](int64_t of, const std::string& place) { places->told[of].set_value(place); },
                               [&](int64_t of) { return places->found[of].get(); }};
      TcpRank self{.rank = rank, .size = size, .wait_seconds = 60};
      self.after_failure = AfterFailure::leave_it_to_the_launcher;
      return join_tcp(self, meeting);
    };
  }

  std::vector<int64_t> machines_;
  const WorldKind kind_;
  int64_t next_number_;
  std::map<int64_t, KeptArena> kept_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int64_t> living_, ready_;
  std::vector<Invitation> epochs_;
  int64_t number_ = 0;
};

struct Healed {
  std::map<int64_t, uint64_t> hashes;  // of the state, by step, in the latest epoch
  std::map<int64_t, double> losses;
  std::map<int64_t, int64_t> samples;  // consumed samples, by step
  std::vector<Regrouped> regroupings;
  std::vector<std::string> errors;  // one for each process that could not continue
};

// The events of a test's run.
struct Story {
  RunConfig config;
  int64_t steps = 4;
  std::vector<int64_t> machines = {};  // by process; empty: one for all
  WorldKind kind = WorldKind::shared_memory;
  // By process: the place at which it ends, counted over all epochs.
  std::map<int64_t, int64_t> deaths = {};
  std::set<int64_t> with_machine = {};  // processes that end together with their whole machine
  std::set<int64_t> forgets = {};       // processes that lose their state when another one ends
  bool replaces = false;                // whether new processes replace ended ones, and can read their arenas
  std::optional<Move> move = {};
  bool mans_from_the_end = false;
  bool hashes_steps = true;  // this waits for all gathers of an update; if false, only regroups are hashed
  // May damage the state after a regroup has moved it.
  std::function<void(Trainer&, int64_t rank)> strike = [](Trainer&, int64_t) {};
};

class RegroupTest : public TrainerSwitch {
 protected:
  using Choose = std::function<Configuration(int64_t ranks)>;
  using Strike = decltype(Story::strike);

  // The first members become the ranks or, with mans_from_the_end, the first one and then the others from the end.
  static MannedConfiguration manned(const Configuration& configuration, const Story& story, int64_t ranks) {
    std::vector<int64_t> members(configuration.strategy.world_size());
    std::iota(members.begin(), members.end(), 0);
    for (int64_t rank = 1; story.mans_from_the_end && rank < std::ssize(members); ++rank) members[rank] = ranks - rank;
    return {configuration, members};
  }

  // Hashes the state after every step, switch and regroup.
  static Healed train(const Story& story, const Choose& choose) {
    const RunConfig& config = story.config;
    const Dataset dataset(config.data, config.train.sequence_length, config.model.vocab_size, config.execution.seed);
    const int64_t size = config.parallel.world_size();
    Meeting meeting(size, story.machines, story.kind);
    std::map<int64_t, std::atomic<bool>> machine_is_gone;
    for (const int64_t machine : story.machines) machine_is_gone[machine] = false;
    Healed result;
    std::mutex mutex;
    std::vector<std::thread> threads;
    std::mutex of_threads;
    std::function<void(int64_t)> process;
    const auto start = [&](int64_t number) {
      const std::scoped_lock lock(of_threads);
      threads.emplace_back([&process, number] { process(number); });
    };
    process = [&](int64_t number) {
      int64_t places_left = story.deaths.contains(number) ? story.deaths.at(number) : -1;
      SurvivingState state;
      for (bool is_first = number < size;; is_first = false) {
        const auto [epoch, kept, join] = meeting.next(number);
        const int64_t rank = std::ranges::find(epoch.processes, number) - epoch.processes.begin();
        const auto is_gone = [&] {
          return number < std::ssize(story.machines) && machine_is_gone.at(story.machines[number]);
        };
        if (is_gone()) places_left = 1;  // it had left the epoch before the other ranks of its machine ended
        const auto end = [&] {
          if (story.with_machine.contains(number)) machine_is_gone.at(story.machines[number]) = true;
        };
        auto world = std::make_unique<MortalWorld>(join(rank), places_left, end);
        std::unique_ptr<World> training;
        std::unique_ptr<Trainer> trainer;
        // A killed process releases nothing.
        const auto die = [&] {
          [[maybe_unused]] const Trainer* left = trainer.release();
          new SurvivingState(std::move(state));
          [[maybe_unused]] const World* lost = world.release();
          [[maybe_unused]] const World* gone = training.release();
          story.replaces ? start(meeting.replaced(number)) : meeting.gone(number);
        };
        const auto note = [&](bool hashes) {
          const std::optional<uint64_t> hash = hashes ? std::optional(trainer->hash_of_state().value()) : std::nullopt;
          if (rank > 0) return;
          const std::scoped_lock lock(mutex);
          const int64_t step = trainer->state().step;
          if (hash) result.hashes[step] = *hash;
          result.samples[step] = trainer->state().consumed_samples;
          if (const auto record = trainer->latest_record()) result.losses[record->step] = record->loss;
        };
        std::vector<int64_t> working;  // members that train
        const auto everyone_else = [&](auto visit) {
          for (int64_t spare = 0; spare < world->size(); ++spare) {
            if (std::ranges::find(working, spare) == working.end()) visit(spare);
          }
        };
        int64_t done = 0;
        try {
          working.resize(world->size());
          std::iota(working.begin(), working.end(), 0);
          if (is_first) {
            trainer = std::make_unique<Trainer>(config, configuration_of(config), dataset, at::kCPU, *world,
                                                epoch.processes, epoch.machines);
            meeting.keep(number, *trainer->arena());
            world->everyone().barrier();
            trainer->keep_record(0);
          } else {
            state.loaded_in = 0;
            ASSERT_TRUE(join_arenas(*world, epoch, kept, state));
            meeting.keep(number, *state.arena);
            const auto regrouped =
                regroup(config, *world, epoch, true, state, [&](const Configuration&, int64_t ranks) {
                  return std::optional(manned(choose(ranks), story, ranks));
                });
            if (regrouped && rank == 0) {
              const std::scoped_lock lock(mutex);
              result.regroupings.push_back(*regrouped);
            }
            if (std::ranges::find(regrouped->members, rank) == regrouped->members.end()) {  // a spare
              world->everyone().receive(&done, 1, DataType::int64, 0);
              break;
            }
            working = regrouped->members;
            training = chosen_ranks(*world, working);
            trainer = std::make_unique<Trainer>(config, dataset, at::kCPU, *training, std::exchange(state, {}));
            trainer->publish_weights();
            story.strike(*trainer, training->rank());
            trainer->check_state(regrouped->hash);
          }
          note(true);
          while (trainer->state().step < story.steps) {
            const int64_t step = trainer->state().step;
            if (is_first && rank == 0 && story.move && story.move->after_step == step + 1) {
              trainer->announce(intent_of(config, *story.move));
            }
            trainer->step();
            note(story.hashes_steps);
            if (const auto report = trainer->switch_if_due()) {
              EXPECT_EQ(report->outcome, Outcome::moved) << report->reason;
              note(true);
            }
          }
          if (rank == 0) {
            everyone_else([&](int64_t spare) { world->everyone().send(&done, 1, DataType::int64, spare); });
          }
          break;
        } catch (const Killed&) {
          return die();
        } catch (const RankFailure&) {
          if (is_gone()) return die();
          if (trainer) state = *trainer->leave();
          if (story.forgets.contains(number)) state = {};
        } catch (const std::exception& error) {
          const std::scoped_lock lock(mutex);
          result.errors.emplace_back(error.what());
          break;
        }
        trainer.reset();
        training.reset();
      }
      meeting.gone(number);
    };
    for (int64_t number = 0; number < size; ++number) start(number);
    for (size_t next = 0;; ++next) {
      std::thread thread;
      {
        const std::scoped_lock lock(of_threads);
        if (next == threads.size()) break;
        thread = std::move(threads[next]);
      }
      thread.join();
    }
    return result;
  }

  // Expects that a disturbed run has, at its latest regroup, the state of an undisturbed run, and in all steps the same
  // samples and losses.
  static void expect_healed(const Healed& after, const Healed& expected, const Story& story) {
    ASSERT_TRUE(after.errors.empty()) << after.errors.front();
    const int64_t step = after.regroupings.back().after_step;
    ASSERT_EQ(after.hashes.at(step), expected.hashes.at(step)) << "after step " << step;
    for (int64_t each = 1; each <= story.steps; ++each) {
      ASSERT_EQ(after.samples.at(each), expected.samples.at(each));
      ASSERT_NEAR(after.losses.at(each) / expected.losses.at(each), 1, 1e-4) << "step " << each;
    }
  }

  // Ends one rank at increasing places, with its machine if the story says so, until no rank reports that many places.
  // Returns how many runs have healed, and how many of them completed a step that no rank had finished.
  static std::pair<int64_t, int64_t> end_anywhere(Story story, const Choose& choose, int64_t stride) {
    const bool hashes_steps = std::exchange(story.hashes_steps, true);
    const Healed expected = train(story, choose);
    EXPECT_TRUE(expected.errors.empty());
    story.hashes_steps = hashes_steps;
    int64_t healed = 0, completed = 0;
    for (int64_t place = 1, in_vain = 0; in_vain < 4; place += stride) {
      const int64_t victim = place % 4;
      story.deaths = {{victim, place}};
      const Healed after = train(story, choose);
      if (after.regroupings.empty() && after.errors.empty()) {
        ++in_vain;
        continue;
      }
      SCOPED_TRACE(concat("rank ", victim, " ends at place ", place));
      expect_healed(after, expected, story);
      if (::testing::Test::HasFatalFailure()) break;
      ++healed;
      completed += after.regroupings.front().completed_step;
    }
    std::cout << healed << " healed, " << completed << " of them with a step that nobody had ended\n";
    return {healed, completed};
  }

  static Choose layout(const RunConfig& config, const std::map<int64_t, std::vector<Change>>& by_ranks) {
    return [=](int64_t ranks) {
      auto found = by_ranks.upper_bound(ranks);
      return configuration_of(with_changes(config, std::prev(found)->second));
    };
  }
};

struct Case {
  std::vector<Change> begin;
  std::map<int64_t, std::vector<Change>> then;  // by number of remaining ranks
  std::vector<int64_t> machines = {};
  std::vector<Change> move = {};  // a switch after the second step
  WorldKind kind = WorldKind::shared_memory;
};

const std::vector<Change> four_samples = {micro_batch(1), global_batch(4)};
const std::vector<Case> cases = {
    {{ranks(4, 1, 1)}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1)}}}},
    {{ranks(2, 2, 1), tied}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(1, 2, 1)}}, {3, {ranks(1, 1, 2)}}}},
    {{ranks(2, 1, 2), zero_1}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_1}}, {3, {ranks(1, 1, 3)}}}},
    {{ranks(4, 1, 1), zero_2, bf16}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_3}}}},
    {{ranks(2, 1, 2), zero_3, tied}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(1, 2, 1)}}}},
    {{ranks(2, 1, 2), zero_1, signum}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(1, 2, 1)}}, {3, {ranks(1, 1, 3)}}}},
    {{ranks(2, 1, 2), zero_1, muon, dual_norms}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(1, 2, 1)}}, {3, {ranks(1, 1, 3)}}}},
};

Story story_of(const RunConfig& config, const Case& one) {
  Story story{.config = config, .machines = one.machines, .kind = one.kind};
  if (!one.move.empty()) story.move = Move{.after_step = 2, .changes = one.move};
  return story;
}

TEST_F(RegroupTest, AfterARankHasEndedAnywhereTheStateIsThatOfARunWithoutFaults) {
  for (const Case& one : cases) {
    const Story story = story_of(config(join(one.begin, four_samples)), one);
    EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 13).first, 4);
    if (HasFailure()) return;
  }
}

TEST_F(RegroupTest, AfterARankHasEndedAtAnyOfManyPlacesTheStateIsThatOfARunWithoutFaults) {
  for (const Case& one : cases) {
    const Story story = story_of(config(join(one.begin, four_samples)), one);
    // There are few places between the decision about a step and its end.
    EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 3).first, 20);
    if (HasFailure()) return;
  }
}

// With ZeRO-1 and 2, gathers of an update overlap with the start of the next step or of an announced switch.
TEST_F(RegroupTest, RanksMayEndWhileTheWeightsOfAnUpdateAreGathered) {
  const std::vector<Case> others = {
      {{ranks(2, 1, 2), zero_1}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_1}}, {3, {ranks(1, 1, 3)}}}},
      {{ranks(4, 1, 1), zero(2, 2), tied}, {{1, {ranks(1, 1, 1), zero(0)}}}, {0, 0, 1, 1}, {ranks(2, 1, 2), zero_1}},
  };
  for (Case one : others) {
    if (!one.machines.empty()) one.kind = WorldKind::tcp;
    Story story = story_of(config(join(one.begin, four_samples)), one);
    story.hashes_steps = false;
    EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 7).first, 10);
    if (HasFailure()) return;
  }
}

// A rank ends within a step, and then the others move damaged state.
TEST_F(RegroupTest, DamageOfTheStateThatWasMovedIsNoticedBeforeTheNextStep) {
  const auto refusals = [&](const std::vector<Change>& begin, const std::vector<Change>& then, const Strike& strike) {
    const Story story{
        .config = config(join(begin, {micro_batch(1), global_batch(6)})), .deaths = {{1, 40}}, .strike = strike};
    const Healed after = train(story, layout(story.config, {{1, then}}));
    EXPECT_EQ(after.regroupings.size(), 1);
    return after.errors;
  };
  const Strike one_copy = [](Trainer& trainer, int64_t rank) {
    if (rank == 2) state_damage::change_a_bit(trainer.parameters().buckets().front().master);
  };
  EXPECT_THAT(refusals({ranks(2, 1, 2)}, {ranks(3, 1, 1)}, one_copy),
              ::testing::AllOf(::testing::SizeIs(3), ::testing::Each(::testing::HasSubstr("should hold the same"))));
  const Strike layers = [](Trainer& trainer, int64_t) {
    const std::vector<Bucket>& buckets = trainer.parameters().buckets();
    state_damage::swap_values(buckets[1].master, buckets[2].master);
    trainer.publish_weights();
  };
  EXPECT_THAT(refusals({ranks(2, 2, 1), bf16, zero_1}, {ranks(3, 1, 1)}, layers),
              ::testing::AllOf(::testing::SizeIs(3), ::testing::Each(::testing::HasSubstr("are not what they were"))));
  const Strike nothing = [](Trainer&, int64_t) {};
  EXPECT_THAT(refusals({ranks(2, 2, 1), bf16, zero_2}, {ranks(3, 1, 1)}, nothing), ::testing::IsEmpty());
}

// A remaining rank on the same machine sends an ended rank's state to the other machine.
TEST_F(RegroupTest, OnSeveralMachinesAsOnOne) {
  std::vector<Case> on_two = cases;
  on_two[0].move = {ranks(2, 1, 2)};
  on_two[3].move = {ranks(2, 2, 1), zero_1};
  for (Case& one : on_two) {
    one.machines = {0, 0, 1, 1};
    one.kind = WorldKind::tcp;
    const Story story = story_of(config(join(one.begin, four_samples)), one);
    EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 7).first, 10);
    if (HasFailure()) return;
  }
}

// Ranks need not be the first members, nor in their order.
TEST_F(RegroupTest, RanksMayBeAnyMembersInAnyOrder) {
  const std::vector<Case> others = {
      {{ranks(4, 1, 1)}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1)}}}},
      {{ranks(2, 1, 2), zero_1}, {{1, {ranks(1, 1, 1)}}, {3, {ranks(1, 1, 3)}}}},
      {{ranks(4, 1, 1), zero_2, bf16}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_3}}}, {0, 0, 1, 1}},
  };
  for (Case one : others) {
    if (!one.machines.empty()) one.kind = WorldKind::tcp;
    Story story = story_of(config(join(one.begin, four_samples)), one);
    story.mans_from_the_end = true;
    EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 7).first, 10);
    if (HasFailure()) return;
  }
}

// The other machine has the shares of weights that a rank lacks.
TEST_F(RegroupTest, WholeWeightsAreGatheredAgainFromTheOtherMachine) {
  const Case one{{ranks(4, 1, 1), zero_2}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_1}}}, {0, 1, 0, 1}};
  const Story story = story_of(config(join(one.begin, four_samples)), one);
  EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 3).first, 20);
}

TEST_F(RegroupTest, AfterAMachineHasEndedAnywhereTheStateIsThatOfARunWithoutFaults) {
  const std::vector<Case> with_copies = {
      {{ranks(4, 1, 1)}, {{2, {ranks(1, 2, 1)}}}, {0, 0, 1, 1}},
      {{ranks(2, 1, 2), tied}, {{2, {ranks(2, 1, 1)}}}, {0, 1, 0, 1}, {ranks(4, 1, 1), tied}},
      {{ranks(4, 1, 1), zero(1, 2)}, {{2, {ranks(1, 1, 2), zero(0)}}}, {0, 1, 1, 0}, {ranks(4, 1, 1), zero(2, 2)}},
      {{ranks(4, 1, 1), zero(3, 2), bf16}, {{2, {ranks(2, 1, 1), zero_1}}}, {0, 0, 1, 1}},
  };
  for (const Case& one : with_copies) {
    Story story = story_of(config(join(one.begin, four_samples)), one);
    story.with_machine = {0, 1, 2, 3};
    story.kind = WorldKind::tcp;
    EXPECT_GT(end_anywhere(story, layout(story.config, one.then), 3).first, 20);
    if (HasFailure()) return;
  }
}

// State that only one machine had is lost with it. One message names this state, and what would have preserved it.
TEST_F(RegroupTest, WhatOnlyTheLostMachineHadIsNamed) {
  struct Loss {
    Case what;
    std::string named;
  };
  const std::vector<Loss> losses = {
      {{{ranks(1, 1, 4)}, {{2, {ranks(1, 1, 2)}}}, {0, 0, 1, 1}}, "layer 2 and 2 other parts"},
      {{{ranks(4, 1, 1), zero_1}, {{2, {ranks(2, 1, 1)}}}, {0, 0, 1, 1}}, "embedding and 5 other parts"},
      {{{ranks(4, 1, 1), zero(3, 2)}, {{2, {ranks(2, 1, 1)}}}, {0, 1, 0, 1}}, "embedding and 5 other parts"},
  };
  for (const Loss& loss : losses) {
    Story story = story_of(config(join(loss.what.begin, four_samples)), loss.what);
    story.with_machine = {3};
    for (const int64_t place : {25, 40, 41, 42}) {
      story.deaths = {{3, place}};
      const Healed after = train(story, layout(story.config, loss.what.then));
      ASSERT_EQ(after.errors.size(), 2U) << "both that are left, at place " << place;
      EXPECT_EQ(after.errors[0], after.errors[1]);
      EXPECT_NE(after.errors[0].find(loss.named), std::string::npos) << after.errors[0];
      EXPECT_NE(after.errors[0].find("--resume"), std::string::npos) << after.errors[0];
      EXPECT_NE(after.errors[0].find("zero_replicas"), std::string::npos) << after.errors[0];
    }
  }
}

// Places are counted over all epochs. The second victim ends first within its steps, later in everything that follows
// the first victim's end. At least two data-parallel ranks remain, so that bits can be compared.
TEST_F(RegroupTest, AMachineMayEndWhileAnotherRanksEndIsHealed) {
  const Case one{{ranks(2, 1, 2)}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1)}}}, {0, 1, 0, 1}};
  Story story = story_of(config(join(one.begin, four_samples)), one);
  story.with_machine = {1};
  const Choose choose = layout(story.config, one.then);
  const Healed expected = train(story, choose);
  int64_t twice = 0;
  for (int64_t place = 36; place < 76; place += 2) {
    SCOPED_TRACE(concat("ranks 1 and 3 end at place ", place));
    story.deaths = {{0, 40}, {1, place}};
    const Healed after = train(story, choose);
    expect_healed(after, expected, story);
    if (HasFailure()) return;
    EXPECT_EQ(after.regroupings.back().now.strategy.world_size(), 1);
    twice += after.regroupings.size() > 1;
  }
  EXPECT_GT(twice, 3);
}

// The ranks have the numbers of step 2, and no rank has made its update. In these numbers the noise scale is 4 samples.
TEST_F(RegroupTest, TheRecordOfACompletedStepFollowsTheCriticalBatchesThatTheRunMeasured) {
  const RunConfig run = config({ranks(2, 1, 1), micro_batch(1), global_batch(4)});
  run_ranks_as_threads(
      2,
      [&](World& world) {
        kernels::set_num_threads(1);
        const Dataset dataset = open_data(run);
        const Epoch epoch{.number = 1, .processes = {0, 1}};
        auto trainer = std::make_unique<Trainer>(run, configuration_of(run), dataset, at::kCPU, world, epoch.processes);
        world.everyone().barrier();
        trainer->keep_record(0);
        const MeasuredCriticalBatch measured{.tokens = 1, .noise_scale = 1, .critical_batch = 6, .deviation = 1};
        trainer->learn({measured});
        trainer->step();
        SurvivingState state = *trainer->leave();
        trainer.reset();
        state.decided.step = 2;
        state.decided.agreed.squared_norm = 4;
        state.decided.agreed.small_squared_norms = 3;
        NoiseAverage& noise = state.at_rest.training.noise_average = {};
        const NormObservation observed{
            .small_batch = 2, .small_squared_norm = 6, .large_batch = 4, .large_squared_norm = 4};
        for (int step = 0; step < 40; ++step) noise = observe(noise, observed, NoiseWindow());
        const auto regrouped = regroup(run, world, epoch, true, state, [](const Configuration& before, int64_t) {
          return std::optional(MannedConfiguration{before, {0, 1}});
        });
        EXPECT_TRUE(regrouped->completed_step);
        EXPECT_DOUBLE_EQ(state.record->critical_batch.value(), 6 * state.record->noise_scale.value());
      },
      60);
}

// No earlier process remains, and new ones find the state in the arenas of ended ones. All ranks end at the same place,
// anywhere, before the next step.
TEST_F(RegroupTest, WhereAllRanksHaveEndedOthersGoOnFromWhatIsKeptOfThem) {
  for (const Case& one : cases) {
    Story story = story_of(config(join(one.begin, four_samples)), one);
    if (&one == &cases[1]) story.move = Move{.after_step = 2, .changes = {ranks(1, 2, 2), tied}};
    const Choose choose = layout(story.config, {{4, {}}});
    const Healed expected = train(story, choose);
    ASSERT_TRUE(expected.errors.empty());
    story.replaces = true;
    int64_t nobody_was_left = 0;
    // Not every place: ranks that have ended keep their maps of shared memory, and addresses run out after some 1,000.
    for (int64_t place = 22; place < 160; place += 4) {
      SCOPED_TRACE(concat("all end at place ", place));
      story.deaths = {{0, place}, {1, place}, {2, place}, {3, place}};
      const Healed after = train(story, choose);
      if (after.regroupings.empty()) break;
      expect_healed(after, expected, story);
      if (HasFailure()) return;
      nobody_was_left +=
          std::ranges::all_of(after.regroupings.back().survivors, [](int64_t process) { return process > 3; });
    }
    std::cout << nobody_was_left << " times nobody was left\n";
    EXPECT_GT(nobody_was_left, 10);
  }
}

// Only the arenas that a machine keeps have the state of its ranks.
TEST_F(RegroupTest, WhereAllRanksOfAMachineHaveEndedOthersThereGiveWhatIsKeptOfThem) {
  const Case one{{ranks(1, 1, 4)}, {{4, {}}}, {0, 0, 1, 1}};
  Story story = story_of(config(join(one.begin, four_samples)), one);
  story.kind = WorldKind::tcp;
  const Choose choose = layout(story.config, one.then);
  const Healed expected = train(story, choose);
  story.replaces = true;
  for (int64_t place = 22; place < 100; place += 7) {
    SCOPED_TRACE(concat("ranks 2 and 3 end at place ", place));
    story.deaths = {{2, place}, {3, place}};
    const Healed after = train(story, choose);
    expect_healed(after, expected, story);
    if (HasFailure()) return;
    EXPECT_THAT(after.regroupings.back().survivors, ::testing::IsSupersetOf({0, 1}));
  }
}

// The last earlier process ends during the regroup, when the new one already knows something or has its part of the
// state.
TEST_F(RegroupTest, ANewcomerGoesOnFromTheLastHolderThatEndsWhileItComes) {
  const Case one{{ranks(2, 1, 1)}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1)}}}};
  Story story = story_of(config(join(one.begin, four_samples)), one);
  const Choose choose = layout(story.config, one.then);
  const Healed expected = train(story, choose);
  story.replaces = true;
  int64_t by_newcomers = 0;
  for (int64_t place = 31; place < 60; ++place) {
    SCOPED_TRACE(concat("rank 0 ends at place ", place));
    story.deaths = {{1, 30}, {0, place}};
    const Healed after = train(story, choose);
    expect_healed(after, expected, story);
    if (HasFailure()) return;
    by_newcomers += after.regroupings.back().survivors.front() > 1;
  }
  EXPECT_GT(by_newcomers, 5);
}

// The member exists, but its memory no longer holds the old layout.
TEST_F(RegroupTest, AMemberThatHoldsNothingAnyMoreCountsAsEnded) {
  Story story = story_of(config(join(cases[0].begin, four_samples)), cases[0]);
  const Choose choose = layout(story.config, cases[0].then);
  const Healed expected = train(story, choose);
  story.deaths = {{1, 40}};
  story.forgets = {0, 2};
  const Healed after = train(story, choose);
  expect_healed(after, expected, story);
  EXPECT_THAT(after.regroupings.back().survivors, ::testing::ElementsAre(3));

  story = story_of(config(join({ranks(1, 1, 4)}, four_samples)), cases[0]);
  story.deaths = {{1, 40}};
  story.forgets = {2};
  EXPECT_THAT(train(story, choose).errors, ::testing::Each(::testing::HasSubstr("the training state of")));
}

// A spare on the machine can read the only copy of a rank's state.
TEST_F(RegroupTest, ASpareStandsInForTheLastRankOfItsMachine) {
  for (const Change& optimizer : {Change([](RunConfig&) {}), muon}) {
    const Case one{{ranks(2, 1, 2), optimizer}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_1}}}, {0, 0, 1, 1}};
    Story story = story_of(config(join(one.begin, four_samples)), one);
    const Choose choose = layout(story.config, one.then);
    const Healed expected = train(story, choose);
    int64_t twice = 0;
    for (int64_t place = 50; place < 130; place += 3) {
      SCOPED_TRACE(concat("rank 2 ends at place ", place));
      story.deaths = {{0, 30}, {2, place}};
      const Healed after = train(story, choose);
      expect_healed(after, expected, story);
      if (HasFailure()) return;
      twice += after.regroupings.size() > 1;
    }
    EXPECT_GT(twice, 5);
  }
}

}  // namespace
}  // namespace copus
