#include "copus/simulate/hindsight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "copus/simulate/draws.h"

namespace copus {
namespace {

struct TinyCase {
  Truth truth;
  TrueSeconds seconds;
  double pause;
};

// Three strategies with three batches each over five pieces, drawn so that either switching or staying can be best.
TinyCase draw_case(uint64_t seed) {
  Draws draws(seed, "tiny");
  std::vector<TruthPiece> pieces;
  double begin = 0;
  for (int i = 0; i < 5; ++i) {
    pieces.push_back({.begin = begin, .critical_batch = draws.log_uniform(2, 100)});
    begin += draws.log_uniform(50, 200);
  }
  TrueSeconds seconds;
  for (const int64_t ranks : {1, 2, 4}) {
    const double fixed = draws.log_uniform(0.5, 20);
    for (const int64_t batch : {4, 16, 64}) {
      for (const int64_t micro_batch : {1, 2}) {
        seconds[{.strategy = {.data_parallel = ranks}, .global_batch = batch, .micro_batch = micro_batch}] =
            fixed + static_cast<double>(batch) * draws.log_uniform(0.05, 0.5);
      }
    }
  }
  return {Truth(WorthShape::hyperbola, pieces), seconds, draws.log_uniform(0.1, 30)};
}

// Seconds through one piece, up to `until`.
double seconds_in_piece(const TinyCase& tiny, const Configuration& configuration, size_t piece, double until) {
  const double length = std::min(tiny.truth.end_of(piece), until) - tiny.truth.pieces()[piece].begin;
  const auto batch = static_cast<double>(configuration.global_batch);
  return length / tiny.truth.worth(configuration.global_batch, piece) / batch * tiny.seconds.at(configuration);
}

// The least seconds to `until` over all sequences that have one configuration per piece.
double by_brute_force(const TinyCase& tiny, double until) {
  const std::function<double(size_t, const Configuration*)> best_from = [&](size_t piece, const Configuration* before) {
    if (piece == tiny.truth.pieces().size() || tiny.truth.pieces()[piece].begin >= until) return 0.0;
    double best = std::numeric_limits<double>::infinity();
    for (const auto& [configuration, seconds] : tiny.seconds) {
      if (configuration.micro_batch == 2) continue;  // the tests below do without the other ones
      const double pause = before != nullptr && before->strategy != configuration.strategy ? tiny.pause : 0;
      best = std::min(
          best, pause + seconds_in_piece(tiny, configuration, piece, until) + best_from(piece + 1, &configuration));
    }
    return best;
  };
  return best_from(0, nullptr);
}

TinyCase with_one_micro_batch(TinyCase tiny) {
  std::erase_if(tiny.seconds, [](const auto& entry) { return entry.first.micro_batch == 2; });
  return tiny;
}

TEST(Clairvoyant, IsTheBestOfAllSequences) {
  int64_t relayouts = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const TinyCase tiny = with_one_micro_batch(draw_case(seed));
    const double target = tiny.truth.pieces().back().begin + 60;
    const ClairvoyantRun run = clairvoyant(tiny.truth, tiny.seconds, tiny.pause, {ScenarioEnd::Kind::progress, target});
    EXPECT_NEAR(run.seconds / by_brute_force(tiny, target), 1, 1e-12) << "seed " << seed;
    relayouts += run.relayouts;
  }
  EXPECT_GT(relayouts, 5) << "some of these cases are won by moving";
}

TEST(Clairvoyant, ItsSequenceTakesTheSecondsThatItSays) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const TinyCase tiny = draw_case(seed);
    const double target = tiny.truth.pieces().back().begin + 60;
    const ClairvoyantRun run = clairvoyant(tiny.truth, tiny.seconds, tiny.pause, {ScenarioEnd::Kind::progress, target});
    ASSERT_EQ(run.by_piece.size(), tiny.truth.pieces().size());
    double seconds = static_cast<double>(run.relayouts) * tiny.pause;
    int64_t changes = 0;
    for (size_t i = 0; i < run.by_piece.size(); ++i) {
      seconds += seconds_in_piece(tiny, run.by_piece[i], i, target);
      changes += i > 0 && run.by_piece[i].strategy != run.by_piece[i - 1].strategy;
    }
    EXPECT_NEAR(run.seconds / seconds, 1, 1e-12) << "seed " << seed;
    EXPECT_EQ(run.relayouts, changes);
  }
}

TEST(Clairvoyant, GetsInTheseSecondsWhereItNeedsThemToGetTo) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const TinyCase tiny = draw_case(seed);
    for (const double target : {30.0, 333.0, 900.0}) {
      const ClairvoyantRun to_target =
          clairvoyant(tiny.truth, tiny.seconds, tiny.pause, {ScenarioEnd::Kind::progress, target});
      const ClairvoyantRun in_seconds =
          clairvoyant(tiny.truth, tiny.seconds, tiny.pause, {ScenarioEnd::Kind::seconds, to_target.seconds});
      EXPECT_NEAR(in_seconds.progress / target, 1, 1e-12) << "seed " << seed;
    }
  }
}

TEST(BestStatic, IsNoSlowerThanAnyAndNoFasterThanTheClairvoyant) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const TinyCase tiny = draw_case(seed);
    const ScenarioEnd end{ScenarioEnd::Kind::progress, 500};
    const StraightRun best = best_static(tiny.truth, tiny.seconds, end);
    for (const auto& [configuration, seconds] : tiny.seconds) {
      EXPECT_LE(best.seconds, static_seconds(tiny.truth, configuration, seconds, 500) * (1 + 1e-12));
    }
    EXPECT_DOUBLE_EQ(best.seconds,
                     static_seconds(tiny.truth, best.configuration, tiny.seconds.at(best.configuration), 500));
    EXPECT_LE(clairvoyant(tiny.truth, tiny.seconds, tiny.pause, end).seconds, best.seconds * (1 + 1e-12));

    const ScenarioEnd in_seconds{ScenarioEnd::Kind::seconds, best.seconds};
    EXPECT_NEAR(best_static(tiny.truth, tiny.seconds, in_seconds).progress, 500, 1e-9);
    EXPECT_GE(clairvoyant(tiny.truth, tiny.seconds, tiny.pause, in_seconds).progress, 500 - 1e-9);
  }
}

TEST(Clairvoyant, StaysWhereAPauseIsTooDear) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const TinyCase tiny = draw_case(seed);
    EXPECT_EQ(clairvoyant(tiny.truth, tiny.seconds, 1e9, {ScenarioEnd::Kind::progress, 900}).relayouts, 0);
  }
}

}  // namespace
}  // namespace copus
