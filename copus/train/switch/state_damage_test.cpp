// Silent damage: anything that may go wrong in a move is detected before a step uses the state, in every layout and
// precision. The random sequences of relayout_test.cpp show that there are no false alarms.
#include "copus/train/testing/state_damage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/comm/testing/noticed_places_world.h"
#include "copus/train/state/state_hash.h"
#include "copus/train/testing/moving_state.h"
#include "copus/train/testing/switch_test_support.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;
using state_damage::all_damages;
using state_damage::Counters;
using state_damage::Damage;

struct MoveInto {
  std::vector<Change> changes;
  ParallelStrategy from;
};

// Layouts of every ZeRO stage, with and without copies, with replicas, tied weights and pipelines.
std::vector<MoveInto> moves() {
  const ParallelStrategy data{.data_parallel = 4}, cut{.data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 1},
      tensor{.data_parallel = 2, .tensor_parallel = 2, .sequence_parallel = true};
  return {{{ranks(2, 2, 1)}, data},
          {{ranks(4, 1, 1), zero_1}, tensor},
          {{ranks(4, 1, 1), zero_2}, cut},
          {{ranks(4, 1, 1), zero_3}, data},
          {{ranks(4, 1, 1), zero(1, 2)}, tensor},
          {{ranks(4, 1, 1), zero(3, 2)}, cut},
          {{ranks(1, 4, 1), kv_heads(1)}, cut},
          {{ranks(1, 2, 2), tied, sequence_parallel}, data},
          {{ranks(2, 1, 2), tied, zero_1}, data},
          {{ranks(2, 1, 2), tied, zero_3}, tensor},
          {{ranks(1, 1, 4), tied}, cut},
          {{ranks(2, 1, 2), interleaved}, tensor}};
}

TrainingState counters_of_a_run() {
  TrainingState state;
  state.step = state.optimizer_steps = 12;
  state.consumed_samples = 96;
  state.optimizer.set("beta2_product", 0.5);
  state.noise_average.steps = 12;
  return state;
}

TEST(StateDamage, EveryClassIsNoticedInEveryLayoutThatHasSuchState) {
  const std::vector<Damage> damages = all_damages();
  std::mutex mutex;
  std::map<std::string, int64_t> struck;  // number of layouts by class
  for (const Change& precision : {fp32, bf16}) {
    for (const auto& [changes, from] : moves()) {
      RunConfig config = tiny_run();
      precision(config);
      config = with_changes(config, changes);
      const WholeState whole(config.model);
      run_ranks_as_threads(4, [&, from = from](World& plain) {
        kernels::set_num_threads(1);
        const auto connected = on_test_device(plain);
        World& world = *connected;
        const TrainingState run = counters_of_a_run();
        MovingState state(config, from, world, true);
        state.fill(whole);
        const StateHash before = state.hash(run);
        state.move(configuration_of(config).strategy);
        ASSERT_EQ(state.hash(run).damage_since(before), std::nullopt);
        const std::vector<std::vector<std::byte>> moved = state.bytes();
        for (const Damage& damage : damages) {
          Counters counters{run, run.optimizer_steps};
          damage.strike(state.model(), counters);
          if (!damage.is_after_publishing) state.model().publish_weights();
          int64_t differs = state.bytes() != moved || counters != Counters{run, run.optimizer_steps};
          world.everyone().all_reduce(&differs, 1, DataType::int64, Reduction::maximum);
          const auto noticed = state.hash(counters.state, counters.updates).damage_since(before);
          EXPECT_EQ(noticed.has_value(), differs != 0)
              << damage.name << " in " << to_string(layout_of(config.parallel)) << ", ZeRO-"
              << config.parallel.zero_stage << ": " << noticed.value_or("nothing");
          state.restore(moved);
          if (differs == 0 || world.rank() > 0) continue;
          const std::scoped_lock lock(mutex);
          ++struck[damage.name];
        }
        EXPECT_EQ(state.hash(run).damage_since(before), std::nullopt);
      });
    }
  }
  for (const Damage& damage : damages) EXPECT_GE(struck[damage.name], 2) << damage.name;
}

// A world that calls a function when its rank comes to a place for the `nth` time.
class StruckWorld final : public NoticedPlacesWorld {
 public:
  explicit StruckWorld(std::unique_ptr<World> inner) : NoticedPlacesWorld(std::move(inner)) {}

  void strike_at(std::string place, int64_t nth, std::function<void()> strike) {
    place_ = std::move(place);
    times_left_ = nth;
    strike_ = std::move(strike);
  }

  void set_place(std::string_view place) override {
    NoticedPlacesWorld::set_place(place);
    if (!place_.empty() && place.ends_with(place_) && --times_left_ == 0) strike_();
  }

 private:
  std::string place_;
  int64_t times_left_ = 0;
  std::function<void()> strike_;
};

