// For tests of the measured gradient noise scale: runs of a small model in any layout, and an oracle that is
// independent of layouts: gradients of single samples, computed by the whole model on one rank in float64.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/decoder.h"
#include "copus/model/testing/stages_in_turn.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/testing/take_snapshot.h"
#include "copus/train/testing/test_layouts.h"
#include "copus/train/trainer/trainer.h"

namespace copus::noise_tests {

using layouts::Change;
using layouts::join;
using layouts::open_data;

inline int64_t samples_per_rank(const RunConfig& config) {
  return config.train.global_batch / config.parallel.data_parallel;
}

// Returns random weights for the whole model in fp32, from which the oracle and every layout begin.
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

// Gradients of the sum of token losses of each of the first samples. Inner products give the squared norms of their
// sums, so the gradients serve layouts with any order of sums.
class SampleGradients {
 public:
  SampleGradients(const Weights& weights, const RunConfig& config, int64_t count) {
    const Dataset dataset = open_data(config);
    ParameterStore store(config.model, at::kDouble, at::kCPU);
    for (const Parameter& parameter : weights.store().parameters()) {
      if (parameter.tied_copy) continue;
      at::Tensor value = weights.store().master(parameter);
      if (config.execution.precision == Precision::bf16) value = value.to(at::kBFloat16);
      store.master(store.find(parameter.info.name)).copy_(value);
    }
    store.publish_weights();

    Decoder decoder(store, Recompute::none);
    std::vector<at::Tensor> gradients, hidden;
    for (int64_t sample = 0; sample < count; ++sample) {
      const Batch batch = dataset.train_batch(static_cast<uint64_t>(sample), 1);
      const int64_t length = config.train.sequence_length;
      store.zero_gradients();
      decoder.forward_backward(kernels::from_host(batch.tokens.data(), {1, length}, at::kCPU),
                               kernels::from_host(batch.targets.data(), {1, length}, at::kCPU), 1);
      gradients.push_back(gradient_vector(store));
      hidden.push_back(hidden_gradient(store));
      loss_tokens_.push_back(batch.loss_tokens);
    }
    const at::Tensor all = at::stack(gradients);
    inner_products_ = all.mm(all.t());
    hidden_ = at::stack(hidden);
  }

  // The gradients of all hidden matrices, flat, of the sum over samples first .. first + count.
  at::Tensor hidden_sum(int64_t first, int64_t count) const { return hidden_.narrow(0, first, count).sum(0); }

  // Squared norm of the sum of the gradients of samples first .. first + count.
  double squared_norm(int64_t first, int64_t count) const {
    return inner_products_.narrow(0, first, count).narrow(1, first, count).sum().item<double>();
  }

  // Returns the sum of the squared norms of these samples' gradients.
  double sum_of_squared_norms() const { return inner_products_.trace().item<double>(); }

  int64_t count() const { return inner_products_.size(0); }

  double loss_tokens(int64_t first, int64_t count) const {
    int64_t sum = 0;
    for (int64_t i = first; i < first + count; ++i) sum += loss_tokens_[static_cast<size_t>(i)];
    return static_cast<double>(sum);
  }

 private:
  // Concatenates every logical parameter once. A tied embedding has the sum of both gradients.
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

  static at::Tensor hidden_gradient(const ParameterStore& store) {
    std::vector<at::Tensor> parts;
    for (const Parameter& parameter : store.parameters()) {
      if (is_hidden_matrix(parameter.info)) parts.push_back(parameter.gradient.flatten());
    }
    return at::cat(parts);
  }

