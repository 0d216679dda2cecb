// Decides which configurations a model allows. A refusal names a key and its value, says what is wrong, and ends with
// the nearest possible values of this key or of another key.
#include <vector>

#include "copus/base/error.h"
#include "copus/description/configuration_fields.h"
#include "copus/description/layer_blocks.h"

namespace copus {
namespace {

using Reason = std::optional<std::string>;

// Returns the values in `range` nearest to `value`, below and above it, for which `works` is true.
template <class Works>
std::vector<int64_t> nearest(int64_t value, const Range<int64_t>& range, const Works& works) {
  return nearest_that_work(value - 1, value + 1, range, works);
}

// The suggestion that ends a refusal.
class Nearest {
 public:
  // `values`: possible values of the refused key; may be empty.
  explicit Nearest(const std::vector<int64_t>& values) { add(values, " and "); }

  Nearest& or_else(const char* key, const std::vector<int64_t>& values) {
    if (!values.empty()) text_ += concat(text_.empty() ? "" : ", or ", key, " ");
    add(values, " or ");
    return *this;
  }

  std::string text() const { return count_ == 0 ? "" : concat("; the nearest ", count_ == 1 ? "is " : "are ", text_); }

 private:
  void add(const std::vector<int64_t>& values, const char* conjunction) {
    for (size_t i = 0; i < values.size(); ++i) text_ += concat(i == 0 ? "" : conjunction, values[i]);
    count_ += values.size();
  }

