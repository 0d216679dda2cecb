// Compares the offline noise scale with gradients from autograd and from the whole data set.
#include "copus/train/experiments/noise_reference.h"

#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "copus/base/numbers/philox.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/testing/reference_decoder.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/step/gradient_reduction.h"
#include "copus/train/trainer/trainer.h"

namespace copus {
namespace {

constexpr int64_t tokens_per_sequence = 16;

class NoiseReferenceTest : public ::testing::Test {
 protected:
  NoiseReferenceTest() {
    config_.model.vocab_size = 256;
    config_.model.hidden_size = 16;
    config_.model.intermediate_size = 24;
    config_.model.num_layers = 2;
    config_.model.num_heads = 2;
    config_.model.num_kv_heads = 1;
    config_.model.head_dim = 8;
    config_.model.initializer_range = 0.2;  // far from the symmetry of fresh weights
    config_.data.train = {{.path = (folder_.path() / "corpus.txt").string(), .weight = 1}};
    config_.data.held_out_fraction = 0;
    config_.train.sequence_length = tokens_per_sequence;
    config_.execution.precision = Precision::fp32;
  }

  // Writes random letters. A document ends after every `document` letters; 0: there is one document.
  void write_corpus(int64_t letters, int64_t document) {
    std::ofstream file(folder_.path() / "corpus.txt");
    for (int64_t i = 0; i < letters; ++i) {
      file << static_cast<char>('a' + philox(7, 0, static_cast<uint64_t>(i))[0] % 26);
      if (document > 0 && i % document == document - 1) file << '|';
    }
    if (document > 0) config_.data.document_separator = "|";
  }

  Dataset open_data() const {
    return {config_.data, config_.train.sequence_length, config_.model.vocab_size, config_.execution.seed};
  }