  at::Tensor inner_products_, hidden_;
  std::vector<int64_t> loss_tokens_;
};

// The norms that a step must measure.
struct Norms {
  std::optional<double> small_batch;  // in samples; empty: none
  double small_batch_squared_norm = 0;
  double squared_norm = 0;
};

// Computes the norms by definition, for a step counted from 1, whose samples follow those of earlier steps.
inline Norms expected_norms(const SampleGradients& gradients, const RunConfig& config, int64_t step) {
  const int64_t batch = config.train.global_batch, first = (step - 1) * batch;
  const int64_t of_rank = samples_per_rank(config), num_ranks = config.parallel.data_parallel;
  const bool has_prefix = num_ranks == 1 || config.parallel.zero_stage >= 2;
  int64_t small = has_prefix ? std::min(of_rank, config.train.micro_batch) : of_rank;
  if (of_rank == small && num_ranks == 1) {  // the step is one micro-batch
    small = step % config.noise_scale.split_interval == 0 ? std::max<int64_t>(1, small / 8) : 0;  // 0: no split
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

// Returns all fields of a record as words, to compare bits.
inline std::vector<int64_t> words_of(const StepRecord& record) {
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

// Makes one step. Its record and averages must be the same on all ranks.
inline StepRecord step_alike(Trainer& trainer, World& world) {
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

inline std::vector<StepRecord> take_steps(Trainer& trainer, World& world, int64_t count) {
  std::vector<StepRecord> records;
  for (int64_t i = 0; i < count; ++i) records.push_back(step_alike(trainer, world));
  return records;
}

// Computes averages from the norms in records.
class Replay {
 public:
  explicit Replay(const RunConfig& config) : window_{.samples = config.noise_scale.window_samples} {}

  void add(const StepRecord& record) {
    if (!record.small_batch) return;
    const int64_t used = record.consumed_samples - record.skipped_samples;
    average_ = observe(average_,
                       {.small_batch = *record.small_batch,
                        .small_squared_norm = *record.small_batch_squared_norm,
                        .large_batch = static_cast<double>(record.global_batch),
                        .large_squared_norm = record.grad_norm * record.grad_norm},
                       static_cast<double>(used - std::exchange(observed_samples_, used)), window_);
  }
  void add(const std::vector<StepRecord>& records) {
    for (const StepRecord& record : records) add(record);
  }

  std::optional<NoiseScale> noise_scale() const { return copus::noise_scale(average_); }

 private:
  NoiseWindow window_;
  NoiseAverage average_;
  int64_t observed_samples_ = 0;
};

// Expects a record's noise scale to follow from the records so far. Records hold the root of a squared norm, so the
// square differs in its last bits.
inline void expect_noise_scale(const StepRecord& record, const std::optional<NoiseScale>& expected) {
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

inline void expect_close(double value, double expected, double tolerance) {
  EXPECT_NEAR(value / expected, 1, tolerance) << value << " instead of " << expected;
}

class NoiseScaleTest : public ::testing::Test {
 protected:
  NoiseScaleTest() { layouts::write_corpus(corpus()); }

  std::string corpus() const { return (folder_.path() / "corpus.txt").string(); }

  RunConfig config(const std::vector<Change>& changes) const {
    RunConfig config = layouts::small_run(corpus());
    config.model.hidden_size = 32;
    config.model.intermediate_size = 48;
    config.model.num_layers = 4;
    config.model.head_dim = 8;
    config.data.held_out_fraction = 0;
    config.train.sequence_length = 16;
    config.train.max_steps = 1000;
    config.optimizer.schedule = LearningRateSchedule::constant;
    config.noise_scale.split_interval = 2;
    return layouts::with_changes(config, changes);
  }

  // Runs `body` with a trainer on every rank.
  static void train(const RunConfig& config, const std::function<void(Trainer&, World&)>& body) {
    layouts::train_on_every_rank(config, [&](Trainer& trainer, World& world, const Dataset&) { body(trainer, world); });
  }

  // Writes rank 0's snapshot to disk; other ranks have none.
  void write_checkpoint(const std::optional<Snapshot>& snapshot) const {
    if (!snapshot) return;
    CheckpointWriter writer(folder_.path() / "checkpoints", 1);
    writer.write(*snapshot);
    writer.finish();
  }
  Checkpoint read_checkpoint() const { return Checkpoint(latest_checkpoint(folder_.path() / "checkpoints").value()); }

  // Returns the records of `steps` steps that leave the weights bitwise unchanged.
  static std::vector<StepRecord> measure(RunConfig config, const Weights& weights, int64_t steps) {
    config.optimizer.lr = 1e-30;  // must be positive
    std::vector<StepRecord> records;
    train(config, [&](Trainer& trainer, World& world) {
      trainer.load(weights.views());
      const std::vector<StepRecord> mine = take_steps(trainer, world, steps);
      const std::optional<Snapshot> snapshot = take_snapshot(trainer);
      if (!snapshot) return;
      records = mine;
      for (const HostTensor& tensor : snapshot->weights) {
        EXPECT_TRUE(to_float(tensor.view()) == to_float(weights.views().at(tensor.name))) << tensor.name;
      }
    });
    return records;
  }

  // Expects the oracle's norms in every layout, and equal norms in layouts that split the batch alike. In fp32 a
  // gradient's elements are off by 1e-7 of their size, or more if sums cancel. In a norm most of these errors average
  // out, and errors that layouts share do not make them differ.
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
        SCOPED_TRACE(concat("layout ", i, ": ", to_string(record.strategy), ", micro-batch ", record.micro_batch,
                            ", step ", record.step));
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

inline const Change whole_batch = [](RunConfig& config) { config.train.micro_batch = samples_per_rank(config); };
inline const Change disabled = [](RunConfig& config) { config.noise_scale.enabled = false; };
inline const Change split_every_step = [](RunConfig& config) { config.noise_scale.split_interval = 1; };

}  // namespace copus::noise_tests