class DamagedSwitch : public TrainerSwitch {
 protected:
  // Trains a step and switches. Each rank's weights are damaged when the switch verifies for the `nth` time. Returns
  // the message of rank 0. Every rank must fail.
  static std::string message_of(const RunConfig& begin, const Move& move, int64_t nth,
                                const std::function<void(ParameterStore&, World&)>& strike) {
    std::string message;
    train_on_every_rank(
        begin,
        [&](Trainer& trainer, World& world, const Dataset&) {
          static_cast<StruckWorld&>(world).strike_at(": verifying", nth, [&] { strike(trainer.parameters(), world); });
          if (world.rank() == 0) trainer.announce(intent_of(begin, move));
          trainer.step();
          try {
            trainer.switch_if_due();
            ADD_FAILURE() << "rank " << world.rank() << " goes on";
          } catch (const InternalError& error) {
            if (world.rank() == 0) message = error.what();
          }
        },
        [](World& world) { return std::make_unique<StruckWorld>(on_test_device(world)); });
    return message;
  }
};

using ::testing::HasSubstr;

TEST_F(DamagedSwitch, ItEndsTheRunBeforeTheNextStep) {
  const auto last_differs = [](ParameterStore& parameters, World& world) {
    if (world.rank() + 1 == world.size()) state_damage::change_a_bit(parameters.buckets().front().master);
  };
  const RunConfig begin = config({ranks(2, 2, 1)});
  EXPECT_THAT(message_of(begin, {1, {ranks(4, 1, 1)}}, 2, last_differs),
              AllOf(HasSubstr("-> d=4,t=1,p=1"), HasSubstr("failed, and with it the training state"),
                    HasSubstr("ranks that should hold the same master weights of model.embed_tokens.weight do not")));
  EXPECT_THAT(message_of(begin, {1, {ranks(4, 1, 1), zero_2}}, 2,
                         [](ParameterStore& parameters, World& world) {
                           const Bucket& bucket = parameters.buckets()[1];
                           int64_t end = 0;  // of the parameters; padding follows
                           for (const int64_t index : bucket.parameters) {
                             const Parameter& parameter = parameters.parameters()[index];
                             end = std::max(end, parameter.offset + parameter.box.num_elements());
                           }
                           if (world.rank() == 0) state_damage::change_a_bit(bucket.weight.narrow(0, end - 1, 1));
                         }),
              HasSubstr("ranks that should hold the same master weights of model.layers.0."));
  EXPECT_THAT(message_of(begin, {1, {ranks(4, 1, 1)}}, 2,
                         [](ParameterStore& parameters, World&) {
                           state_damage::swap_values(parameters.buckets()[1].master, parameters.buckets()[2].master);
                         }),
              HasSubstr("are not what they were"));
  EXPECT_THAT(message_of(config({ranks(2, 2, 1), tied}), {1, {ranks(2, 1, 2)}}, 2,
                         [](ParameterStore& parameters, World&) {
                           const Parameter* const head = parameters.find_tied_copy();
                           if (head != nullptr) parameters.master(*head).mul_(1.001);
                         }),
              HasSubstr("ranks that should hold the same master weights of model.embed_tokens.weight do not"));
  EXPECT_THAT(message_of(config({ranks(2, 2, 1), bf16}), {1, {ranks(4, 1, 1), zero_1}}, 2,
                         [](ParameterStore& parameters, World&) { parameters.buckets()[1].weight.mul_(0.5); }),
              HasSubstr("compute weights of model.layers.0"));
}

// Moving a damaged state would spread it.
TEST_F(DamagedSwitch, AStateThatWasDamagedBeforeIsNotMoved) {
  EXPECT_THAT(message_of(config({ranks(4, 1, 1)}), {1, {ranks(2, 2, 1)}}, 1,
                         [](ParameterStore& parameters, World& world) {
                           if (world.rank() == 2) state_damage::change_a_bit(parameters.buckets().back().master);
                         }),
              AllOf(HasSubstr("before the change"), HasSubstr("the training state is damaged"),
                    HasSubstr("Go on from a checkpoint before that.")));
}

// Steps do not depend on earlier contents of the memory in which gradients are allocated.
TEST_F(DamagedSwitch, GradientsThatAreLeftOverChangeNothing) {
  for (const Change& stage : {zero(0), zero_1, zero_2, zero_3}) {
    const RunConfig begin = config({ranks(2, 1, 2), tied, stage});
    const auto train = [&](bool leaves_gradients) {
      std::vector<double> losses;
      train_on_every_rank(begin, [&](Trainer& trainer, World& world, const Dataset&) {
        for (int step = 0; step < 3; ++step) {
          for (const Bucket& bucket : trainer.parameters().buckets()) {
            if (leaves_gradients) bucket.kept_gradient.fill_(1e3);
          }
          const StepRecord record = trainer.step();
          if (world.rank() == 0) losses.push_back(record.loss);
        }
      });
      return losses;
    };
    EXPECT_EQ(train(true), train(false));
  }
}

}  // namespace
}  // namespace copus
