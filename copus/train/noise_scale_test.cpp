// What training measures of the gradient noise scale, in every layout, against an oracle that knows no layout: the
// gradients of single samples, by the whole model on one rank in float64.
#include "copus/statistics/noise_scale.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/test_support.h"
#include "copus/model/decoder.h"
#include "copus/model/kernels.h"
#include "copus/model/stages_in_turn.h"
#include "copus/train/test_layouts.h"
#include "copus/train/trainer.h"

namespace copus {
namespace {

using namespace layouts;

Dataset open_data(const RunConfig& config) {
  return {config.data, config.train.sequence_length, config.model.vocab_size, config.train.seed};
}

int64_t samples_per_rank(const RunConfig& config) { return config.train.global_batch / config.parallel.data_parallel; }

// Random weights for the whole model, in fp32: what the oracle and every layout begin with.
class Weights {
 public:
  explicit Weights(const ModelDescription& model) : store_(model, at::kFloat, at::kCPU) {
    at::manual_seed(7);
    randomize(store_);
  }

  const ParameterStore& store() const { return store_; }

  std::map<std::string, TensorView, std::less<>> views() const {
    std::map<std::string, TensorView, std::less<>> views;
    for (const Parameter& parameter : store_.parameters()) {
      if (parameter.tied_copy) continue;
      const at::Tensor master = store_.master(parameter);
      const std::span<const float> values(master.data_ptr<float>(), static_cast<size_t>(master.numel()));
      views.emplace(parameter.info.name,
                    TensorView{parameter.info.name, DType::f32, parameter.info.shape, std::as_bytes(values)});
    }
    return views;
  }

 private:
  ParameterStore store_;
};

// The gradients of the sum of token losses, of each of the first samples. Whatever a layout adds up in whatever order,
// the squared norm of a sum of them follows from their inner products.
class SampleGradients {
 public:
  SampleGradients(const Weights& weights, const RunConfig& config, int64_t count) {
    const Dataset dataset = open_data(config);
    ParameterStore store(config.model, at::kDouble, at::kCPU);
    for (const Parameter& parameter : weights.store().parameters()) {
      if (parameter.tied_copy) continue;
      at::Tensor value = weights.store().master(parameter);
      if (config.train.precision == Precision::bf16) value = value.to(at::kBFloat16);
      store.master(store.find(parameter.info.name)).copy_(value);
    }
    store.publish_weights();

    Decoder decoder(store, Recompute::none);
    std::vector<at::Tensor> gradients;
    for (int64_t sample = 0; sample < count; ++sample) {
      const Batch batch = dataset.train_batch(static_cast<uint64_t>(sample), 1);
      const int64_t length = config.train.sequence_length;
      store.zero_gradients();
      decoder.forward_backward(kernels::from_host(batch.tokens.data(), {1, length}, at::kCPU),
                               kernels::from_host(batch.targets.data(), {1, length}, at::kCPU), 1);
      gradients.push_back(gradient_vector(store));
      loss_tokens_.push_back(batch.loss_tokens);
    }
    const at::Tensor all = at::stack(gradients);
    inner_products_ = all.mm(all.t());
  }

  // Of the sum of the gradients of samples first .. first + count.
  double squared_norm(int64_t first, int64_t count) const {
    return inner_products_.narrow(0, first, count).narrow(1, first, count).sum().item<double>();
  }

  // The sum of the squared norms of each alone.
  double sum_of_squared_norms() const { return inner_products_.trace().item<double>(); }

  int64_t count() const { return inner_products_.size(0); }

  double loss_tokens(int64_t first, int64_t count) const {
    int64_t sum = 0;
    for (int64_t i = first; i < first + count; ++i) sum += loss_tokens_[static_cast<size_t>(i)];
    return static_cast<double>(sum);
  }

 private:
  // Every logical parameter once: an embedding that is also the head has the sum of both gradients.
  static at::Tensor gradient_vector(const ParameterStore& store) {
    std::vector<at::Tensor> parts;
    for (const Parameter& parameter : store.parameters()) {
      if (parameter.tied_copy) continue;
      const Parameter* head = store.find_tied_copy();
      const bool is_tied = head != nullptr && head->info.name == parameter.info.name;
      parts.push_back((is_tied ? parameter.gradient + head->gradient : parameter.gradient).flatten());
    }
    return at::cat(parts);
  }

