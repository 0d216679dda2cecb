#include "copus/performance/pipeline_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "copus/base/error.h"
#include "copus/performance/testing/schedule_timing.h"

namespace copus {
namespace {

using Stages = std::vector<StageSeconds>;

// Draws seconds of stages, messages and passes that differ as much as in a search, or more.
class RandomStages {
 public:
  explicit RandomStages(uint64_t seed) : random_(seed) {}

  Stages draw(int64_t count) {
    const double spread = std::array{0.0, 0.1, 1.0}[pick(3)];    // spread between stages
    const double backward = std::array{0.5, 1.0, 1.3}[pick(3)];  // relative to the forward pass
    const double weight = std::array{0.0, 0.7, 1.0, 2.0}[pick(4)];
    const double send = std::array{0.0, 0.02, 0.3, 3.0}[pick(4)];
    const auto scaled = [&](double seconds) { return seconds * (1 + spread * uniform()); };
    Stages stages(count);
    for (StageSeconds& stage : stages) {
      stage = {scaled(1), scaled(backward), scaled(weight), scaled(send)};
    }
    // One stage may be slower, as with a large head or an extra layer.
    if (pick(2) == 0) {
      StageSeconds& slow = stages[pick(count)];
      const double factor = 1 + uniform();
      slow = {slow.forward * factor, slow.backward_input * factor, slow.backward_weight * factor, slow.send};
    }
    return stages;
  }

  int64_t pick(int64_t count) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(count)); }

 private:
  double uniform() { return static_cast<double>(random_() >> 11) / 9007199254740992.0; }

  std::mt19937_64 random_;
};

constexpr PipelineSchedule kinds[] = {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                      PipelineSchedule::interleaved_1f1b, PipelineSchedule::zb_h1};

struct Shape {
  PipelineSchedule kind;
  int64_t p;
  int64_t v;
  int64_t m;
};

double relative_error(PipelineTimes& times, const Shape& shape, const Stages& stages) {
  const double replayed = time_schedule(make_schedule(shape.kind, shape.p, shape.v, shape.m), stages).seconds;
  return std::abs(times.seconds(shape.kind, shape.p, shape.v, shape.m, stages) / replayed - 1);
}

TEST(PipelineTime, IsThatOfTheReplay) {
  PipelineTimes times;
  RandomStages random(1);
  double worst = 0;
  for (const PipelineSchedule kind : kinds) {
    const bool interleaved = kind == PipelineSchedule::interleaved_1f1b;
    for (int64_t p = interleaved ? 2 : 1; p <= 16; ++p) {
      for (int64_t v = interleaved ? 2 : 1; v <= (interleaved ? 4 : 1); ++v) {
        for (int draw = 0; draw < 3; ++draw) {
          const Stages stages = random.draw(p * v);
          for (int64_t m = 1; m <= 40; ++m) {
            if (interleaved && m % p != 0) continue;
            const double error = relative_error(times, {kind, p, v, m}, stages);
            EXPECT_LE(error, m < 5 * p || kind == PipelineSchedule::gpipe ? 1e-12 : 0.01)
                << to_string(kind) << " p=" << p << " v=" << v << " m=" << m;
            worst = std::max(worst, error);
          }
        }
      }
    }
  }
  RecordProperty("worst_relative_error", concat(worst));
}

TEST(PipelineTime, IsThatOfTheReplayForRoundsThatAreLargerThanThePipeline) {
  PipelineTimes times;
  RandomStages random(4);
  for (const auto& [p, m] : {std::pair{4, 3}, {4, 6}, {4, 10}, {8, 63}, {16, 255}}) {
    const Stages stages = random.draw(2 * p);
    EXPECT_LE(relative_error(times, {PipelineSchedule::interleaved_1f1b, p, 2, m}, stages), 1e-12) << p << " " << m;
  }
}

TEST(PipelineTime, HoldsForManyMicroBatches) {
  PipelineTimes times;
  RandomStages random(2);
  double worst = 0;
  for (int draw = 0; draw < 60; ++draw) {
    for (const Shape& shape : {Shape{PipelineSchedule::one_f_one_b, 8, 1, 512},
                               {PipelineSchedule::zb_h1, 8, 1, 512},
                               {PipelineSchedule::one_f_one_b, 2, 1, 1000},
                               {PipelineSchedule::zb_h1, 4, 1, 333},
                               {PipelineSchedule::interleaved_1f1b, 4, 3, 256},
                               {PipelineSchedule::interleaved_1f1b, 2, 8, 128}}) {
      const double error = relative_error(times, shape, random.draw(shape.p * shape.v));
      EXPECT_LE(error, 0.01) << to_string(shape.kind) << " p=" << shape.p << " v=" << shape.v << " m=" << shape.m;
      worst = std::max(worst, error);
    }
  }
  for (const Shape& shape : {Shape{PipelineSchedule::gpipe, 64, 1, 512},
                             {PipelineSchedule::one_f_one_b, 64, 1, 512},
                             {PipelineSchedule::zb_h1, 64, 1, 512},
                             {PipelineSchedule::interleaved_1f1b, 16, 8, 128},
                             {PipelineSchedule::one_f_one_b, 128, 1, 512}}) {
    const double error = relative_error(times, shape, random.draw(shape.p * shape.v));
    EXPECT_LE(error, 0.01) << to_string(shape.kind) << " p=" << shape.p << " v=" << shape.v << " m=" << shape.m;
    worst = std::max(worst, error);
  }
  RecordProperty("worst_relative_error", concat(worst));
}

// A cached pipeline must not answer for another one, and answers must not depend on their order.
TEST(PipelineTime, RemembersNothingWrong) {
  PipelineTimes asked_before;
  RandomStages random(3);
  std::vector<std::pair<Shape, Stages>> questions;
  for (int draw = 0; draw < 3000; ++draw) {
    const int64_t p = 2 + random.pick(3);
    const int64_t m = p * (1 + random.pick(20));
    const PipelineSchedule kind = kinds[1 + random.pick(3)];
    const int64_t v = kind == PipelineSchedule::interleaved_1f1b ? 2 : 1;
    questions.push_back({{kind, p, v, m}, random.draw(p * v)});
    // The second call differs only in its messages.
    questions.push_back(questions.back());
    questions.back().second.front().send += 1;
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& [shape, stages] : questions) {
      PipelineTimes fresh;
      EXPECT_EQ(asked_before.seconds(shape.kind, shape.p, shape.v, shape.m, stages),
                fresh.seconds(shape.kind, shape.p, shape.v, shape.m, stages));
    }
    std::reverse(questions.begin(), questions.end());
  }
}

}  // namespace
}  // namespace copus
