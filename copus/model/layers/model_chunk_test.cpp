// Tests that splitting the layers into chunks changes no bit of losses and gradients.
#include "copus/model/layers/model_chunk.h"

#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "copus/model/layers/decoder.h"
#include "copus/model/testing/stages_in_turn.h"
#include "copus/model/testing/test_device.h"

namespace copus {
namespace {

ModelDescription four_layers(bool tied) {
  ModelDescription model;
  model.architecture = Architecture::qwen2;
  model.vocab_size = 37;
  model.hidden_size = 24;
  model.intermediate_size = 40;
  model.num_layers = 4;
  model.num_heads = 6;
  model.num_kv_heads = 2;
  model.head_dim = 6;
  model.qkv_bias = true;
  model.qk_norm = tied ? QkNorm::head : QkNorm::none;
  model.learned_positions = tied;
  model.max_position_embeddings = 64;
  model.no_rope_interval = 3;
  model.attention_window = tied ? 0 : 5;
  model.tie_word_embeddings = tied;
  return model;
}

std::vector<MicroBatch> two_micro_batches(const ModelDescription& model) {
  std::vector<MicroBatch> all;
  for (int i = 0; i < 2; ++i) {
    all.push_back({at::randint(model.vocab_size, {2, 12}, at::kLong).to(test_device()),
                   at::randint(model.vocab_size, {2, 37}, at::kLong).to(test_device()), 0.37});
    all.back().targets[i][11] = ignored_target;
  }
  return all;
}

// Lists all ways to split four layers into 1, 2 and 4 stages on 1, 2 and 4 pipeline ranks.
const std::vector<ParallelStrategy> cuts = {{.pipeline_parallel = 1},
                                            {.pipeline_parallel = 2},
                                            {.pipeline_parallel = 4},
                                            {.pipeline_parallel = 1, .virtual_stages = 2},
                                            {.pipeline_parallel = 2, .virtual_stages = 2},
                                            {.pipeline_parallel = 1, .virtual_stages = 4}};

TEST(ModelChunk, AnyCutIsTheWholeModelToTheBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool tied : {false, true}) {
      at::manual_seed(41);
      ParameterStore whole(four_layers(tied), dtype, test_device());
      randomize(whole);
      const std::vector<MicroBatch> micro_batches = two_micro_batches(whole.model());
      Decoder decoder(whole, Recompute::none);
      std::vector<double> losses;
      for (const MicroBatch& one : micro_batches) {
        losses.push_back(decoder.forward_backward(one.tokens, one.targets, one.loss_scale).item<double>());
      }
      for (ParallelStrategy strategy : cuts) {
        for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::full}) {
          for (const auto mode : {WeightGradients::Mode::immediate, WeightGradients::Mode::deferred}) {
            strategy.recompute = recompute;
            SCOPED_TRACE(testing::Message() << to_string(strategy) << ", " << strategy.virtual_stages << " chunks, "
                                            << to_string(recompute) << ", tied " << tied);
            StagesInTurn stages(whole, strategy, TensorParallel());
            for (size_t i = 0; i < micro_batches.size(); ++i) {
              EXPECT_EQ(stages.evaluate(micro_batches[i]), losses[i]);
              EXPECT_EQ(stages.forward_backward(micro_batches[i], mode), losses[i]);
            }
            size_t compared = 0;
            for (const auto& store : stages.stores()) {
              for (const Parameter& parameter : store->parameters()) {
                EXPECT_TRUE(parameter.gradient.equal(same_parameter(whole, parameter).gradient))
                    << parameter.info.name << (parameter.tied_copy ? " (tied)" : "");
                ++compared;
              }
            }
            EXPECT_EQ(compared, whole.parameters().size());
          }
        }
      }
    }
  }
}

// Records a chunk's reports about buckets, named by their first parameter.
struct Calls {
  std::vector<std::string> weights, gradients_begun, gradients_ended;
  std::vector<int64_t> weight_buckets;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;  // of ended buckets, with copies of their values then
};

class CallRecorder final : public BucketUse {
 public:
  CallRecorder(const ParameterStore& store, Calls& calls) : store_(store), calls_(calls) {}

