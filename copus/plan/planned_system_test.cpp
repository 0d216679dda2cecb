// The configurations that each program can run.
#include "copus/plan/planned_system.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "copus/base/error.h"
#include "copus/plan/plan_explain.h"
#include "copus/plan/plan_refusal.h"
#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t sequence_length = 1024;

std::string unable(
    PlannedSystem system, const Configuration& configuration,
    const std::function<void(ModelDescription&)>& change = [](ModelDescription&) {}) {
  ModelDescription model = small_question({64}).model;  // 20 layers, 16 heads
  change(model);
  EXPECT_EQ(infeasible_reason(model, configuration, sequence_length), std::nullopt);
  return unable_reason(system, model, configuration, sequence_length).value_or("able");
}

ParallelStrategy interleaved(ParallelStrategy strategy, int64_t virtual_stages) {
  strategy.virtual_stages = virtual_stages;
  strategy.schedule = PipelineSchedule::interleaved_1f1b;
  return strategy;
}

void share_heads(ModelDescription& model) { model.num_kv_heads = 2; }

TEST(PlannedSystem, CopusCanAllThatTheModelAllows) {
  EXPECT_EQ(unable(PlannedSystem::copus, {{.data_parallel = 8, .zero_stage = 2}, 64, 1}), "able");
}

TEST(PlannedSystem, MegatronHasEqualStagesAndNoZeroBeyondOne) {
  constexpr PlannedSystem megatron = PlannedSystem::megatron;
  const ParallelStrategy pipeline{.data_parallel = 2, .pipeline_parallel = 4, .zero_stage = 1};
  EXPECT_EQ(unable(megatron, {pipeline, 64, 1}), "able");
  EXPECT_EQ(unable(megatron, {interleaved(pipeline, 5), 64, 1}), "able");
  EXPECT_THAT(unable(megatron, {interleaved(pipeline, 2), 64, 1}), HasSubstr("8 stages divide none of 20 to 22"));
  EXPECT_EQ(unable(megatron, {{.pipeline_parallel = 7}, 64, 1}), "able") << "the loss counts as a layer";
  EXPECT_EQ(unable(megatron, {{.pipeline_parallel = 11}, 64, 1}), "able") << "the embedding too";
  EXPECT_EQ(unable(megatron, {{.tensor_parallel = 4}, 64, 1}, share_heads), "able");
  EXPECT_THAT(unable(megatron, {{.data_parallel = 8, .zero_stage = 3}, 64, 1}),
              HasSubstr("zero 3 (it does with 0, 1)"));
  EXPECT_THAT(unable(megatron, {{.pipeline_parallel = 4, .schedule = PipelineSchedule::zb_h1}, 64, 1}),
              HasSubstr("schedule zb-h1 (it does with 1f1b, interleaved)"));
  EXPECT_THAT(unable(megatron, {{.data_parallel = 8, .recompute = Recompute::attention}, 64, 1}),
              HasSubstr("recompute attention"));
  EXPECT_THAT(unable(megatron, {{.data_parallel = 8, .zero_stage = 1, .zero_replicas = 2}, 64, 1}),
              HasSubstr("copies"));
}

TEST(PlannedSystem, NanotronCutsHeadsWholeAndFillsItsPipeline) {
  constexpr PlannedSystem nanotron = PlannedSystem::nanotron;
  EXPECT_EQ(unable(nanotron, {{.tensor_parallel = 2, .pipeline_parallel = 4}, 64, 1}, share_heads), "able");
  EXPECT_THAT(unable(nanotron, {{.tensor_parallel = 4}, 64, 1}, share_heads), HasSubstr("t=4 does not divide 2"));
  EXPECT_EQ(unable(nanotron, {{.pipeline_parallel = 4}, 3, 1}), "able");
  EXPECT_THAT(unable(nanotron, {{.pipeline_parallel = 4}, 2, 1}), HasSubstr("needs 3 micro-batches"));
  EXPECT_EQ(unable(nanotron, {{.pipeline_parallel = 4, .schedule = PipelineSchedule::gpipe}, 2, 1}), "able");
  EXPECT_THAT(unable(nanotron, {interleaved({.pipeline_parallel = 4}, 2), 64, 1}), HasSubstr("schedule interleaved"));
  // A head that costs as much as many layers gets the last stages for itself.
  EXPECT_THAT(
      unable(nanotron, {{.pipeline_parallel = 8}, 64, 1}, [](ModelDescription& model) { model.vocab_size = 1000000; }),
      HasSubstr("without a layer"));
}