  at::Tensor inner_products_;
  std::vector<int64_t> loss_tokens_;
};

// What a step should measure.
struct Norms {
  std::optional<double> small_batch;  // samples
  double small_batch_squared_norm = 0;
  double squared_norm = 0;
};

// By the definitions alone, for a step counted from 1 whose samples follow those of the steps before it.
Norms expected_norms(const SampleGradients& gradients, const RunConfig& config, int64_t step) {
  const int64_t batch = config.train.global_batch, first = (step - 1) * batch;
  const int64_t of_rank = samples_per_rank(config), num_ranks = config.parallel.data_parallel;
  int64_t small = config.train.micro_batch;                                 // prefix
  if (of_rank == small && num_ranks > 1) small = of_rank;                   // rank
  if (of_rank == small && num_ranks == 1) {                                 // split
    small = step % config.noise_scale.split_interval == 0 ? small / 2 : 0;  // none on other steps
  }
  const double loss_tokens = gradients.loss_tokens(first, batch);
  Norms norms;
  norms.squared_norm = gradients.squared_norm(first, batch) / (loss_tokens * loss_tokens);
  if (small == 0) return norms;
  norms.small_batch = static_cast<double>(small);
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const double scale = static_cast<double>(batch) / static_cast<double>(small) / loss_tokens;
    norms.small_batch_squared_norm +=
        scale * scale * gradients.squared_norm(first + rank * of_rank, small) / static_cast<double>(num_ranks);
  }
  return norms;
}

// All of a record, to compare bits.
std::vector<int64_t> words_of(const StepRecord& record) {
  std::vector<int64_t> words{record.step,         record.consumed_samples, record.consumed_tokens,
                             record.global_batch, record.micro_batch,      record.skipped_samples};
  for (const double number : {record.loss, record.lr, record.grad_norm, record.step_seconds, record.tokens_per_second,
                              record.elapsed_seconds}) {
    words.push_back(std::bit_cast<int64_t>(number));
  }
  for (const std::optional<double>& number :
       {record.small_batch, record.small_batch_squared_norm, record.noise_scale, record.noise_scale_low,
        record.noise_scale_high, record.noise_scale_tokens, record.critical_batch, record.statistical_efficiency,
        record.goodput, record.held_out_loss}) {
    words.push_back(number ? 1 : 0);
    words.push_back(std::bit_cast<int64_t>(number.value_or(0)));
  }
  return words;
}

// One step, whose record and averages must be the same on all ranks.
StepRecord step_alike(Trainer& trainer, World& world) {
  const StepRecord record = trainer.step();
  std::vector<int64_t> rank_0 = words_of(record);
  const std::vector<int64_t> here = rank_0;
  world.everyone().broadcast(rank_0.data(), static_cast<int64_t>(rank_0.size()), DataType::int64, 0);
  EXPECT_EQ(here, rank_0) << "rank " << world.rank() << ", step " << record.step;
  NoiseAverage average = trainer.state().noise_average;
  world.everyone().broadcast(&average, sizeof average, DataType::byte, 0);
  EXPECT_TRUE(trainer.state().noise_average == average) << "rank " << world.rank() << ", step " << record.step;
  return record;
}

std::vector<StepRecord> take_steps(Trainer& trainer, World& world, int64_t count) {
  std::vector<StepRecord> records;
  for (int64_t i = 0; i < count; ++i) records.push_back(step_alike(trainer, world));
  return records;
}

// The averages that records tell of.
class Replay {
 public:
  explicit Replay(const RunConfig& config) : window_{.samples = config.noise_scale.window_samples} {}

  void add(const StepRecord& record) {
    if (!record.small_batch) return;
    average_ = observe(average_,
                       {.small_batch = *record.small_batch,
                        .small_squared_norm = *record.small_batch_squared_norm,
                        .large_batch = static_cast<double>(record.global_batch),
                        .large_squared_norm = record.grad_norm * record.grad_norm},
                       window_);
  }
  void add(const std::vector<StepRecord>& records) {
    for (const StepRecord& record : records) add(record);
  }

  std::optional<NoiseScale> noise_scale() const { return copus::noise_scale(average_); }

 private:
  NoiseWindow window_;
  NoiseAverage average_;
};

// What a record says of the noise scale is what the records up to it give. They hold the root of a squared norm, whose
// square is another one in its last bits.
void expect_noise_scale(const StepRecord& record, const std::optional<NoiseScale>& expected) {
  constexpr double rounding = 1e-9;
  ASSERT_EQ(record.noise_scale_low.has_value(), expected.has_value()) << "step " << record.step;
  if (!expected) return;
  EXPECT_NEAR(*record.noise_scale_low, expected->low, rounding * expected->low) << "step " << record.step;
  ASSERT_EQ(record.noise_scale.has_value(), expected->value.has_value()) << "step " << record.step;
  if (!expected->value) return;
  EXPECT_NEAR(*record.noise_scale, *expected->value, rounding * *expected->value) << "step " << record.step;
  ASSERT_EQ(record.noise_scale_high.has_value(), expected->high.has_value()) << "step " << record.step;
  if (!expected->high) return;
  EXPECT_NEAR(*record.noise_scale_high, *expected->high, rounding * *expected->high) << "step " << record.step;
}

void expect_close(double value, double expected, double tolerance) {
  EXPECT_NEAR(value / expected, 1, tolerance) << value << " instead of " << expected;
}

class NoiseScaleTest : public ::testing::Test {
 protected:
  NoiseScaleTest() {
    std::ofstream file(corpus());
    for (int i = 0; i < 300; ++i) file << "line " << i * i % 97 << " of the corpus; " << i << '\n';
  }

  std::string corpus() const { return (folder_.path() / "corpus.txt").string(); }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config;
    config.model.vocab_size = 258;
    config.model.hidden_size = 32;
    config.model.intermediate_size = 48;
    config.model.num_layers = 4;
    config.model.num_heads = 4;
    config.model.num_kv_heads = 2;
    config.model.head_dim = 8;
    config.data.train = {{.path = corpus(), .weight = 1}};
    config.data.held_out_fraction = 0;
    config.data.document_separator = "\n";  // so that samples differ in how many of their tokens carry loss
    config.train.sequence_length = 16;
    config.train.global_batch = 8;
    config.train.micro_batch = 2;
    config.train.max_steps = 1000;
    config.train.precision = Precision::fp32;
    config.optimizer.schedule = LearningRateSchedule::constant;
    config.noise_scale.split_interval = 2;
    for (const Change& change : changes) change(config);
    const auto reason = infeasible_reason(config.model, configuration_of(config), config.train.sequence_length);
    EXPECT_EQ(reason, std::nullopt) << reason.value_or("");
    return config;
  }