  std::string text_;
  size_t count_ = 0;
};

Reason check_ranges(const Configuration& configuration, int64_t sequence_length) {
  Reason reason;
  const auto check = [&](const char* section, const char* name, int64_t value) {
    if (value < 1 && !reason) reason = concat(section, ".", name, " ", value, " is not positive", Nearest({1}).text());
  };
  visit_configuration(
      [&](const ConfigurationField& field, const auto& value) {
        if (field.range.low == 1) check(field.section, field.name, static_cast<int64_t>(value));
      },
      configuration);
  check("train", "sequence_length", sequence_length);
  if (reason) return reason;
  const ParallelStrategy& strategy = configuration.strategy;
  if (!allowed_zero_stages.contains(strategy.zero_stage)) {
    return concat("parallel.zero_stage ", strategy.zero_stage,
                  " is not known: the data-parallel ranks share the optimizer's state with 1, gradients too with 2, ",
                  "weights too with 3, and nothing with 0",
                  Nearest({strategy.zero_stage < 0 ? allowed_zero_stages.low : allowed_zero_stages.high}).text());
  }
  return std::nullopt;
}

Reason check_zero(const ParallelStrategy& strategy) {
  const int64_t ranks = strategy.data_parallel, replicas = strategy.zero_replicas;
  if (!strategy.reshard_after_forward && strategy.zero_stage < 3) {
    return concat("parallel.reshard_after_forward false needs parallel.zero_stage 3: with ", strategy.zero_stage,
                  " every rank has all weights");
  }
  if (replicas > 1 && strategy.zero_stage == 0) {
    return concat("parallel.zero_replicas ", replicas, " needs a parallel.zero_stage of at least 1: with 0 every ",
                  "data-parallel rank is a copy", Nearest({1}).text());
  }
  if (ranks % replicas == 0) return std::nullopt;
  const auto divides = [&](int64_t other) { return ranks % other == 0; };
  return concat("parallel.zero_replicas ", replicas, " does not divide parallel.data_parallel ", ranks,
                Nearest(nearest(replicas, {1, ranks}, divides)).text());
}

Reason check_schedule_fits(const ParallelStrategy& strategy) {
  const bool interleaved = strategy.schedule == PipelineSchedule::interleaved_1f1b;
  if (strategy.virtual_stages > 1 && !interleaved) {
    return concat("parallel.virtual_stages ", strategy.virtual_stages,
                  " needs parallel.schedule \"interleaved\": with \"", to_string(strategy.schedule),
                  "\" every rank holds one run of layers", Nearest({1}).text());
  }
  if (!interleaved) return std::nullopt;
  if (strategy.virtual_stages == 1) {
    return concat("parallel.virtual_stages 1 does not go with parallel.schedule \"interleaved\", which interleaves ",
                  "several runs of layers per rank (for one take \"1f1b\")", Nearest({2}).text());
  }
  if (strategy.pipeline_parallel == 1) {
    return concat("parallel.pipeline_parallel 1 leaves parallel.schedule \"interleaved\" no other rank to interleave ",
                  "with (take \"1f1b\")", Nearest({2}).text());
  }
  return std::nullopt;
}

// Explains why `ranks` tensor-parallel ranks cannot split this model: the text after "parallel.tensor_parallel N".
Reason why_tensor_parallel_does_not_fit(const ModelDescription& model, int64_t ranks) {
  // With more ranks than key/value heads, rank r holds only key/value head r / (ranks / kv_heads), and heads / ranks
  // consecutive query heads. This requires that all of these query heads use that key/value head. They do, because each
  // key/value head serves heads / kv_heads consecutive query heads.
  COPUS_CHECK(model.num_heads % model.num_kv_heads == 0, model.num_heads, " heads, ", model.num_kv_heads, " kv heads");
  const auto [heads, kv_heads, columns] = units_of(model);
  for (const SharedUnits* units : {&heads, &kv_heads, &columns}) {
    if (units->count % ranks == 0 || (units->may_repeat && ranks % units->count == 0)) continue;
    return units->may_repeat ? concat("neither divides ", units->setting, " ", units->count, " nor is a multiple of it")
                             : concat("does not divide ", units->setting, " ", units->count);
  }
  if (model.vocab_size < ranks) return concat("exceeds model.vocab_size ", model.vocab_size);
  return std::nullopt;
}

Reason check_tensor_parallel(const ModelDescription& model, const ParallelStrategy& strategy) {
  const int64_t ranks = strategy.tensor_parallel;
  if (strategy.sequence_parallel && ranks == 1) {
    return concat(
        "parallel.sequence_parallel true needs parallel.tensor_parallel of at least 2, whose ranks share the ",
        "sequence");
  }
  const Reason misfit = why_tensor_parallel_does_not_fit(model, ranks);
  if (!misfit) return std::nullopt;
  const auto fits = [&](int64_t other) { return !why_tensor_parallel_does_not_fit(model, other); };
  const int64_t fewest = strategy.sequence_parallel ? 2 : 1;
  return concat("parallel.tensor_parallel ", ranks, " ", *misfit,
                Nearest(nearest(ranks, {fewest, model.num_heads}, fits)).text());
}

Reason check_stages(const ModelDescription& model, const ParallelStrategy& strategy) {
  const int64_t ranks = strategy.pipeline_parallel, chunks = strategy.virtual_stages, layers = model.num_layers;
  if (ranks <= layers / chunks) return std::nullopt;
  if (chunks == 1) {
    return concat("parallel.pipeline_parallel ", ranks, " exceeds model.num_hidden_layers ", layers,
                  ": every stage needs a layer", Nearest({layers}).text());
  }
  // An interleaved schedule needs at least two ranks and two chunks per rank.
  const auto at_least_two = [](int64_t value) { return value >= 2 ? std::vector{value} : std::vector<int64_t>{}; };
  return concat(
      "parallel.pipeline_parallel ", ranks, " x parallel.virtual_stages ", chunks, " exceeds model.num_hidden_layers ",
      layers, ": every stage needs a layer",
      Nearest(at_least_two(layers / chunks)).or_else("parallel.virtual_stages", at_least_two(layers / ranks)).text());
}

bool rows_can_be_shared(const ParallelStrategy& strategy, int64_t micro_batch, int64_t sequence_length) {
  return !strategy.sequence_parallel || micro_batch * sequence_length % strategy.tensor_parallel == 0;
}

// Returns whether batches are whole micro-batches, and the schedule accepts their number.
bool batches_fit(const ParallelStrategy& strategy, int64_t global_batch, int64_t micro_batch,
                 InterleavedRounds rounds) {
  if (global_batch % smallest_global_batch(strategy, micro_batch, rounds) != 0) return false;
  if (strategy.schedule != PipelineSchedule::interleaved_1f1b) return true;
  const int64_t num_microbatches = global_batch / (strategy.data_parallel * micro_batch);
  return num_microbatches % interleaved_rounds(num_microbatches, strategy.pipeline_parallel) == 0;
}

// Returns the possible micro-batches nearest to the configuration's, if all other fields stay.
std::vector<int64_t> nearest_micro_batches(const Configuration& configuration, int64_t sequence_length,
                                           InterleavedRounds rounds) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t highest = configuration.global_batch / smallest_global_batch(strategy, 1, rounds);
  return nearest(configuration.micro_batch, {1, highest}, [&](int64_t micro_batch) {
    return batches_fit(strategy, configuration.global_batch, micro_batch, rounds) &&
           rows_can_be_shared(strategy, micro_batch, sequence_length);
  });
}

Reason check_batches(const Configuration& configuration, int64_t sequence_length, InterleavedRounds rounds) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t micro_batch = configuration.micro_batch, global_batch = configuration.global_batch;
  if (batches_fit(strategy, global_batch, micro_batch, rounds)) return std::nullopt;

