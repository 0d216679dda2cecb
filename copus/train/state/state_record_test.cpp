#include "copus/train/state/state_record.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/comm/testing/rank_threads.h"

namespace copus {
namespace {

TEST(StateRecord, IsReadOnceItsWriterHasEndedAndIsEmptyOnceItHoldsNothing) {
  run_ranks_as_threads(2, [](World& world) {
    SurvivingState state;
    state.arena = StateArena::join(world);
    ASSERT_NE(state.arena, nullptr);
    state.loaded_in = 3;
    if (world.rank() == 1) {
      state.at_rest.mine.resize(1);
      state.at_rest.mine.front().weight = at::zeros({4}, at::kBFloat16);
      state.at_rest.all = {{0, 1}, StateAddresses({{7}, {8, 9}})};
      state.at_rest.training.data_fingerprint = "of some data";
      state.at_rest.training.data_begin = 24;
      state.at_rest.training.held_out_fingerprint = "of other data";
      state.at_rest.training.optimizer.set("beta2_product", 0.5);
      state.at_rest.training.noise_average.trace = 3;
      state.at_rest.training.sign_noise.noise = 4;
      state.at_rest.training.spectral_noise.signal = 5;
      state.at_rest.training.preconditioned_noise.signal = 6;
      state.decided.step = 6;
      TrainingState training = state.at_rest.training;
      training.step = 5;
      write_record(state, training);
    }
    world.everyone().barrier();
    if (world.rank() == 0) {
      ASSERT_TRUE(state.arena->rejoin(*single_rank_world(), {0}));  // this rank believes that the other one has ended
      EXPECT_EQ(latest_load_on_record(state.arena.get()), 3);
      EXPECT_EQ(latest_record(state.arena.get(), 2).text, "");
      const FoundRecord found = latest_record(state.arena.get(), 3);
      EXPECT_EQ(found.age, (RecordAge{.loaded_in = 3, .moves = 0, .step = 6, .completed = 5}));
      SurvivingState read;
      EXPECT_THROW(take_record(found.text, at::kFloat, read), InternalError) << "the weights are of another type";
      take_record(found.text, at::kBFloat16, read);
      const TrainingState& training = read.at_rest.training;
      EXPECT_EQ(training.step, 5);
      EXPECT_EQ(training.data_fingerprint, "of some data");
      EXPECT_EQ(training.data_begin, 24);
      EXPECT_EQ(training.held_out_fingerprint, "of other data");
      EXPECT_EQ(training.optimizer.find("beta2_product"), 0.5);
      EXPECT_EQ(training.noise_average.trace, 3);
      EXPECT_EQ(training.sign_noise.noise, 4);
      EXPECT_EQ(training.spectral_noise.signal, 5);
      EXPECT_EQ(training.preconditioned_noise.signal, 6);
      EXPECT_EQ(read.decided.step, 6);
      EXPECT_EQ(read.at_rest.all.processes, (std::vector<int64_t>{0, 1}));
      EXPECT_EQ(read.at_rest.all.addresses.words(), (std::vector<std::vector<int64_t>>{{7}, {8, 9}}));
    }
    world.everyone().barrier();
    if (world.rank() == 1) {
      state.at_rest.mine.clear();
      write_record(state, state.at_rest.training);
    }
    world.everyone().barrier();
    if (world.rank() == 0) {
      EXPECT_EQ(latest_record(state.arena.get(), 3).text, "");
    }
    world.everyone().barrier();
  });
}

}  // namespace
}  // namespace copus