TEST(PlannedSystem, TorchtitanSharesByFsdp) {
  constexpr PlannedSystem torchtitan = PlannedSystem::torchtitan;
  EXPECT_EQ(unable(torchtitan, {{.data_parallel = 8, .zero_stage = 3}, 64, 1}), "able");
  EXPECT_EQ(unable(torchtitan, {{.data_parallel = 2, .pipeline_parallel = 4, .zero_stage = 1}, 64, 1}), "able");
  EXPECT_THAT(unable(torchtitan, {{.data_parallel = 8, .zero_stage = 1}, 64, 1}), HasSubstr("ZeRO-3"));
  EXPECT_THAT(unable(torchtitan, {{.data_parallel = 2, .pipeline_parallel = 4, .zero_stage = 3}, 64, 1}),
              HasSubstr("as ZeRO-1"));
  EXPECT_THAT(unable(torchtitan, {{.tensor_parallel = 8, .sequence_parallel = true}, 64, 1}),
              HasSubstr("two ranks that share"));
  EXPECT_THAT(unable(torchtitan, {{.data_parallel = 2, .tensor_parallel = 4, .zero_stage = 3}, 64, 1}),
              HasSubstr("sp 0 (it does with 1)"));
  const ParallelStrategy tensor{.data_parallel = 2, .tensor_parallel = 4, .sequence_parallel = true, .zero_stage = 3};
  EXPECT_THAT(unable(torchtitan, {tensor, 64, 1}, share_heads), HasSubstr("t=4 does not divide 2"));
  const ParallelStrategy pipeline{.data_parallel = 2, .pipeline_parallel = 4, .zero_stage = 1};
  EXPECT_THAT(unable(torchtitan, {pipeline, 6, 1}), HasSubstr("needs 4 micro-batches"));
  EXPECT_EQ(unable(torchtitan, {interleaved(pipeline, 2), 64, 1}), "able");
  EXPECT_THAT(unable(torchtitan, {interleaved(pipeline, 5), 64, 1}), HasSubstr("virtual stages 5 (it does with 2)"));
}

// PyTorch treats six micro-batches in four stages as one round; Megatron-LM requires multiples of four.
TEST(PlannedSystem, TorchtitanInterleavesInEqualRounds) {
  PlanQuestion question = small_question({12});  // d=2,p=4,b=1: six micro-batches
  const auto interleaves = [&](PlannedSystem system) {
    question.program = system;
    question.system = describe(system);
    question.space = question.whole_space();
    question.space.schedules = {PipelineSchedule::interleaved_1f1b};
    question.space.virtual_stages = {system == PlannedSystem::megatron ? 5 : 2};
    const Plan plan = make_plan(question);
    const auto& layouts = plan.batches.front().layouts;
    return std::any_of(layouts.begin(), layouts.end(), [](const PlannedConfiguration& layout) {
      return layout.configuration.strategy.pipeline_parallel == 4 && layout.configuration.num_microbatches() == 6;
    });
  };
  EXPECT_TRUE(interleaves(PlannedSystem::torchtitan));
  EXPECT_TRUE(interleaves(PlannedSystem::torchtitan_0_3));
  EXPECT_FALSE(interleaves(PlannedSystem::megatron));
}

TEST(PlannedSystem, TorchtitansLossTakesSequencesInEightPieces) {
  const Configuration configuration{{.data_parallel = 8, .zero_stage = 3}, 64, 1};
  const ModelDescription model = small_question({64}).model;
  EXPECT_THAT(unable_reason(PlannedSystem::torchtitan_0_3, model, configuration, 1020).value_or("able"),
              HasSubstr("in 8 pieces"));
  EXPECT_EQ(unable_reason(PlannedSystem::torchtitan_0_3, model, configuration, 1024), std::nullopt);
  EXPECT_EQ(unable_reason(PlannedSystem::torchtitan, model, configuration, 1020), std::nullopt);
}