  const int64_t unit = smallest_global_batch(strategy, micro_batch, rounds);
  const auto fits = [&](int64_t batch) { return batches_fit(strategy, batch, micro_batch, rounds); };
  std::vector<int64_t> global_batches;
  int64_t below = (global_batch - 1) / unit * unit, above = (global_batch / unit + 1) * unit;
  while (below > 0 && !fits(below)) below -= unit;
  while (!fits(above)) above += unit;
  if (below > 0) global_batches.push_back(below);
  global_batches.push_back(above);
  const std::string suggestion =
      Nearest(global_batches)
          .or_else("train.micro_batch", nearest_micro_batches(configuration, sequence_length, rounds))
          .text();
  const int64_t step = micro_batch * strategy.data_parallel;
  if (global_batch % step == 0) {
    const int64_t num_microbatches = global_batch / step, ranks = strategy.pipeline_parallel;
    const std::string refused =
        rounds == InterleavedRounds::of_pipeline_ranks
            ? concat("no multiple of parallel.pipeline_parallel ", ranks)
            : concat("which do not make ", interleaved_rounds(num_microbatches, ranks), " equal rounds");
    return concat("train.global_batch ", global_batch, " makes ", num_microbatches, " micro-batches, ", refused,
                  " as parallel.schedule \"interleaved\" needs it", suggestion);
  }
  return concat("train.global_batch ", global_batch, " is no multiple of train.micro_batch ", micro_batch,
                strategy.data_parallel > 1 ? concat(" x parallel.data_parallel ", strategy.data_parallel) : "",
                suggestion);
}

Reason check_shared_rows(const ModelDescription& model, const Configuration& configuration, int64_t sequence_length,
                         InterleavedRounds rounds) {
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t micro_batch = configuration.micro_batch;
  if (rows_can_be_shared(strategy, micro_batch, sequence_length)) return std::nullopt;
  const auto fits = [&](int64_t length) { return rows_can_be_shared(strategy, micro_batch, length); };
  return concat("train.sequence_length ", sequence_length, " x train.micro_batch ", micro_batch,
                " tokens cannot be shared evenly by parallel.tensor_parallel ", strategy.tensor_parallel,
                " ranks as parallel.sequence_parallel needs it",
                Nearest(nearest(sequence_length, {1, model.max_position_embeddings}, fits))
                    .or_else("train.micro_batch", nearest_micro_batches(configuration, sequence_length, rounds))
                    .text());
}

Reason check_strategy(const ParallelStrategy& strategy) {
  const Reason reason = check_schedule_fits(strategy);
  return reason ? reason : check_zero(strategy);
}

}  // namespace

int64_t smallest_global_batch(const ParallelStrategy& strategy, int64_t micro_batch, InterleavedRounds rounds) {
  const bool of_ranks =
      strategy.schedule == PipelineSchedule::interleaved_1f1b && rounds == InterleavedRounds::of_pipeline_ranks;
  return micro_batch * strategy.data_parallel * (of_ranks ? strategy.pipeline_parallel : 1);
}

std::optional<std::string> infeasible_reason(const ModelDescription& model, const Configuration& configuration,
                                             int64_t sequence_length, InterleavedRounds rounds) {
  const ParallelStrategy& strategy = configuration.strategy;
  Reason reason = check_ranges(configuration, sequence_length);
  if (!reason) reason = check_strategy(strategy);
  if (!reason) reason = check_tensor_parallel(model, strategy);
  if (!reason) reason = check_stages(model, strategy);
  if (!reason) reason = check_batches(configuration, sequence_length, rounds);
  if (!reason) reason = check_shared_rows(model, configuration, sequence_length, rounds);
  return reason;
}

std::optional<std::string> infeasible_reason(const Configuration& configuration, int64_t sequence_length) {
  Reason reason = check_ranges(configuration, sequence_length);
  if (!reason) reason = check_strategy(configuration.strategy);
  if (!reason) reason = check_batches(configuration, sequence_length, InterleavedRounds::of_pipeline_ranks);
  return reason;
}

}  // namespace copus