  // Runs `body` with a trainer on every rank.
  static void train(const RunConfig& config, const std::function<void(Trainer&, World&)>& body) {
    run_ranks_as_threads(
        strategy_of(config).world_size(),
        [&](World& world) {
          kernels::set_num_threads(1);
          const Dataset dataset = open_data(config);
          Trainer trainer(config, dataset, at::kCPU, world);
          body(trainer, world);
        },
        60);
  }

  // Rank 0's snapshot to disk; the others have none.
  void write_checkpoint(const std::optional<Snapshot>& snapshot) const {
    if (!snapshot) return;
    CheckpointWriter writer(folder_.path() / "checkpoints", 1);
    writer.write(*snapshot);
    writer.finish();
  }
  Checkpoint read_checkpoint() const { return Checkpoint(latest_checkpoint(folder_.path() / "checkpoints").value()); }

  // The records of `steps` steps that leave the weights where they are, to the last bit.
  static std::vector<StepRecord> measure(RunConfig config, const Weights& weights, int64_t steps) {
    config.optimizer.lr = 1e-30;  // there must be some
    std::vector<StepRecord> records;
    train(config, [&](Trainer& trainer, World& world) {
      trainer.load(weights.views());
      const std::vector<StepRecord> mine = take_steps(trainer, world, steps);
      const std::optional<Snapshot> snapshot = trainer.snapshot("");
      if (!snapshot) return;
      records = mine;
      for (const HostTensor& tensor : snapshot->weights) {
        EXPECT_TRUE(to_float(tensor.view()) == to_float(weights.views().at(tensor.name))) << tensor.name;
      }
    });
    return records;
  }

  // In every layout the norms of the oracle, and those of the other layouts where these cut the batch alike. In fp32
  // elements of a gradient are off by 1e-7 of their size, and more where sums cancel; in a norm over all of them most
  // of that averages out, and what rounds alike in all layouts does not tell these apart.
  void expect_norms(const std::vector<Change>& base, const std::vector<std::vector<Change>>& layouts,
                    double tolerance_of_layouts = 1e-6, double tolerance_of_oracle = 2e-6) const {
    constexpr int64_t steps = 2;
    const RunConfig whole = config(base);
    const Weights weights(whole.model);
    const SampleGradients gradients(weights, whole, steps * whole.train.global_batch);
    std::map<std::vector<int64_t>, double> of_others;
    const auto expect_equal = [&](double squared_norm, double expected, const std::vector<int64_t>& kind) {
      expect_close(squared_norm, expected, tolerance_of_oracle);
      expect_close(squared_norm, of_others.emplace(kind, squared_norm).first->second, tolerance_of_layouts);
    };
    for (size_t i = 0; i < layouts.size(); ++i) {
      const RunConfig changed = config(join(base, layouts[i]));
      for (const StepRecord& record : measure(changed, weights, steps)) {
        SCOPED_TRACE(
            concat("layout ", i, ": ", record.strategy, ", micro-batch ", record.micro_batch, ", step ", record.step));
        const Norms expected = expected_norms(gradients, changed, record.step);
        expect_equal(record.grad_norm * record.grad_norm, expected.squared_norm, {record.step});
        EXPECT_EQ(record.small_batch, expected.small_batch);
        EXPECT_EQ(record.small_batch_squared_norm.has_value(), expected.small_batch.has_value());
        if (!record.small_batch_squared_norm) continue;
        expect_equal(*record.small_batch_squared_norm, expected.small_batch_squared_norm,
                     {record.step, changed.parallel.data_parallel, static_cast<int64_t>(*record.small_batch)});
      }
    }
  }

  TemporaryFolder folder_;
};

const Change whole_batch = [](RunConfig& config) { config.train.micro_batch = samples_per_rank(config); };
const Change disabled = [](RunConfig& config) { config.noise_scale.enabled = false; };
const Change split_every_step = [](RunConfig& config) { config.noise_scale.split_interval = 1; };

// ---- norms, layout by layout ----------------------------------------------------------------------------------------

TEST_F(NoiseScaleTest, NormsWithDataParallelism) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied}, {biases}}) {
    expect_norms(base, {{ranks(1, 1, 1), micro_batch(1)},
                        {ranks(1, 1, 1), micro_batch(2), recompute(Recompute::full)},
                        {ranks(1, 1, 1), micro_batch(4), zb_h1},
                        {ranks(2, 1, 1), micro_batch(1), zero_1},
                        {ranks(2, 1, 1), micro_batch(2), gpipe},
                        {ranks(2, 1, 1), whole_batch},
                        {ranks(2, 1, 1), whole_batch, zero_1, zb_h1},
                        {ranks(4, 1, 1), micro_batch(1)},
                        {ranks(4, 1, 1), whole_batch, zero_1},
                        {ranks(8, 1, 1), whole_batch}});
  }
}

TEST_F(NoiseScaleTest, NormsOfPipelines) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied}, {}}) {
    expect_norms(base, {{ranks(1, 1, 2), micro_batch(1)},
                        {ranks(1, 1, 2), micro_batch(2), zb_h1},
                        {ranks(1, 1, 2), micro_batch(2), interleaved},
                        {ranks(1, 1, 4), micro_batch(4), gpipe},
                        {ranks(1, 1, 4), micro_batch(1), zb_h1, recompute(Recompute::attention)},
                        {ranks(2, 1, 2), micro_batch(2), interleaved, zero_1},
                        {ranks(2, 1, 2), whole_batch, zb_h1},
                        {ranks(2, 1, 4), micro_batch(2), zb_h1, zero_1},
                        {ranks(2, 1, 4), whole_batch, zero_1},
                        {ranks(4, 1, 2), whole_batch, gpipe},
                        {ranks(4, 1, 2), micro_batch(1), interleaved}});
  }
}

