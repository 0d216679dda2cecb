#include <gmock/gmock.h>

#include <functional>
#include <regex>
#include <set>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"
#include "copus/description/parallel_strategy.h"

namespace copus {
namespace {

// A model and a configuration that one rank can train, which tests change.
struct Attempt {
  ModelDescription model;
  Configuration configuration;
  int64_t sequence_length = 32;

  std::optional<std::string> reason() const { return infeasible_reason(model, configuration, sequence_length); }
};

Attempt feasible_attempt() {
  Attempt attempt;
  attempt.model.vocab_size = 256;
  attempt.model.hidden_size = 64;
  attempt.model.intermediate_size = 96;
  attempt.model.num_layers = 6;
  attempt.model.num_heads = 12;
  attempt.model.num_kv_heads = 4;
  attempt.model.head_dim = 8;
  attempt.configuration.global_batch = 16;
  attempt.configuration.micro_batch = 4;
  return attempt;
}

std::string reason_after(const std::function<void(Attempt&, ParallelStrategy&)>& change) {
  Attempt attempt = feasible_attempt();
  change(attempt, attempt.configuration.strategy);
  return attempt.reason().value_or("feasible");
}

TEST(InfeasibleReason, OneRankCanTrainAnything) { EXPECT_EQ(feasible_attempt().reason(), std::nullopt); }

TEST(InfeasibleReason, EveryReasonNamesTheSettingAndTheNearestThatWork) {
  using Change = std::function<void(Attempt&, ParallelStrategy&)>;
  const std::pair<Change, const char*> cases[] = {
      // Ranges.
      {[](Attempt&, ParallelStrategy& s) { s.data_parallel = 0; },
       "parallel.data_parallel 0 is not positive; the nearest is 1"},
      {[](Attempt&, ParallelStrategy& s) { s.tensor_parallel = -2; },
       "parallel.tensor_parallel -2 is not positive; the nearest is 1"},
      {[](Attempt&, ParallelStrategy& s) { s.pipeline_parallel = 0; },
       "parallel.pipeline_parallel 0 is not positive; the nearest is 1"},
      {[](Attempt&, ParallelStrategy& s) { s.virtual_stages = 0; },
       "parallel.virtual_stages 0 is not positive; the nearest is 1"},
      {[](Attempt& a, ParallelStrategy&) { a.configuration.global_batch = 0; },
       "train.global_batch 0 is not positive; the nearest is 1"},
      {[](Attempt& a, ParallelStrategy&) { a.configuration.micro_batch = 0; },
       "train.micro_batch 0 is not positive; the nearest is 1"},
      {[](Attempt& a, ParallelStrategy&) { a.sequence_length = 0; },
       "train.sequence_length 0 is not positive; the nearest is 1"},
      {[](Attempt&, ParallelStrategy& s) { s.zero_stage = 4; },
       "parallel.zero_stage 4 is not known: the data-parallel ranks share the optimizer's state with 1, gradients too "
       "with 2, weights too with 3, and nothing with 0; the nearest is 3"},
      {[](Attempt&, ParallelStrategy& s) { s.zero_stage = -1; },
       "parallel.zero_stage -1 is not known: the data-parallel ranks share the optimizer's state with 1, gradients too "
       "with 2, weights too with 3, and nothing with 0; the nearest is 0"},
      {[](Attempt&, ParallelStrategy& s) { s.zero_replicas = 0; },
       "parallel.zero_replicas 0 is not positive; the nearest is 1"},
      // What ZeRO shards.
      {[](Attempt&, ParallelStrategy& s) {
         s.zero_stage = 2;
         s.reshard_after_forward = false;
       },
       "parallel.reshard_after_forward false needs parallel.zero_stage 3: with 2 every rank has all weights"},
      {[](Attempt&, ParallelStrategy& s) {
         s.data_parallel = 4;
         s.zero_replicas = 2;
       },
       "parallel.zero_replicas 2 needs a parallel.zero_stage of at least 1: with 0 every data-parallel rank is a copy; "
       "the nearest is 1"},
      {[](Attempt&, ParallelStrategy& s) {
         s.data_parallel = 4;
         s.zero_stage = 1;
         s.zero_replicas = 3;
       },
       "parallel.zero_replicas 3 does not divide parallel.data_parallel 4; the nearest are 2 and 4"},
      // Schedules.
      {[](Attempt&, ParallelStrategy& s) {
         s.pipeline_parallel = 2;
         s.virtual_stages = 3;
       },
       "parallel.virtual_stages 3 needs parallel.schedule \"interleaved\": with \"1f1b\" every rank holds one run of "
       "layers; the nearest is 1"},
      {[](Attempt&, ParallelStrategy& s) {
         s.pipeline_parallel = 2;
         s.schedule = PipelineSchedule::interleaved_1f1b;
       },
       "parallel.virtual_stages 1 does not go with parallel.schedule \"interleaved\", which interleaves several runs "
       "of "
       "layers per rank (for one take \"1f1b\"); the nearest is 2"},
      {[](Attempt&, ParallelStrategy& s) {
         s.virtual_stages = 2;
         s.schedule = PipelineSchedule::interleaved_1f1b;
       },
       "parallel.pipeline_parallel 1 leaves parallel.schedule \"interleaved\" no other rank to interleave with (take "
       "\"1f1b\"); the nearest is 2"},
      // Tensor parallelism.
      {[](Attempt&, ParallelStrategy& s) { s.sequence_parallel = true; },
       "parallel.sequence_parallel true needs parallel.tensor_parallel of at least 2, whose ranks share the sequence"},
      {[](Attempt&, ParallelStrategy& s) { s.tensor_parallel = 5; },
       "parallel.tensor_parallel 5 does not divide model.num_attention_heads 12; the nearest are 4 and 12"},
      {[](Attempt&, ParallelStrategy& s) { s.tensor_parallel = 6; },
       "parallel.tensor_parallel 6 neither divides model.num_key_value_heads 4 nor is a multiple of it; the nearest "
       "are "
       "4 and 12"},
      {[](Attempt& a, ParallelStrategy& s) {
         a.model.intermediate_size = 90;
         s.tensor_parallel = 4;
       },
       "parallel.tensor_parallel 4 does not divide model.intermediate_size 90; the nearest is 2"},
      {[](Attempt& a, ParallelStrategy& s) {
         a.model.vocab_size = 11;
         s.tensor_parallel = 12;
       },
       "parallel.tensor_parallel 12 exceeds model.vocab_size 11; the nearest is 4"},
      // Stages.
      {[](Attempt&, ParallelStrategy& s) { s.pipeline_parallel = 7; },
       "parallel.pipeline_parallel 7 exceeds model.num_hidden_layers 6: every stage needs a layer; the nearest is 6"},
      {[](Attempt&, ParallelStrategy& s) {
         s.pipeline_parallel = 3;
         s.virtual_stages = 3;
         s.schedule = PipelineSchedule::interleaved_1f1b;
       },
       "parallel.pipeline_parallel 3 x parallel.virtual_stages 3 exceeds model.num_hidden_layers 6: every stage needs "
       "a "
       "layer; the nearest are 2, or parallel.virtual_stages 2"},
      {[](Attempt&, ParallelStrategy& s) {
         s.pipeline_parallel = 2;
         s.virtual_stages = 4;
         s.schedule = PipelineSchedule::interleaved_1f1b;
       },
       "parallel.pipeline_parallel 2 x parallel.virtual_stages 4 exceeds model.num_hidden_layers 6: every stage needs "
       "a "
       "layer; the nearest is parallel.virtual_stages 3"},
      {[](Attempt& a, ParallelStrategy& s) {
         a.model.num_layers = 3;
         s.pipeline_parallel = 2;
         s.virtual_stages = 2;
         s.schedule = PipelineSchedule::interleaved_1f1b;
       },
       "parallel.pipeline_parallel 2 x parallel.virtual_stages 2 exceeds model.num_hidden_layers 3: every stage needs "
       "a "
       "layer"},
      // Batches.
      {[](Attempt&, ParallelStrategy& s) { s.data_parallel = 3; },
       "train.global_batch 16 is no multiple of train.micro_batch 4 x parallel.data_parallel 3; the nearest are 12 and "
       "24"},
      {[](Attempt& a, ParallelStrategy&) {
         a.configuration.global_batch = 32;
         a.configuration.micro_batch = 12;
       },
       "train.global_batch 32 is no multiple of train.micro_batch 12; the nearest are 24 and 36, or train.micro_batch "
       "8 "
       "or 16"},
      {[](Attempt& a, ParallelStrategy& s) {
         a.configuration.micro_batch = 3;
         s.data_parallel = 8;
       },
       "train.global_batch 16 is no multiple of train.micro_batch 3 x parallel.data_parallel 8; the nearest are 24, or "
       "train.micro_batch 2"},
      {[](Attempt& a, ParallelStrategy& s) {
         a.configuration.global_batch = 24;
         s.pipeline_parallel = 3;
         s.virtual_stages = 2;
         s.schedule = PipelineSchedule::interleaved_1f1b;
         a.configuration.micro_batch = 6;
       },
       "train.global_batch 24 makes 4 micro-batches, no multiple of parallel.pipeline_parallel 3 as parallel.schedule "
       "\"interleaved\" needs it; the nearest are 18 and 36, or train.micro_batch 4 or 8"},
      // Sequence parallelism.
      {[](Attempt& a, ParallelStrategy& s) {
         a.configuration.micro_batch = 2;
         a.sequence_length = 33;
         s.tensor_parallel = 4;
         s.sequence_parallel = true;
       },
       "train.sequence_length 33 x train.micro_batch 2 tokens cannot be shared evenly by parallel.tensor_parallel 4 "
       "ranks as parallel.sequence_parallel needs it; the nearest are 32 and 34, or train.micro_batch 4"},
  };
  for (const auto& [change, expected] : cases) EXPECT_EQ(reason_after(change), expected);
}

TEST(InfeasibleReason, LayoutsThatLookOddButWork) {
  const auto allows = [](const std::function<void(Attempt&, ParallelStrategy&)>& change) {
    EXPECT_EQ(reason_after(change), "feasible");
  };
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::zb_h1}) {
    allows([&](Attempt&, ParallelStrategy& s) { s.schedule = schedule; });  // a pipeline of one stage
    allows([&](Attempt&, ParallelStrategy& s) {                             // fewer micro-batches than stages
      s.schedule = schedule;
      s.pipeline_parallel = 6;
    });
  }
  for (const int64_t zero_stage : {1, 2, 3}) {
    allows(
        [&](Attempt&, ParallelStrategy& s) { s.zero_stage = zero_stage; });  // one data-parallel rank owns everything
  }
  allows([](Attempt&, ParallelStrategy& s) {
    s.data_parallel = s.zero_replicas = 4;
    s.zero_stage = 3;
    s.reshard_after_forward = false;
  });
  allows([](Attempt&, ParallelStrategy& s) { s.tensor_parallel = 12; });  // three ranks per key/value head
  allows([](Attempt& a, ParallelStrategy& s) {                            // an uneven split of the vocabulary
    a.model.vocab_size = 255;
    s.tensor_parallel = 4;
  });
}