TEST(PlannedSystem, ModelsThatAProgramDoesNotHaveAreNamed) {
  const auto lacks = [](PlannedSystem system, const std::function<void(ModelDescription&)>& change) {
    ModelDescription model = small_question({64}).model;
    change(model);
    return lacking_model(system, model, 1024).value_or("has");
  };
  const auto tied = [](ModelDescription& model) { model.tie_word_embeddings = true; };
  const auto qwen = [](ModelDescription& model) {
    model.architecture = Architecture::qwen2;
    model.qkv_bias = true;
  };
  const auto mistral = [](ModelDescription& model) { model.architecture = Architecture::mistral; };
  const auto wide = [](ModelDescription& model) { model.head_dim = 256; };
  const auto within = [](ModelDescription& model) { model.attention_window = 512; };
  const auto normed = [](ModelDescription& model) { model.qk_norm = QkNorm::head; };
  const auto normed_outputs = [](ModelDescription& model) { model.block_norm = BlockNorm::output; };
  const auto layer_norm = [](ModelDescription& model) { model.norm = NormKind::layer; };
  const auto learned = [](ModelDescription& model) { model.learned_positions = true; };
  const auto gelu = [](ModelDescription& model) { model.activation = ActivationFunction::gelu_tanh; };
  const auto ungated = [](ModelDescription& model) { model.gated_feed_forward = false; };
  const auto biased_output = [](ModelDescription& model) { model.attention_output_bias = true; };
  const auto biased_feed_forward = [](ModelDescription& model) { model.feed_forward_bias = true; };
  const auto every_fourth = [](ModelDescription& model) { model.no_rope_interval = 4; };
  const auto scaled = [](ModelDescription& model) { model.rope_scaling = RopeScaling{.low_frequency_factor = 2}; };
  const auto scaled_logits = [](ModelDescription& model) { model.logits_scaling = 8; };
  const auto partial = [](ModelDescription& model) { model.architecture = Architecture::phi3; };
  const auto capped = [](ModelDescription& model) { model.logits_softcap = 30; };
  const auto capped_scores = [](ModelDescription& model) { model.attention_softcap = 50; };
  const auto parallel = [](ModelDescription& model) { model.parallel_residual = true; };
  const auto yarn = [](ModelDescription& model) { model.rope_scaling = RopeScaling{.type = RopeType::yarn}; };
  for (const auto& [system, name] : {std::pair{PlannedSystem::torchtitan, "torchtitan 0.2 has no "},
                                     {PlannedSystem::torchtitan_0_3, "torchtitan 0.3 has no "}}) {
    EXPECT_THAT(lacks(system, qwen), AllOf(HasSubstr(name), HasSubstr("Qwen2")));
    EXPECT_THAT(lacks(system, mistral), AllOf(HasSubstr(name), HasSubstr("Mistral")));
    EXPECT_THAT(lacks(system, wide), HasSubstr("hidden_size"));
    EXPECT_THAT(lacks(system, normed), HasSubstr("Qwen3"));
    EXPECT_THAT(lacks(system, every_fourth), HasSubstr("SmolLM3"));
    EXPECT_EQ(lacks(system, [](ModelDescription&) {}), "has");
  }
  EXPECT_THAT(lacks(PlannedSystem::torchtitan, tied), HasSubstr("tied embeddings"));
  EXPECT_EQ(lacks(PlannedSystem::torchtitan_0_3, tied), "has");
  EXPECT_THAT(lacks(PlannedSystem::nanotron, wide), HasSubstr("hidden_size"));
  for (const PlannedSystem system : {PlannedSystem::megatron, PlannedSystem::copus}) {
    EXPECT_THAT(lacks(system, within), HasSubstr("at most 512 tokens (sliding_window)"));
  }
  EXPECT_THAT(lacks(PlannedSystem::nanotron, normed), HasSubstr("norms of query and key heads"));
  EXPECT_THAT(lacks(PlannedSystem::nanotron, every_fourth), HasSubstr("rotary embeddings"));
  EXPECT_THAT(lacks(PlannedSystem::megatron, scaled), HasSubstr("rope_scaling"));
  const auto fractional_base = [](ModelDescription& model) { model.rope_theta = 10000.5; };
  EXPECT_THAT(lacks(PlannedSystem::megatron, fractional_base), HasSubstr("--rotary-base takes a whole number"));
  EXPECT_EQ(lacks(PlannedSystem::nanotron, fractional_base), "has");
  for (const PlannedSystem system : all_values<PlannedSystem>()) {
    EXPECT_THAT(lacks(system, normed_outputs),
                HasSubstr(system == PlannedSystem::copus ? "has" : "(OLMo 2 and 3, Gemma)"));
    const bool has = system == PlannedSystem::copus;
    EXPECT_THAT(lacks(system, scaled_logits), HasSubstr(has ? "has" : "Granite"));
    EXPECT_THAT(lacks(system, capped_scores), HasSubstr("attn_logit_softcapping"));
    EXPECT_THAT(lacks(system, capped), HasSubstr(has ? "has" : "Gemma 2"));
    EXPECT_THAT(lacks(system, parallel), HasSubstr(has ? "has" : "GPT-NeoX"));
    EXPECT_THAT(lacks(system, partial), HasSubstr(has ? "has" : "Phi-3"));
    EXPECT_THAT(lacks(system, yarn), HasSubstr(has ? "has" : "rope_scaling other than"));
    for (const auto& change : {std::function<void(ModelDescription&)>(layer_norm), {learned}}) {
      EXPECT_THAT(lacks(system, change), HasSubstr(has ? "has" : "GPT-2"));
    }
    for (const auto& change : {std::function<void(ModelDescription&)>(gelu), {ungated}}) {
      EXPECT_THAT(lacks(system, change), HasSubstr(has ? "has" : "SwiGLU"));
    }
    EXPECT_THAT(lacks(system, biased_output), HasSubstr(system == PlannedSystem::copus ? "has" : "attention_bias"));
    EXPECT_THAT(lacks(system, biased_feed_forward), HasSubstr(system == PlannedSystem::copus ? "has" : "mlp_bias"));
  }
  for (const auto& change :
       {std::function<void(ModelDescription&)>(tied), {qwen}, {mistral}, {wide}, {normed}, {every_fourth}}) {
    EXPECT_EQ(lacks(PlannedSystem::megatron, change), "has");
  }
  PlanQuestion question = small_question({64});
  question.program = PlannedSystem::torchtitan;
  mistral(question.model);
  EXPECT_THROW(make_plan(question), UserError);
}