  void weights_begin(int64_t bucket) override {
    calls_.weights.push_back(name(bucket));
    calls_.weight_buckets.push_back(bucket);
  }
  void weights_end(int64_t) override {}
  void gradient_begins(int64_t bucket) override { calls_.gradients_begun.push_back(name(bucket)); }
  void gradient_ends(int64_t bucket) override {
    calls_.gradients_ended.push_back(name(bucket));
    const at::Tensor& gradient = store_.buckets()[static_cast<size_t>(bucket)].gradient;
    calls_.gradients.emplace_back(gradient, gradient.clone());
  }

 private:
  std::string name(int64_t index) const {
    const Bucket& bucket = store_.buckets()[static_cast<size_t>(index)];
    const Parameter& first = store_.parameters()[static_cast<size_t>(bucket.parameters.front())];
    return first.tied_copy ? "tied" : first.info.name;
  }

  const ParameterStore& store_;
  Calls& calls_;
};

TEST(ModelChunk, BucketsAreDoneFromTheHeadToTheEmbedding) {
  for (const ParallelStrategy& strategy : cuts) {
    at::manual_seed(42);
    ParameterStore whole(four_layers(/*tied=*/true), at::kFloat, test_device());
    randomize(whole);
    const MicroBatch micro_batch = two_micro_batches(whole.model()).front();
    StagesInTurn stages(whole, strategy, TensorParallel());
    std::vector<ChunkActivations> kept(stages.stages().size());
    at::Tensor stream;
    for (size_t i = 0; i < kept.size(); ++i) stream = stages.stages()[i].forward(micro_batch, stream, kept[i]);

    Calls forward_calls, calls;
    for (size_t i = 0; i < kept.size(); ++i) {
      const ParameterStore& store = *stages.stores()[i % stages.stores().size()];
      ChunkActivations unused;
      CallRecorder recorder(store, forward_calls);
      stages.stages()[i].forward(micro_batch, i == 0 ? at::Tensor() : stages.stages()[i].empty_stream(micro_batch),
                                 unused, &recorder);
    }
    at::Tensor gradient;
    WeightGradients weight_gradients(WeightGradients::Mode::immediate);
    for (size_t i = kept.size(); i-- > 0;) {
      const ParameterStore& store = *stages.stores()[i % stages.stores().size()];
      CallRecorder recorder(store, calls);
      gradient = stages.stages()[i].backward(micro_batch, gradient, std::move(kept[i]), weight_gradients,
                                             at::zeros({}, micro_batch.tokens.options().dtype(at::kDouble)), &recorder);
    }
    const auto layer = [](int i) { return "model.layers." + std::to_string(i) + ".self_attn.q_proj.weight"; };
    const std::vector<std::string> order{"model.norm.weight",        "tied", layer(3), layer(2), layer(1), layer(0),
                                         "model.embed_tokens.weight"};
    EXPECT_EQ(calls.gradients_begun, order);
    EXPECT_EQ(calls.gradients_ended, order);
    for (const auto& [later, then] : calls.gradients) {
      EXPECT_TRUE(later.equal(then) && then.abs().max().item<float>() > 0);
    }
    // A head that reads the embedding's weights reports the embedding's bucket.
    std::vector<std::string> weights(order.begin(), order.end() - 1);
    if (kept.size() == 1 || stages.stores().size() == 1) weights[1] = "model.embed_tokens.weight";
    EXPECT_EQ(calls.weights, weights);
    EXPECT_EQ(forward_calls.weights,
              (std::vector<std::string>{"model.embed_tokens.weight", layer(0), layer(1), layer(2), layer(3)}));
  }
}