TEST_F(NoiseScaleTest, NormsWithTensorParallelism) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied, kv_heads(1)}, {biases}, {kv_heads(4)}}) {
    expect_norms(base, {{ranks(1, 2, 1), micro_batch(2)},
                        {ranks(1, 4, 1), micro_batch(1), zb_h1},
                        {ranks(2, 2, 1), whole_batch, zero_1},
                        {ranks(2, 4, 1), whole_batch},
                        {ranks(1, 4, 2), micro_batch(2), interleaved},
                        {ranks(1, 2, 4), micro_batch(2), gpipe},
                        {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_1},
                        {ranks(2, 2, 2), whole_batch, recompute(Recompute::full)},
                        {ranks(2, 2, 2), micro_batch(2), interleaved}});
  }
}

TEST_F(NoiseScaleTest, NormsWithSequenceParallelism) {
  for (const std::vector<Change>& base : {std::vector<Change>{tied, kv_heads(1), biases}, {kv_heads(2)}}) {
    expect_norms(join(base, {ranks(1, 2, 1), sequence_parallel}),
                 {{ranks(1, 2, 1), micro_batch(4)},
                  {ranks(1, 4, 1), micro_batch(1), zb_h1},
                  {ranks(2, 2, 1), whole_batch},
                  {ranks(2, 4, 1), whole_batch, zero_1},
                  {ranks(4, 2, 1), micro_batch(1), zero_1},
                  {ranks(1, 4, 2), micro_batch(2), interleaved, recompute(Recompute::attention)},
                  {ranks(1, 2, 4), micro_batch(1), zb_h1},
                  {ranks(2, 2, 2), whole_batch, zb_h1, zero_1},
                  {ranks(2, 2, 2), micro_batch(2), interleaved}});
  }
}

TEST_F(NoiseScaleTest, NormsOfASplitMicroBatch) {
  const std::vector<Change> base{tied, whole_batch};
  expect_norms(base, {{ranks(1, 1, 1)},
                      {ranks(1, 1, 2), zb_h1},
                      {ranks(1, 1, 4), gpipe},
                      {ranks(1, 1, 4), recompute(Recompute::full), zero_1},
                      {ranks(1, 2, 1)},
                      {ranks(1, 4, 2), zb_h1}});
  expect_norms(join(base, {kv_heads(1), ranks(1, 2, 1), sequence_parallel}),
               {{ranks(1, 2, 1)}, {ranks(1, 4, 1)}, {ranks(1, 4, 2), zb_h1}});
  // Halves that are not: one sample and two.
  expect_norms({global_batch(3), whole_batch}, {{ranks(1, 1, 1)}, {ranks(1, 1, 2)}, {ranks(1, 4, 1), zb_h1}});
}

// The same samples in parts of the same size give the same numbers to 1e-6, whatever the layout: here to the bit, but
// for tensor parallelism, which rounds in other places.
TEST_F(NoiseScaleTest, NormsAreEqualWhereMicroBatchesAre) {
  const std::vector<Change> base{tied, kv_heads(1)};
  const Weights weights(config(base).model);
  const auto expect_equal = [&](const std::vector<std::vector<Change>>& layouts, bool bitwise) {
    const std::vector<StepRecord> expected = measure(config(join(base, layouts[0])), weights, 2);
    for (size_t i = 1; i < layouts.size(); ++i) {
      const std::vector<StepRecord> records = measure(config(join(base, layouts[i])), weights, 2);
      for (size_t step = 0; step < records.size(); ++step) {
        SCOPED_TRACE(concat("layout ", i, ", step ", step + 1));
        ASSERT_TRUE(records[step].small_batch_squared_norm && expected[step].small_batch_squared_norm);
        const double norm = *records[step].small_batch_squared_norm;
        const double expected_norm = *expected[step].small_batch_squared_norm;
        EXPECT_EQ(records[step].small_batch, expected[step].small_batch);
        expect_close(norm, expected_norm, 1e-6);
        expect_close(records[step].grad_norm, expected[step].grad_norm, 0.5e-6);
        EXPECT_TRUE(!bitwise || norm == expected_norm) << norm << " and " << expected_norm;
      }
    }
  };
  for (const int64_t size : {1, 2}) {
    SCOPED_TRACE(concat("micro-batches of ", size));
    const Change parts = micro_batch(size);
    expect_equal({{ranks(2, 1, 1), parts},
                  {ranks(2, 1, 1), parts, zero_1, zb_h1},
                  {ranks(2, 1, 2), parts, interleaved},
                  {ranks(2, 1, 4), parts, zb_h1, zero_1, recompute(Recompute::full)}},
                 true);
    expect_equal({{ranks(2, 1, 2), parts}, {ranks(2, 2, 1), parts}, {ranks(2, 4, 1), parts, sequence_parallel}}, false);
  }
  expect_equal({{ranks(2, 1, 1), whole_batch},
                {ranks(2, 1, 2), whole_batch, zb_h1},
                {ranks(2, 1, 4), whole_batch, zero_1, gpipe}},
               true);
  expect_equal({{ranks(4, 1, 1), whole_batch}, {ranks(4, 2, 1), whole_batch, sequence_parallel, zero_1}}, false);
}