TEST(InfeasibleReason, AModelThatCannotBeIsOurMistake) {
  Attempt attempt = feasible_attempt();
  attempt.model.num_kv_heads = 5;
  EXPECT_THROW(attempt.reason(), InternalError);
}

// ---- Properties of random attempts ----

Attempt random_attempt(uint64_t trial) {
  uint64_t drawn = 0;
  const auto pick = [&](std::vector<int64_t> choices) {
    return choices[philox(stream_key(3, "attempts"), trial, drawn++)[0] % choices.size()];
  };
  Attempt attempt;
  ModelDescription& model = attempt.model;
  model.vocab_size = pick({3, 17, 256});
  model.hidden_size = 8;
  model.head_dim = 2;
  model.num_kv_heads = pick({1, 2, 3, 4, 6});
  model.num_heads = model.num_kv_heads * pick({1, 2, 4});
  model.intermediate_size = pick({6, 12, 16, 24});
  model.num_layers = pick({1, 2, 4, 7, 12});
  model.max_position_embeddings = 64;
  ParallelStrategy& strategy = attempt.configuration.strategy;
  strategy.data_parallel = pick({0, 1, 1, 2, 3, 4});
  strategy.tensor_parallel = pick({1, 1, 2, 3, 4, 6, 8});
  strategy.pipeline_parallel = pick({1, 1, 2, 3, 4});
  strategy.schedule = static_cast<PipelineSchedule>(pick({0, 1, 2, 2, 3}));
  strategy.virtual_stages =
      strategy.schedule == PipelineSchedule::interleaved_1f1b ? pick({1, 2, 2, 3}) : pick({1, 1, 1, 2});
  strategy.sequence_parallel = pick({0, 0, 1}) == 1;
  strategy.zero_stage = pick({0, 1, 2, 3, 4});
  strategy.reshard_after_forward = pick({0, 1, 1}) == 1;
  strategy.zero_replicas = pick({0, 1, 1, 1, 1, 2, 3});
  attempt.configuration.micro_batch = pick({1, 2, 3, 4});
  attempt.configuration.global_batch = pick({0, 4, 6, 8, 12, 24, 48});
  attempt.sequence_length = pick({1, 8, 15, 64});
  return attempt;
}