TEST(ModelChunk, SaysBeforehandWhichWeightsItsPassesUse) {
  at::manual_seed(44);
  ParameterStore store(four_layers(/*tied=*/true), at::kFloat, test_device());
  randomize(store);
  const MicroBatch micro_batch = two_micro_batches(store.model()).front();
  ModelChunk chunk(store, 0, Recompute::full, TensorParallel());
  const at::Tensor loss = at::zeros({}, micro_batch.tokens.options().dtype(at::kDouble));
  ChunkActivations kept;
  Calls forward, backward, evaluation;
  CallRecorder in_forward(store, forward), in_backward(store, backward), in_evaluation(store, evaluation);
  chunk.forward(micro_batch, {}, kept, &in_forward);
  WeightGradients weight_gradients(WeightGradients::Mode::immediate);
  chunk.backward(micro_batch, {}, std::move(kept), weight_gradients, loss, &in_backward);
  chunk.evaluate(micro_batch, {}, loss, &in_evaluation);
  EXPECT_EQ(forward.weight_buckets, chunk.weights_of_forward());
  EXPECT_EQ(backward.weight_buckets, chunk.weights_of_backward());
  EXPECT_EQ(evaluation.weight_buckets, chunk.weights_of_evaluation());
}

TEST(ModelChunk, AllDeferredGradientsOfLayersAreAddedBucketByBucket) {
  at::manual_seed(45);
  const MicroBatch micro_batch = [] {
    ParameterStore store(four_layers(/*tied=*/true), at::kFloat, test_device());
    return two_micro_batches(store.model()).front();
  }();
  std::vector<std::vector<at::Tensor>> gradients;
  for (const auto mode : {WeightGradients::Mode::immediate, WeightGradients::Mode::all_deferred}) {
    at::manual_seed(46);
    ParameterStore store(four_layers(/*tied=*/true), at::kFloat, test_device());
    randomize(store);
    ModelChunk chunk(store, 0, Recompute::none, TensorParallel());
    ChunkActivations kept;
    chunk.forward(micro_batch, {}, kept);
    WeightGradients weight_gradients(mode);
    Calls in_backward, in_run;
    CallRecorder recorder(store, in_backward);
    chunk.backward(micro_batch, {}, std::move(kept), weight_gradients,
                   at::zeros({}, micro_batch.tokens.options().dtype(at::kDouble)), &recorder);
    if (mode == WeightGradients::Mode::all_deferred) {
      for (const Parameter& parameter : store.parameters()) {
        if (parameter.info.layer < 0) continue;
        EXPECT_EQ(parameter.gradient.abs().max().item<float>(), 0) << parameter.info.name;
      }
      CallRecorder run_recorder(store, in_run);
      weight_gradients.run(&run_recorder);
      EXPECT_EQ(in_run.gradients_ended.size(), 4);
      EXPECT_EQ(in_backward.gradients_ended.size(), 3);
      for (const auto& [later, then] : in_run.gradients) EXPECT_TRUE(later.equal(then));
    }
    std::vector<at::Tensor>& of_mode = gradients.emplace_back();
    for (const Bucket& bucket : store.buckets()) of_mode.push_back(bucket.gradient);
  }
  for (size_t i = 0; i < gradients.front().size(); ++i) EXPECT_TRUE(gradients[0][i].equal(gradients[1][i]));
}

TEST(ModelChunk, DeferredWeightGradientsAreLinearLayersAlone) {
  at::manual_seed(43);
  ParameterStore store(four_layers(/*tied=*/true), at::kFloat, test_device());
  randomize(store);
  const MicroBatch micro_batch = two_micro_batches(store.model()).front();
  ModelChunk chunk(store, 0, Recompute::none, TensorParallel());
  ChunkActivations kept;
  chunk.forward(micro_batch, {}, kept);
  WeightGradients weight_gradients(WeightGradients::Mode::deferred);
  chunk.backward(micro_batch, {}, std::move(kept), weight_gradients,
                 at::zeros({}, micro_batch.tokens.options().dtype(at::kDouble)));
  for (const Parameter& parameter : store.parameters()) {
    // Positions stored beside a tied head have no gradient anyway.
    const bool is_unused = parameter.tied_copy && parameter.info.name != token_embedding_name;
    const bool deferred = is_unused || (parameter.info.layer >= 0 && parameter.info.kind != ParameterKind::norm);
    EXPECT_EQ(parameter.gradient.abs().max().item<float>() == 0, deferred) << parameter.info.name;
  }
}

}  // namespace
}  // namespace copus