// bf16 keeps 8 bits of every activation and of its gradient; main gradients and norms stay fp32.
TEST_F(NoiseScaleTest, NormsWithRoundedActivations) {
  expect_norms({bf16, tied, kv_heads(1)},
               {{ranks(1, 1, 1), micro_batch(2)},
                {ranks(2, 2, 2), micro_batch(2), sequence_parallel, zero_1, zb_h1},
                {ranks(2, 1, 2), whole_batch, zero_1},
                {ranks(1, 1, 1), whole_batch}},
               0.02, 0.02);
}

TEST_F(NoiseScaleTest, OneSampleOrHalvesThatCannotBeSharedAreNotMeasured) {
  const Change odd_length = [](RunConfig& config) { config.train.sequence_length = 15; };
  for (const std::vector<Change>& changes : {std::vector<Change>{global_batch(1), micro_batch(1), split_every_step},
                                             std::vector<Change>{global_batch(2), micro_batch(2), split_every_step,
                                                                 odd_length, ranks(1, 2, 1), sequence_parallel}}) {
    const RunConfig never = config(changes);
    for (const StepRecord& record : measure(never, Weights(never.model), 3)) {
      EXPECT_EQ(record.small_batch, std::nullopt);
      EXPECT_EQ(record.small_batch_squared_norm, std::nullopt);
      EXPECT_EQ(record.noise_scale_low, std::nullopt);
      EXPECT_EQ(record.noise_scale, std::nullopt);
    }
  }
}

// ---- noise of a finite data set -------------------------------------------------------------------------------------

// 64 samples without masked tokens, each visited once an epoch. Their gradients are one draw of the text's: they tell
// of it tr(Sigma) = sum |g_i - g|^2 / (N - 1) and |G|^2 = |g|^2 - tr(Sigma) / N with g their mean, both unbiased. A
// batch of k is a sample of theirs without replacement, so E|g_k|^2 = |g|^2 + tr(Sigma) (1/k - 1/N) = |G|^2 + tr(Sigma)
// / k: what training estimates has exactly these expected values, at any size of the batch.
class FiniteDataTest : public NoiseScaleTest {
 protected:
  static constexpr int64_t num_samples = 64, epochs = 8, length = 16;

  FiniteDataTest() {
    std::ofstream file(corpus(), std::ios::trunc);
    std::string text;
    for (int i = 0; text.size() <= num_samples * length; ++i) text += concat(i * i % 97, " words; ", i, ' ');
    file << text.substr(0, num_samples * length + 1);
    file.close();

    const RunConfig whole = finite({});
    EXPECT_EQ(open_data(whole).loss_tokens(0, num_samples), num_samples * length);
    const SampleGradients gradients(Weights(whole.model), whole, num_samples);
    constexpr auto n = static_cast<double>(num_samples), squared_length = static_cast<double>(length * length);
    const double squared_mean = gradients.squared_norm(0, num_samples) / squared_length / (n * n);
    exact_.trace = (gradients.sum_of_squared_norms() / squared_length - n * squared_mean) / (n - 1);
    exact_.squared_gradient = squared_mean - exact_.trace / n;
  }

  RunConfig finite(const std::vector<Change>& changes) const {
    const std::vector<Change> base = {tied, biases, [](RunConfig& config) {
                                        config.data.document_separator.clear();
                                        config.noise_scale.window_samples = std::numeric_limits<double>::infinity();
                                        config.noise_scale.split_interval = 1;
                                      }};
    return config(join(base, changes));
  }

  // All that a layout says of the noise after some epochs, of which the averages reach over the later ones.
  NoiseScale estimate(const std::vector<Change>& changes) const {
    const RunConfig changed = finite(changes);
    const std::vector<StepRecord> records =
        measure(changed, Weights(changed.model), epochs * num_samples / changed.train.global_batch);
    Replay replay(changed);
    replay.add(records);
    const std::optional<NoiseScale> noise = replay.noise_scale();
    expect_noise_scale(records.back(), noise);
    return noise.value_or(NoiseScale{});
  }

  // Within its errors, which must be small enough to tell a mistake of a factor of 2.
  void expect_exact(const NoiseScale& noise) const {
    const auto expect_within = [](const MeanEstimate& estimate, double exact) {
      EXPECT_LT(std::abs(estimate.value - exact), 3 * estimate.standard_error) << estimate.value << ", exact " << exact;
      EXPECT_LT(estimate.standard_error, 0.25 * exact);
    };
    expect_within(noise.squared_gradient, exact_.squared_gradient);
    expect_within(noise.trace, exact_.trace);
    const double exact = exact_.trace / exact_.squared_gradient;
    ASSERT_TRUE(noise.value && noise.high);
    EXPECT_LT(noise.low, exact);
    EXPECT_GT(*noise.high, exact);
    EXPECT_NEAR(*noise.value / exact, 1, 0.5);
  }

  GradientNoise exact_;
};

TEST_F(FiniteDataTest, EverySourceFindsTheExactNoise) {
  const double exact = exact_.trace / exact_.squared_gradient;
  EXPECT_GT(exact, 1) << "noise should matter at the batch of this test";
  EXPECT_LT(exact, 64);
  expect_exact(estimate({ranks(1, 1, 1), micro_batch(1)}));
  expect_exact(estimate({ranks(1, 1, 1), micro_batch(4)}));
  expect_exact(estimate({ranks(2, 1, 1), whole_batch}));
  expect_exact(estimate({ranks(1, 1, 1), whole_batch}));
}