// Restates the rules, one per line, to check them independently.
bool everything_divides(const Attempt& attempt) {
  const ModelDescription& model = attempt.model;
  const auto& [strategy, global_batch, micro_batch] = attempt.configuration;
  const int64_t d = strategy.data_parallel, t = strategy.tensor_parallel, p = strategy.pipeline_parallel;
  const int64_t v = strategy.virtual_stages;
  const int64_t zero = strategy.zero_stage, copies = strategy.zero_replicas;
  if (std::min({d, t, p, v, copies, global_batch, micro_batch, attempt.sequence_length}) < 1) return false;
  const bool is_interleaved = strategy.schedule == PipelineSchedule::interleaved_1f1b;
  const bool heads = model.num_heads % t == 0 && (model.num_kv_heads % t == 0 || t % model.num_kv_heads == 0);
  const bool widths = model.intermediate_size % t == 0 && model.vocab_size >= t;
  const bool stages = p * v <= model.num_layers && is_interleaved == (v > 1) && (!is_interleaved || p > 1);
  const bool batches = global_batch % (d * micro_batch) == 0;
  const bool rounds = !is_interleaved || (batches && global_batch / (d * micro_batch) % p == 0);
  const bool rows = !strategy.sequence_parallel || (t > 1 && micro_batch * attempt.sequence_length % t == 0);
  const bool shares = zero <= 3 && (zero == 3 || strategy.reshard_after_forward);
  const bool shared_copies = d % copies == 0 && (zero > 0 || copies == 1);
  return heads && widths && stages && batches && rounds && rows && shares && shared_copies;
}

