// Ranks that end in the middle of anything: those that are left go on from the step boundary that was decided, with
// exactly the state that the run would have had there. Ranks are threads, and end where they say where they are, which
// they do before everything that they do.
#include "copus/train/regroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/first_ranks_world.h"
#include "copus/comm/shared_memory/shared_memory_world.h"
#include "copus/train/testing/state_damage.h"
#include "copus/train/testing/switch_test_support.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;

// How a rank of these tests ends: nothing of it is told but that it is gone.
struct Killed {};

// A world whose rank ends at its `places_left`-th word about where it is.
class MortalWorld final : public WrappedWorld, public Health {
 public:
  MortalWorld(std::unique_ptr<World> inner, int64_t& places_left)
      : WrappedWorld(std::move(inner)), places_left_(places_left) {}

  Health& health() override { return *this; }
  void set_place(std::string_view place) override {
    if (places_left_ > 0 && --places_left_ == 0) {
      inner().health().report({rank(), std::string(place), "killed"});
      // A process that dies takes its threads with it. Here they have to end before what they work on, and have when a
      // wait ends by the failure.
      const auto wait = [&] {
        while (true) inner().everyone().receive(&places_left_, 1, DataType::int64, (rank() + 1) % size());
      };
      EXPECT_THROW(wait(), RankFailure);
      throw Killed();
    }
    inner().health().set_place(place);
  }
  void set_expected_step_seconds(double seconds) override { inner().health().set_expected_step_seconds(seconds); }
  void begin_wait() override { inner().health().begin_wait(); }
  void end_wait() override { inner().health().end_wait(); }
  void report(const FailureReport& report) override { inner().health().report(report); }
  std::optional<FailureReport> failure() const override { return inner().health().failure(); }

 private:
  int64_t& places_left_;
};

// The launcher of these tests: lets everybody who is left meet again.
class Meeting {
 public:
  struct Epoch {
    std::shared_ptr<SharedSegment> segment;
    std::vector<int64_t> processes;
  };

  explicit Meeting(int64_t size) {
    for (int64_t process = 0; process < size; ++process) living_.insert(process);
  }

  Epoch next(int64_t process) {
    std::unique_lock lock(mutex_);
    ready_.insert(process);
    const int64_t mine = number_;
    begin_if_all_are_ready();
    changed_.wait(lock, [&] { return number_ > mine; });
    return epochs_.at(mine);
  }
  void gone(int64_t process) {
    const std::scoped_lock lock(mutex_);
    living_.erase(process);
    ready_.erase(process);
    begin_if_all_are_ready();
  }

 private:
  void begin_if_all_are_ready() {
    if (living_.empty() || ready_ != living_) return;
    Epoch epoch{nullptr, {living_.begin(), living_.end()}};
    epoch.segment = std::make_shared<SharedSegment>(SharedSegment::create(std::ssize(epoch.processes)));
    epochs_.push_back(std::move(epoch));
    ready_.clear();
    ++number_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int64_t> living_, ready_;
  std::vector<Epoch> epochs_;
  int64_t number_ = 0;
};

struct Healed {
  std::map<int64_t, uint64_t> hashes;  // of the state, by step: those of the latest epoch
  std::map<int64_t, double> losses;
  std::map<int64_t, int64_t> samples;  // consumed, by step
  std::vector<Regrouped> regroupings;
  std::vector<std::string> refusals;  // of ranks to go on with a damaged state
};

class RegroupTest : public TrainerSwitch {
 protected:
  using Choose = std::function<Configuration(int64_t ranks)>;
  using Strike = std::function<void(Trainer&, int64_t rank)>;