TEST_F(FiniteDataTest, TheNoiseIsThatOfModelAndDataInEveryLayout) {
  const std::vector<std::vector<Change>> layouts = {{ranks(1, 1, 1), micro_batch(2)},
                                                    {ranks(2, 1, 1), micro_batch(1), zero_1},
                                                    {ranks(2, 1, 1), micro_batch(2)},
                                                    {ranks(4, 1, 1), micro_batch(1)},
                                                    {ranks(4, 1, 1), whole_batch, zero_1},
                                                    {ranks(8, 1, 1), whole_batch},
                                                    {ranks(1, 1, 2), micro_batch(2), interleaved},
                                                    {ranks(1, 1, 4), whole_batch, zb_h1},
                                                    {ranks(1, 4, 1), micro_batch(4), sequence_parallel},
                                                    {ranks(2, 2, 1), whole_batch, sequence_parallel},
                                                    {ranks(2, 2, 2), micro_batch(1), zb_h1, zero_1},
                                                    {ranks(1, 4, 2), micro_batch(2), interleaved, sequence_parallel},
                                                    {ranks(2, 1, 2), micro_batch(2), global_batch(16)},
                                                    {ranks(4, 2, 1), whole_batch, global_batch(16)}};
  std::vector<NoiseScale> estimates;
  for (size_t i = 0; i < layouts.size(); ++i) {
    SCOPED_TRACE(concat("layout ", i));
    estimates.push_back(estimate(layouts[i]));
    expect_exact(estimates.back());
  }
  const auto expect_agree = [](const MeanEstimate& a, const MeanEstimate& b) {
    EXPECT_LT(std::abs(a.value - b.value), 3 * std::hypot(a.standard_error, b.standard_error));
  };
  for (size_t i = 0; i < estimates.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      SCOPED_TRACE(concat("layouts ", i, " and ", j));
      expect_agree(estimates[i].squared_gradient, estimates[j].squared_gradient);
      expect_agree(estimates[i].trace, estimates[j].trace);
    }
  }
}

// ---- averages over a run --------------------------------------------------------------------------------------------

// Squared norms in, averages out: nothing is lost on the way and nothing added.
TEST_F(NoiseScaleTest, AveragesAreThoseOfTheNormsInTheRecords) {
  for (const std::vector<Change>& changes :
       {std::vector<Change>{ranks(2, 1, 2), zb_h1}, {ranks(4, 1, 1), whole_batch}, {ranks(1, 1, 1), whole_batch}}) {
    const RunConfig run = config(changes);
    std::vector<StepRecord> records;
    train(run, [&](Trainer& trainer, World& world) {
      const std::vector<StepRecord> mine = take_steps(trainer, world, 12);
      if (world.rank() == 0) records = mine;
    });
    Replay replay(run);
    for (const StepRecord& record : records) {
      replay.add(record);
      expect_noise_scale(record, replay.noise_scale());
    }
    const StepRecord& last = records.back();
    ASSERT_TRUE(last.noise_scale && last.noise_scale_tokens && last.critical_batch && last.statistical_efficiency);
    EXPECT_DOUBLE_EQ(*last.noise_scale_tokens, *last.noise_scale * 16);
    EXPECT_DOUBLE_EQ(*last.critical_batch, *last.noise_scale * run.noise_scale.calibration);
    EXPECT_DOUBLE_EQ(*last.statistical_efficiency, (*last.critical_batch + 1) / (*last.critical_batch + 8));
    ASSERT_TRUE(last.goodput);
    EXPECT_DOUBLE_EQ(*last.goodput, last.tokens_per_second / 16 * *last.statistical_efficiency);
  }
}