// Another program can run every configuration that a plan shows for it. Copus has a larger choice.
TEST(PlannedSystem, APlanHoldsWhatTheProgramCanRun) {
  const PlanQuestion ours = small_question({64});
  const int64_t all = make_plan(ours).configurations + make_plan(ours).too_large;
  for (const PlannedSystem system : all_values<PlannedSystem>()) {
    if (system == PlannedSystem::copus) continue;
    PlanQuestion question = ours;
    question.program = system;
    question.system = describe(system);
    question.space = question.whole_space();
    const Plan plan = make_plan(question);
    EXPECT_LT(plan.configurations + plan.too_large, all) << full_name(system);
    for (const PlannedConfiguration& layout : plan.batches.front().layouts) {
      EXPECT_EQ(unable_reason(system, question.model, layout.configuration, question.sequence_length), std::nullopt);
      EXPECT_EQ(
          explain(question, plan.batches.front(), parse_configuration_change(to_string(layout.configuration))).verdict,
          Explanation::Verdict::fits);
    }
  }
}

TEST(PlannedSystem, ExplainSaysWhatTheProgramCannot) {
  PlanQuestion question = small_question({64});
  question.program = PlannedSystem::megatron;
  question.system = describe(question.program);
  question.space = question.whole_space();
  const Plan plan = make_plan(question);
  const Explanation zero = explain(question, plan.batches.front(), parse_configuration_change("d=8,zero=3"));
  EXPECT_EQ(zero.verdict, Explanation::Verdict::impossible);
  EXPECT_THAT(zero.text, AllOf(HasSubstr("Megatron-LM"), HasSubstr("zero 3")));
  const Explanation stages = explain(question, plan.batches.front(), parse_configuration_change("p=8"));
  EXPECT_EQ(stages.verdict, Explanation::Verdict::impossible);
  EXPECT_THAT(stages.text, HasSubstr("8 stages divide none of 20 to 22 layers"));
  question.program = PlannedSystem::torchtitan;
  question.system = describe(question.program);
  question.space = question.whole_space();
  const Explanation alone = explain(question, plan.batches.front(), parse_configuration_change("t=4,p=2"));
  EXPECT_EQ(alone.verdict, Explanation::Verdict::impossible);
  EXPECT_THAT(alone.text, HasSubstr("two ranks that share"));
}

TEST(PlannedSystem, ARefusalSaysWhatTheProgramAsks) {
  PlanQuestion question = small_question({1});
  question.program = PlannedSystem::torchtitan;
  question.system = describe(question.program);
  question.space = question.whole_space();
  EXPECT_THAT(why_nothing_is_possible(question),
              AllOf(HasSubstr("no layout of 8 GPUs"), HasSubstr("torchtitan needs d of at least 2"),
                    HasSubstr("take a global batch of 2")));
}

}  // namespace
}  // namespace copus
