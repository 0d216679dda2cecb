#include "copus/train/step/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TrainingState some_state() {
  TrainingState state;
  state.step = 17;
  state.optimizer_steps = 15;
  state.consumed_samples = 544;
  state.consumed_tokens = 278528;
  state.skipped_steps = 2;
  state.skipped_samples = 64;
  state.skipped_in_a_row = 1;
  state.elapsed_seconds = 0.1 + 0.2;  // needs all digits
  state.seed = 18446744073709551615ULL;
  state.sequence_length = 512;
  state.byte_tokens = true;
  state.data_fingerprint = "00ff\"\\";
  state.data_begin = 12;
  state.held_out_fingerprint = "f0";
  state.noise_average = {.steps = 14,
                         .samples = 112.5,
                         .weight = 0.1 + 0.7,
                         .squared_gradient = -1e-300,
                         .trace = 1.0 / 3,
                         .square_weight = 2.0 / 3,
                         .fourth_weight = 4.0 / 9,
                         .square_squared_gradient = 1e200 / 3,
                         .square_trace = 5.0 / 7,
                         .squared_gradient_squared = 0.1,
                         .trace_squared = 0.2,
                         .product = 0.3};
  state.observed_samples = 512;
  state.configuration = {.strategy = {.data_parallel = 2,
                                      .tensor_parallel = 3,
                                      .pipeline_parallel = 4,
                                      .virtual_stages = 5,
                                      .schedule = PipelineSchedule::zb_h1,
                                      .sequence_parallel = true,
                                      .zero_stage = 1,
                                      .recompute = Recompute::full},
                         .global_batch = 48,
                         .micro_batch = 6};
  state.rate_factor = 100.0 / 3;
  state.optimizer.set("variance_ratio", 0.1);
  state.optimizer.set("beta2_product", 1.0 / 7);
  return state;
}

TEST(TrainingState, ReadsBackToTheSameBits) {
  EXPECT_EQ(parse_training_state(to_json(some_state()), "state"), some_state());
}

// A value that is not a number, a name too long for its end, too many scalars, and a name with a zero byte.
TEST(TrainingState, RefusesScalarsOfTheOptimizerThatAreNone) {
  for (const char* scalar :
       {R"("a": "one")", R"("a_name_of_24_characters_": 1)", R"("a": 1, "b": 2, "c": 3)", R"("a\u0000b": 1)"}) {
    std::string text = to_json(some_state());
    text.insert(text.find("\"beta2_product\""), concat(scalar, ", "));
    EXPECT_THAT([&] { parse_training_state(text, "x"); }, ThrowsMessage<UserError>(HasSubstr("x: the training state")))
        << scalar;
  }
}

TEST(TrainingState, NamesTheSourceAndTheFieldThatIsMissingOrWrong) {
  std::string text = to_json(some_state());
  text.replace(text.find("optimizer_steps"), 9, "different");
  EXPECT_THAT([&] { parse_training_state(text, "step-17/manifest.json"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("step-17/manifest.json"), HasSubstr("optimizer_steps"))));
  text = to_json(some_state());
  text.replace(text.find("trace_squared"), 5, "other");
  EXPECT_THAT([&] { parse_training_state(text, "x"); }, ThrowsMessage<UserError>(HasSubstr("'trace_squared'")));
  text = to_json(some_state());
  text.replace(text.find("zb-h1"), 5, "other");
  EXPECT_THAT([&] { parse_training_state(text, "x"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("x: "), HasSubstr("\"schedule=other\""))));
  EXPECT_THAT([] { parse_training_state("{\"step\": \"three\"}", "x"); },
              ThrowsMessage<UserError>(HasSubstr("'step'")));
  EXPECT_THAT([] { parse_training_state("{\"step\": ", "x"); }, ThrowsMessage<UserError>(HasSubstr("damaged")));
}

TEST(TrainingState, RefusesAFieldThatItDoesNotKnow) {
  std::string text = to_json(some_state());
  text.insert(text.find("\"step\""), "\"third_moments\": 3, ");
  EXPECT_THAT([&] { parse_training_state(text, "x"); },
              ThrowsMessage<UserError>(
                  HasSubstr("x: the training state has a field 'third_moments', which this Copus does not know")));
}

// Converted to an integer, each of these would be undefined or another number.
TEST(TrainingState, TakesNoNumberForAnInteger) {
  const TrainingState state = some_state();
  for (const char* number : {"-1", "1e300", "2.5", "true", "18446744073709551615"}) {
    std::string text = to_json(state);
    const std::string step = concat("\"step\": ", state.step, ",");
    ASSERT_NE(text.find(step), std::string::npos);
    text.replace(text.find(step), step.size(), concat("\"step\": ", number, ","));
    EXPECT_THAT([&] { parse_training_state(text, "x"); }, ThrowsMessage<UserError>(HasSubstr("'step'"))) << number;
  }
}

TEST(TrainingState, RefusesDeepNesting) {
  std::string text = to_json(some_state());
  const size_t begin = text.find("\"d=2");
  text.replace(begin, text.find('"', begin + 1) + 1 - begin, deep_json());
  EXPECT_THAT([&] { parse_training_state(text, "x"); }, ThrowsMessage<UserError>(HasSubstr("damaged")));
}

}  // namespace
}  // namespace copus