TEST(InfeasibleReason, EqualRoundsAreAllThatSomeProgramsAsk) {
  const ModelDescription model = random_attempt(0).model;
  const auto reason = [&](int64_t micro_batches) {
    ParallelStrategy strategy{.data_parallel = 2, .pipeline_parallel = 4, .virtual_stages = 2};
    strategy.schedule = PipelineSchedule::interleaved_1f1b;
    ModelDescription deep = model;
    deep.num_layers = 12;
    const Configuration configuration{strategy, 2 * micro_batches, 1};
    return infeasible_reason(deep, configuration, 64, InterleavedRounds::equal).value_or("feasible");
  };
  for (const int64_t fine : {1, 3, 4, 6, 7, 8, 10, 12, 15, 16, 20}) EXPECT_EQ(reason(fine), "feasible") << fine;
  EXPECT_EQ(reason(9),
            "train.global_batch 18 makes 9 micro-batches, which do not make 2 equal rounds as parallel.schedule "
            "\"interleaved\" needs it; the nearest are 16 and 20, or train.micro_batch 3");
  for (const int64_t refused : {11, 13, 14, 17, 18}) EXPECT_NE(reason(refused), "feasible") << refused;
}

TEST(InfeasibleReasonProperty, RefusesExactlyWhatDoesNotDivide) {
  int64_t feasible = 0;
  constexpr uint64_t trials = 20000;
  for (uint64_t trial = 0; trial < trials; ++trial) {
    const Attempt attempt = random_attempt(trial);
    const auto reason = attempt.reason();
    EXPECT_EQ(!reason, everything_divides(attempt)) << trial << ": " << reason.value_or("feasible");
    if (!reason) {
      EXPECT_GE(attempt.configuration.num_microbatches(), 1);
      ++feasible;
    }
  }
  EXPECT_GT(feasible, 500) << "the trials must see both sides";
}