  // Trains `steps` steps. Each process ends at the place that `deaths` gives for it, counted over all epochs. Hashes
  // the state after every step and after every regrouping. `strike` may damage the state that a regrouping has moved.
  static Healed train(
      const RunConfig& config, int64_t steps, std::map<int64_t, int64_t> deaths, const Choose& choose,
      const Strike& strike = [](Trainer&, int64_t) {}) {
    const Dataset dataset(config.data, config.train.sequence_length, config.model.vocab_size, config.train.seed);
    const int64_t size = config.parallel.world_size();
    Meeting meeting(size);
    Healed result;
    std::mutex mutex;
    const auto process = [&](int64_t number) {
      int64_t places_left = deaths.contains(number) ? deaths.at(number) : -1;
      SurvivingState state;
      for (bool is_first = true;; is_first = false) {
        const Meeting::Epoch epoch = meeting.next(number);
        const int64_t rank = std::ranges::find(epoch.processes, number) - epoch.processes.begin();
        auto world = std::make_unique<MortalWorld>(
            join_shared_memory(epoch.segment, rank, std::ssize(epoch.processes), 60, false), places_left);
        std::unique_ptr<World> training;
        std::unique_ptr<Trainer> trainer;
        const auto note = [&] {
          const uint64_t hash = trainer->hash_of_state().value();
          if (rank > 0) return;
          const std::scoped_lock lock(mutex);
          const int64_t step = trainer->state().step;
          result.hashes[step] = hash;
          result.samples[step] = trainer->state().consumed_samples;
          if (const auto record = trainer->latest_record()) result.losses[record->step] = record->loss;
        };
        try {
          if (is_first) {
            trainer =
                std::make_unique<Trainer>(config, configuration_of(config), dataset, at::kCPU, *world, epoch.processes);
          } else {
            const auto regrouped =
                regroup(config, *world, epoch.processes, true, state,
                        [&](const Configuration&, int64_t ranks) { return std::optional(choose(ranks)); });
            if (regrouped && rank == 0) {
              const std::scoped_lock lock(mutex);
              result.regroupings.push_back(*regrouped);
            }
            if (rank >= regrouped->now.strategy.world_size()) break;  // a spare, which these tests need no more
            training = first_ranks(*world, regrouped->now.strategy.world_size());
            trainer = std::make_unique<Trainer>(config, dataset, at::kCPU, *training, std::exchange(state, {}));
            trainer->publish_weights();
            strike(*trainer, rank);
            trainer->check_state(regrouped->hash.value());
          }
          note();
          while (trainer->state().step < steps) {
            trainer->step();
            note();
          }
          break;
        } catch (const Killed&) {
          // A process that is killed releases nothing.
          [[maybe_unused]] const Trainer* left = trainer.release();
          new SurvivingState(std::move(state));
          [[maybe_unused]] const World* lost = world.release();
          [[maybe_unused]] const World* gone = training.release();
          meeting.gone(number);
          return;
        } catch (const InternalError& error) {
          const std::scoped_lock lock(mutex);
          result.refusals.emplace_back(error.what());
          break;
        } catch (const RankFailure&) {
          if (trainer) state = *trainer->leave();
          state.has_begun = true;  // none ends before all have the first state
        }
        trainer.reset();
        training.reset();
      }
      meeting.gone(number);
    };
    std::vector<std::thread> threads;
    for (int64_t number = 0; number < size; ++number) threads.emplace_back(process, number);
    for (std::thread& thread : threads) thread.join();
    return result;
  }

  static Choose layout(const RunConfig& config, std::map<int64_t, std::vector<Change>> by_ranks) {
    return [=](int64_t ranks) {
      auto found = by_ranks.upper_bound(ranks);
      return configuration_of(with_changes(config, std::prev(found)->second));
    };
  }
};

TEST_F(RegroupTest, AfterARankHasEndedAnywhereTheStateIsThatOfARunWithoutFaults) {
  struct Case {
    std::vector<Change> begin;
    std::map<int64_t, std::vector<Change>> then;  // by ranks that are left
  };
  const std::vector<Case> cases = {
      {{ranks(4, 1, 1)}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1)}}}},
      {{ranks(2, 2, 1), tied}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(1, 2, 1)}}, {3, {ranks(1, 1, 2)}}}},
      {{ranks(2, 1, 2), zero_1}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_1}}, {3, {ranks(1, 1, 3)}}}},
      {{ranks(4, 1, 1), zero_2, bf16}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(2, 1, 1), zero_3}}}},
      {{ranks(2, 1, 2), zero_3, tied}, {{1, {ranks(1, 1, 1)}}, {2, {ranks(1, 2, 1)}}}},
  };
  constexpr int64_t steps = 4;
  for (const Case& one : cases) {
    const RunConfig begin = config(join(one.begin, {micro_batch(1), global_batch(4)}));
    const Choose choose = layout(begin, one.then);
    const Healed expected = train(begin, steps, {}, choose);
    int64_t healed = 0, completed = 0;
    // Ends at words of a rank about where it is, until no rank says so many. The places at which a step is decided and
    // not done are few.
    for (int64_t place = 1, in_vain = 0; in_vain < 4; place += 3) {
      const int64_t victim = place % 4;
      const Healed after = train(begin, steps, {{victim, place}}, choose);
      if (after.regroupings.empty()) {
        ++in_vain;
        continue;
      }
      ++healed;
      const Regrouped& regrouped = after.regroupings.front();
      completed += regrouped.completed_step;
      SCOPED_TRACE(concat("rank ", victim, " ends at place ", place, ", after step ", regrouped.after_step));
      ASSERT_EQ(after.hashes.at(regrouped.after_step), expected.hashes.at(regrouped.after_step));
      for (int64_t step = 1; step <= steps; ++step) {
        ASSERT_EQ(after.samples.at(step), expected.samples.at(step));
        ASSERT_NEAR(after.losses.at(step) / expected.losses.at(step), 1, 1e-4) << "step " << step;
      }
    }
    EXPECT_GT(healed, 20);
    std::cout << healed << " healed, " << completed << " of them with a step that nobody had ended\n";
  }
}

// A rank ends in the middle of a step, and what the others have moved then is not what it should be.
TEST_F(RegroupTest, DamageOfTheStateThatWasMovedIsNoticedBeforeTheNextStep) {
  const auto refusals = [&](const std::vector<Change>& begin, const std::vector<Change>& then, const Strike& strike) {
    const RunConfig run = config(join(begin, {micro_batch(1), global_batch(6)}));
    const Healed after = train(run, 4, {{1, 40}}, layout(run, {{1, then}}), strike);
    EXPECT_EQ(after.regroupings.size(), 1);
    return after.refusals;
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

}  // namespace
}  // namespace copus