  TemporaryFolder folder_;
  RunConfig config_;
};

// Returns gradients of `scale` times the sum of token losses, by autograd through the plain reference model.
std::vector<at::Tensor> gradients_by_autograd(const ParameterStore& store, const Batch& batch, int64_t first,
                                              int64_t count, double scale) {
  const at::Tensor tokens =
      kernels::from_host(batch.tokens.data() + first * tokens_per_sequence, {count, tokens_per_sequence}, at::kCPU);
  const at::Tensor targets =
      kernels::from_host(batch.targets.data() + first * tokens_per_sequence, {count, tokens_per_sequence}, at::kCPU);
  const auto weights = reference::leaves(store);
  std::vector<at::Tensor> leaves;
  for (const auto& [name, leaf] : weights) leaves.push_back(leaf);
  return reference::gradients(reference::loss(reference::logits(store.model(), weights, tokens), targets) * scale,
                              leaves);
}

double squared_norm(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) sum += gradient.pow(2).sum().item<double>();
  return sum;
}

TEST_F(NoiseReferenceTest, SquaresTheGradientOfEverySampleAndOfTheirMean) {
  write_corpus(2000, 11);  // samples differ in their tokens with loss
  constexpr int64_t size = 5;
  for (const bool tied : {false, true}) {
    config_.model.tie_word_embeddings = tied;
    const Dataset dataset = open_data();
    ParameterStore store(config_.model, at::kDouble, at::kCPU);
    store.initialize(3);
    Decoder decoder(store, Recompute::none);
    NoiseReference reference(store, decoder, dataset);
    for (const uint64_t first : {0, 5, 0}) {  // batches must not affect each other
      const Batch batch = dataset.train_batch(first, size);
      ASSERT_LT(batch.loss_tokens, size * tokens_per_sequence);
      const double mean_loss = 1 / static_cast<double>(batch.loss_tokens);
      double small = 0;
      for (int64_t sample = 0; sample < size; ++sample) {
        small += squared_norm(gradients_by_autograd(store, batch, sample, 1, size * mean_loss)) / size;
      }
      const double large = squared_norm(gradients_by_autograd(store, batch, 0, size, mean_loss));

      const NormObservation observed = reference.observe(first, size);
      EXPECT_EQ(observed.small_batch, 1);
      EXPECT_EQ(observed.large_batch, size);
      EXPECT_NEAR(observed.small_squared_norm / small, 1, 1e-10) << tied;
      EXPECT_NEAR(observed.large_squared_norm / large, 1, 1e-10) << tied;
    }
  }
}

TEST_F(NoiseReferenceTest, TheLargeNormIsTheGradientNormOfTraining) {
  write_corpus(4000, 11);
  config_.train.global_batch = 8;
  config_.train.micro_batch = 4;
  config_.train.max_steps = 10;
  std::vector<double> norms;
  for (const bool keeps_documents_apart : {false, true}) {
    config_.data.mask_across_documents = keeps_documents_apart;
    const Dataset dataset = open_data();
    const std::unique_ptr<World> world = single_rank_world();
    Trainer trainer(config_, dataset, at::kCPU, *world);

    ParameterStore store(config_.model, at::kFloat, at::kCPU);
    store.initialize(config_.execution.seed);
    Decoder decoder(store, Recompute::none);
    const NormObservation observed = NoiseReference(store, decoder, dataset).observe(0, 8);
    norms.push_back(trainer.step().grad_norm);
    EXPECT_NEAR(std::sqrt(observed.large_squared_norm) / norms.back(), 1, 1e-5) << keeps_documents_apart;
  }
  EXPECT_GT(std::abs(norms[1] / norms[0] - 1), 1e-3) << "documents that stay apart make another gradient";
}

// For a data set of N samples with mean gradient G, without repeated samples, C_B expects |G|^2 + tr(Sigma)/B (1 - (B -
// 1)/(N - 1)). If N is far above phi this equals the value with repeated samples.
TEST_F(NoiseReferenceTest, TheIntervalHoldsTheNoiseScaleOfTheWholeDataSet) {
  write_corpus(4096 * tokens_per_sequence, 0);
  const Dataset dataset = open_data();
  const int64_t count = dataset.train_tokens() / tokens_per_sequence;
  ParameterStore store(config_.model, at::kDouble, at::kCPU);
  store.initialize(3);
  Decoder decoder(store, Recompute::none);

  std::vector<at::Tensor> mean;
  for (const Bucket& bucket : store.buckets()) mean.push_back(at::zeros_like(bucket.gradient));
  double mean_square = 0;
  const auto samples = static_cast<double>(count);
  const Batch all = dataset.train_batch(0, count);
  for (int64_t sample = 0; sample < count; ++sample) {
    store.zero_gradients();
    decoder.forward_backward(
        kernels::from_host(all.tokens.data() + sample * tokens_per_sequence, {1, tokens_per_sequence}, at::kCPU),
        kernels::from_host(all.targets.data() + sample * tokens_per_sequence, {1, tokens_per_sequence}, at::kCPU),
        1.0 / tokens_per_sequence);
    for (size_t b = 0; b < mean.size(); ++b) {
      const at::Tensor& gradient = store.buckets()[b].gradient;
      mean_square += gradient.pow(2).sum().item<double>() / samples;
      mean[b].add_(gradient, 1 / samples);
    }
  }
  const double squared_gradient = squared_norm(mean);
  const double trace = mean_square - squared_gradient;
  const double phi = trace / squared_gradient;
  ASSERT_LT(phi, samples / 100);

  NoiseReference reference(store, decoder, dataset);
  NoiseAverage average;
  for (uint64_t batch = 0; batch < 16; ++batch) {
    average = observe_alike(average, reference.observe(batch * 64, 64));
  }
  const NoiseScale measured = *noise_scale(average);
  ASSERT_TRUE(measured.value);
  EXPECT_LT(measured.low, phi);
  EXPECT_GT(*measured.high, phi);
  EXPECT_LT(*measured.high / measured.low, 2) << "or the interval holds anything";
  EXPECT_NEAR(measured.squared_gradient.value, squared_gradient, 4 * measured.squared_gradient.standard_error);
  EXPECT_NEAR(measured.trace.value, trace, 4 * measured.trace.standard_error);
}

}  // namespace
}  // namespace copus