void set(Attempt& attempt, const std::string& key, int64_t value) {
  ParallelStrategy& strategy = attempt.configuration.strategy;
  if (key == "parallel.data_parallel")
    strategy.data_parallel = value;
  else if (key == "parallel.tensor_parallel")
    strategy.tensor_parallel = value;
  else if (key == "parallel.pipeline_parallel")
    strategy.pipeline_parallel = value;
  else if (key == "parallel.virtual_stages")
    strategy.virtual_stages = value;
  else if (key == "parallel.zero_stage")
    strategy.zero_stage = value;
  else if (key == "parallel.zero_replicas")
    strategy.zero_replicas = value;
  else if (key == "train.global_batch")
    attempt.configuration.global_batch = value;
  else if (key == "train.micro_batch")
    attempt.configuration.micro_batch = value;
  else if (key == "train.sequence_length")
    attempt.sequence_length = value;
  else
    ADD_FAILURE() << key;
}

// Strips values and suggestion from a refusal, which leaves the violated rule.
std::string rule_of(const std::string& reason) {
  return std::regex_replace(reason.substr(0, reason.find(';')), std::regex("\\d+"), "N");
}

TEST(InfeasibleReasonProperty, EverySuggestedValueMendsWhatWasWrong) {
  int64_t suggestions = 0;
  std::set<std::string> rules;
  for (uint64_t trial = 0; trial < 4000; ++trial) {
    const Attempt attempt = random_attempt(trial);
    const auto reason = attempt.reason();
    if (!reason) continue;
    rules.insert(rule_of(*reason));
    const size_t end_of_rule = reason->find("; the nearest");
    if (end_of_rule == std::string::npos) continue;
    std::string key = reason->substr(0, reason->find(' '));
    const std::string suggestion = reason->substr(end_of_rule + 2);
    const std::regex word("[a-z_]+\\.[a-z_]+|\\d+");
    for (std::sregex_iterator at(suggestion.begin(), suggestion.end(), word), end; at != end; ++at) {
      if (at->str().find('.') != std::string::npos) {
        key = at->str();
        continue;
      }
      Attempt mended = attempt;
      set(mended, key, std::stoll(at->str()));
      const auto next = mended.reason();
      EXPECT_TRUE(!next || rule_of(*next) != rule_of(*reason)) << *reason << "\nstill with " << key << " " << at->str();
      ++suggestions;
    }
  }
  EXPECT_GT(suggestions, 2000);
  EXPECT_GT(rules.size(), 14U);
}

}  // namespace
}  // namespace copus