TEST_F(NoiseScaleTest, ACheckpointTakesTheAveragesIntoAnyLayout) {
  constexpr int64_t half = 32, rest = 16;
  const std::vector<Change> base = {tied, kv_heads(1)};
  const std::vector<Change> written_in = {ranks(2, 2, 1), micro_batch(2), zero_1};
  std::vector<StepRecord> before, uninterrupted;
  train(config(join(base, written_in)), [&](Trainer& trainer, World& world) {
    const std::vector<StepRecord> first = take_steps(trainer, world, half);
    const std::optional<Snapshot> snapshot = trainer.snapshot("");
    const std::vector<StepRecord> second = take_steps(trainer, world, rest);
    write_checkpoint(snapshot);
    if (world.rank() != 0) return;
    before = first;
    uninterrupted = second;
  });
  ASSERT_TRUE(before.back().noise_scale.has_value());
  double largest_change = 0;  // of one step
  for (size_t step = before.size() - 4; step < before.size(); ++step) {
    ASSERT_TRUE(before[step].noise_scale && before[step - 1].noise_scale);
    largest_change = std::max(largest_change, std::abs(*before[step].noise_scale - *before[step - 1].noise_scale));
  }

  const Checkpoint checkpoint = read_checkpoint();
  const auto resume = [&](const std::vector<Change>& layout) {
    const RunConfig changed = config(join(base, layout));
    std::vector<StepRecord> records;
    train(changed, [&](Trainer& trainer, World& world) {
      trainer.restore(checkpoint);
      const std::vector<StepRecord> mine = take_steps(trainer, world, rest);
      if (world.rank() == 0) records = mine;
    });
    Replay replay(changed);
    replay.add(before);
    for (const StepRecord& record : records) {
      replay.add(record);
      expect_noise_scale(record, replay.noise_scale());
    }
    return records;
  };

  for (const std::vector<Change>& same : {written_in, {ranks(2, 2, 2), micro_batch(2), zb_h1}}) {
    const std::vector<StepRecord> resumed = resume(same);
    for (size_t step = 0; step < resumed.size(); ++step) {
      SCOPED_TRACE(concat("step ", step + 1, " after"));
      EXPECT_EQ(resumed[step].small_batch_squared_norm, uninterrupted[step].small_batch_squared_norm);
      EXPECT_EQ(resumed[step].noise_scale, uninterrupted[step].noise_scale);
      EXPECT_EQ(resumed[step].noise_scale_low, uninterrupted[step].noise_scale_low);
      EXPECT_EQ(resumed[step].noise_scale_high, uninterrupted[step].noise_scale_high);
    }
  }
  // Training itself goes on to rounding, and so does everything at equal micro-batches.
  const std::vector<StepRecord> rounded = resume({ranks(2, 4, 1), micro_batch(2), sequence_parallel});
  for (size_t step = 0; step < rounded.size(); ++step) {
    ASSERT_TRUE(rounded[step].noise_scale && uninterrupted[step].noise_scale);
    expect_close(*rounded[step].noise_scale, *uninterrupted[step].noise_scale, 1e-5);
  }
  for (const std::vector<Change>& other : {std::vector<Change>{ranks(4, 1, 2), micro_batch(1), interleaved},
                                           {ranks(1, 1, 1), micro_batch(4)},
                                           {ranks(4, 2, 1), whole_batch, zero_1},
                                           {ranks(1, 2, 2), whole_batch, zb_h1}}) {
    const std::vector<StepRecord> resumed = resume(other);
    ASSERT_TRUE(resumed.front().noise_scale.has_value());
    EXPECT_LT(std::abs(*resumed.front().noise_scale - *before.back().noise_scale), 3 * largest_change);
    for (size_t step = 0; step < resumed.size(); ++step) {
      SCOPED_TRACE(concat("layout ", resumed[step].strategy, ", step ", step + 1, " after"));
      ASSERT_TRUE(resumed[step].noise_scale && uninterrupted[step].noise_scale_high);
      EXPECT_GT(*resumed[step].noise_scale, *uninterrupted[step].noise_scale_low);
      EXPECT_LT(*resumed[step].noise_scale, *uninterrupted[step].noise_scale_high);
    }
  }
}

// Per-sample numbers do not change when the batch does.
TEST_F(NoiseScaleTest, ACheckpointGoesOnWithAnotherGlobalBatch) {
  const RunConfig small = config({ranks(2, 1, 1)}), large = config({ranks(2, 1, 2), global_batch(32), micro_batch(4)});
  Replay replay(small);
  train(small, [&](Trainer& trainer, World& world) {
    const std::vector<StepRecord> records = take_steps(trainer, world, 6);
    write_checkpoint(trainer.snapshot(""));
    if (world.rank() == 0) replay.add(records);
  });
  const Checkpoint checkpoint = read_checkpoint();
  train(large, [&](Trainer& trainer, World& world) {
    trainer.restore(checkpoint);
    const std::vector<StepRecord> records = take_steps(trainer, world, 3);
    if (world.rank() != 0) return;
    for (const StepRecord& record : records) {
      replay.add(record);
      expect_noise_scale(record, replay.noise_scale());
    }
  });
}

// Which steps are cut in two follows from their numbers, so a resumed run cuts the same.
TEST_F(NoiseScaleTest, ResumedRunsCutTheSameStepsInTwo) {
  const RunConfig run = config({tied, whole_batch, [](RunConfig& config) { config.noise_scale.split_interval = 3; }});
  std::vector<StepRecord> uninterrupted;
  train(run, [&](Trainer& trainer, World& world) {
    take_steps(trainer, world, 10);
    write_checkpoint(trainer.snapshot(""));
    uninterrupted = take_steps(trainer, world, 6);
  });
  train(run, [&](Trainer& trainer, World& world) {
    trainer.restore(read_checkpoint());
    for (const StepRecord& expected : uninterrupted) {
      const StepRecord record = step_alike(trainer, world);
      EXPECT_EQ(record.small_batch.has_value(), record.step % 3 == 0);
      EXPECT_EQ(record.loss, expected.loss);
      EXPECT_EQ(record.small_batch_squared_norm, expected.small_batch_squared_norm);
      EXPECT_TRUE(record.noise_scale_low.has_value());
      EXPECT_EQ(record.noise_scale_low, expected.noise_scale_low);
      EXPECT_EQ(record.noise_scale, expected.noise_scale);
    }
  });
}

TEST_F(NoiseScaleTest, AStepThatIsNotFiniteChangesNoAverage) {
  for (const std::vector<Change>& layout : {std::vector<Change>{ranks(2, 1, 2), zb_h1, zero_1},
                                            {ranks(2, 1, 2), whole_batch},
                                            {ranks(2, 2, 1), micro_batch(1), sequence_parallel}}) {
    const RunConfig run = config(join({tied}, layout));
    Replay replay(run);
    train(run, [&](Trainer& trainer, World& world) {
      const std::vector<StepRecord> good = take_steps(trainer, world, 5);
      ParameterStore& parameters = trainer.parameters();
      // The first rank that holds other samples: theirs alone have a gradient that is not finite.
      const bool is_broken = world.rank() == run.parallel.tensor_parallel;
      at::Tensor norm, saved;
      if (is_broken) {
        norm = parameters.find("model.layers.0.input_layernorm.weight").weight;
        saved = norm.clone();
        norm.fill_(std::numeric_limits<double>::infinity());
      }
      const NoiseAverage average = trainer.state().noise_average;
      const StepRecord broken = step_alike(trainer, world);
      EXPECT_FALSE(std::isfinite(broken.loss));
      EXPECT_EQ(trainer.state().skipped_steps, 1);
      EXPECT_EQ(broken.small_batch, std::nullopt);
      EXPECT_TRUE(trainer.state().noise_average == average);
      EXPECT_EQ(broken.noise_scale, good.back().noise_scale);
      EXPECT_EQ(broken.noise_scale_low, good.back().noise_scale_low);
      EXPECT_EQ(broken.noise_scale_high, good.back().noise_scale_high);

      if (is_broken) norm.copy_(saved);
      const StepRecord again = step_alike(trainer, world);
      EXPECT_TRUE(std::isfinite(again.loss));
      if (world.rank() != 0) return;
      replay.add(good);
      replay.add(again);
      expect_noise_scale(again, replay.noise_scale());
    });
  }
}

// Ten times the gradient in one step of twenty: a hundred times its squared norms, which would be six times the
// average.
TEST_F(NoiseScaleTest, AnOutlierDoesNotTakeOver) {
  RunConfig run = config({ranks(2, 1, 1), tied});
  run.optimizer.lr = 1e-30;
  const Weights weights(run.model);
  Replay replay(run);
  train(run, [&](Trainer& trainer, World& world) {
    trainer.load(weights.views());
    const std::vector<StepRecord> good = take_steps(trainer, world, 20);
    ParameterStore& parameters = trainer.parameters();
    const at::Tensor norm = parameters.find("model.norm.weight").weight;
    const at::Tensor saved = norm.clone();
    norm.mul_(10);
    const StepRecord outlier = step_alike(trainer, world);
    norm.copy_(saved);
    const StepRecord again = step_alike(trainer, world);
    if (world.rank() != 0) return;
    EXPECT_GT(outlier.grad_norm, 5 * good.back().grad_norm);
    replay.add(good);
    const double squared_gradient = replay.noise_scale().value().squared_gradient.value;
    const double trace = replay.noise_scale().value().trace.value;
    replay.add(outlier);
    expect_noise_scale(outlier, replay.noise_scale());
    EXPECT_LT(replay.noise_scale().value().squared_gradient.value, 2 * squared_gradient);
    EXPECT_LT(replay.noise_scale().value().trace.value, 2 * trace);
    replay.add(again);
    expect_noise_scale(again, replay.noise_scale());
  });
}

// ---- switched off ---------------------------------------------------------------------------------------------------

TEST_F(NoiseScaleTest, MeasuringChangesNoBitOfTraining) {
  struct Outcome {
    std::vector<StepRecord> records;
    std::vector<std::vector<float>> weights;
  };
  const auto run = [&](const std::vector<Change>& changes) {
    Outcome outcome;
    train(config(changes), [&](Trainer& trainer, World& world) {
      const std::vector<StepRecord> mine = take_steps(trainer, world, 4);
      const std::optional<Snapshot> snapshot = trainer.snapshot("");
      if (!snapshot) return;
      outcome.records = mine;
      for (const HostTensor& tensor : snapshot->weights) outcome.weights.push_back(to_float(tensor.view()));
    });
    return outcome;
  };
  const std::vector<Change> base = {tied, kv_heads(1)};
  for (const std::vector<Change>& layout : {std::vector<Change>{ranks(2, 1, 2), zb_h1},
                                            {ranks(1, 2, 2), interleaved, sequence_parallel},
                                            {ranks(4, 1, 1), whole_batch, zero_1},
                                            {ranks(2, 2, 2), whole_batch, sequence_parallel},
                                            {ranks(1, 1, 1), micro_batch(1)}}) {
    const Outcome measured = run(join(base, layout)), plain = run(join(base, join(layout, {disabled})));
    ASSERT_EQ(measured.records.size(), plain.records.size());
    for (size_t step = 0; step < plain.records.size(); ++step) {
      SCOPED_TRACE(concat(plain.records[step].strategy, ", step ", step + 1));
      EXPECT_EQ(measured.records[step].loss, plain.records[step].loss);
      EXPECT_EQ(measured.records[step].grad_norm, plain.records[step].grad_norm);
      EXPECT_TRUE(measured.records[step].small_batch_squared_norm.has_value());
      const StepRecord& off = plain.records[step];
      for (const std::optional<double>& field :
           {off.small_batch, off.small_batch_squared_norm, off.noise_scale, off.noise_scale_low, off.noise_scale_high,
            off.noise_scale_tokens, off.critical_batch, off.statistical_efficiency, off.goodput}) {
        EXPECT_EQ(field, std::nullopt);
      }
    }
    EXPECT_TRUE(measured.weights == plain.weights);
  }
  // Where the only micro-batch would be cut in two, only the sums' order differs; and steps that are not cut are equal.
  const Outcome cut = run({ranks(1, 1, 1), whole_batch}), whole = run({ranks(1, 1, 1), whole_batch, disabled});
  ASSERT_EQ(cut.records.size(), whole.records.size());
  EXPECT_EQ(cut.records[0].loss, whole.records[0].loss);
  EXPECT_EQ(cut.records[0].grad_norm, whole.records[0].grad_norm);
  for (size_t step = 0; step < whole.records.size(); ++step) {
    EXPECT_NEAR(cut.records[step].loss, whole.records[step].loss, 1e-5);
    EXPECT_EQ(cut.records[step].small_batch.has_value(), step % 2 == 1);
    EXPECT_EQ(whole.records[step].small_batch, std::nullopt);
  }
}

}  // namespace
}  // namespace copus
