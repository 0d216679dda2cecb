// How layouts are written for each program.
#include "copus/plan/paste_text.h"

#include <gmock/gmock.h>

#include "copus/base/error.h"
#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

PlanQuestion question_for(PlannedSystem program) {
  PlanQuestion question = small_question({64});
  question.program = program;
  question.system = describe(program);
  return question;
}

std::vector<std::string> texts(PlannedSystem program, const Configuration& configuration) {
  std::vector<std::string> texts;
  for (const PasteText& paste : paste_texts(question_for(program), configuration)) texts.push_back(paste.text);
  return texts;
}

// The model's own flags, which are the same in all layouts.
constexpr const char* small_models_flags =
    "--num-layers 20 --hidden-size 2048 --ffn-hidden-size 5632 \\\n--num-attention-heads 16 --kv-channels 128 \\\n"
    "--swiglu --normalization RMSNorm --norm-epsilon 1e-06 \\\n"
    "--disable-bias-linear --untie-embeddings-and-output-weights \\\n"
    "--position-embedding-type rope --rotary-base 10000 \\\n--attention-dropout 0 --hidden-dropout 0 \\\n"
    "--max-position-embeddings 2048 --init-method-std 0.02 \\\n";
constexpr const char* small_models_data =
    "--tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --train-iters 100 --lr 1e-4\n";

TEST(PasteText, MegatronTakesAWholeCommand) {
  EXPECT_THAT(texts(PlannedSystem::megatron, {{.data_parallel = 4}, 64, 4}),
              ElementsAre(concat("torchrun --nproc-per-node 4 pretrain_gpt.py \\\n", small_models_flags,
                                 "--tensor-model-parallel-size 1 \\\n--pipeline-model-parallel-size 1 \\\n"
                                 "--overlap-grad-reduce \\\n--micro-batch-size 4 \\\n--global-batch-size 64 \\\n"
                                 "--seq-length 1024 \\\n--bf16 \\\n",
                                 small_models_data)));
  // 20 layers in 2 x 5 stages, on two nodes of 4.
  EXPECT_THAT(
      texts(PlannedSystem::megatron, {{.data_parallel = 2,
                                       .tensor_parallel = 2,
                                       .pipeline_parallel = 2,
                                       .virtual_stages = 5,
                                       .schedule = PipelineSchedule::interleaved_1f1b,
                                       .sequence_parallel = true,
                                       .zero_stage = 1,
                                       .recompute = Recompute::full},
                                      64,
                                      1}),
      ElementsAre(concat("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend "
                         "c10d --rdzv-endpoint \"$HEAD_NODE:29500\" pretrain_gpt.py \\\n",
                         small_models_flags,
                         "--tensor-model-parallel-size 2 \\\n--pipeline-model-parallel-size 2 \\\n"
                         "--num-layers-per-virtual-pipeline-stage 2 \\\n--sequence-parallel \\\n"
                         "--use-distributed-optimizer \\\n--overlap-grad-reduce \\\n"
                         "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\\n"
                         "--micro-batch-size 1 \\\n--global-batch-size 64 \\\n--seq-length 1024 \\\n--bf16 \\\n",
                         small_models_data)));
}

TEST(PasteText, MegatronIsToldWhatTheModelIs) {
  PlanQuestion question = question_for(PlannedSystem::megatron);
  question.model.architecture = Architecture::qwen2;
  question.model.num_kv_heads = 2;
  question.model.qkv_bias = question.model.tie_word_embeddings = true;
  question.model.rope_theta = 1000000;
  question.model.rope_scaling = RopeScaling{.factor = 32};
  const std::string text = paste_texts(question, {{.pipeline_parallel = 2}, 64, 1}).front().text;
  EXPECT_THAT(text, AllOf(HasSubstr("--group-query-attention --num-query-groups 2 "),
                          HasSubstr("--disable-bias-linear --add-qkv-bias \\\n"),
                          HasSubstr("--rotary-base 1000000 --use-rope-scaling --rope-scaling-factor 32 ")));
  EXPECT_THAT(text, Not(HasSubstr("untie")));
}

TEST(PasteText, MegatronIsToldOfNormedHeadsAndOfLayersWithoutRope) {
  PlanQuestion question = question_for(PlannedSystem::megatron);
  question.model.qk_norm = QkNorm::head;
  question.model.no_rope_interval = 4;
  const std::string text = paste_texts(question, {{.pipeline_parallel = 2}, 64, 1}).front().text;
  EXPECT_THAT(text, AllOf(HasSubstr(" --qk-layernorm \\\n"), HasSubstr("--rotary-base 10000 --no-rope-freq 4 \\\n")));
  question.model.no_rope_interval = 3;
  EXPECT_THAT(paste_texts(question, {{.pipeline_parallel = 2}, 64, 1}).front().text,
              HasSubstr("--no-rope-freq \"([0]*2+[1])*6+[0]*2\" "));
}

TEST(PasteText, NumbersHaveFormsThatTheProgramsRead) {
  const auto text = [](PlannedSystem program, double rope_theta, double initializer_range) {
    PlanQuestion question = question_for(program);
    question.model.rope_theta = rope_theta;
    question.model.initializer_range = initializer_range;
    return paste_texts(question, {{.data_parallel = 8}, 64, 1}).front().text;
  };
  EXPECT_THAT(text(PlannedSystem::megatron, 45'913'277'440.0, 0.02), HasSubstr("--rotary-base 45913277440 "));
  EXPECT_THAT(text(PlannedSystem::nanotron, 1e10, 1e-5),
              AllOf(HasSubstr("rope_theta: 1.0e+10\n"), HasSubstr("std: 1.0e-05\n")));
  EXPECT_THAT(text(PlannedSystem::nanotron, 10000.25, 2.5e-5),
              AllOf(HasSubstr("rope_theta: 10000.25\n"), HasSubstr("std: 2.5e-05\n")));
}

// Together with embedding and loss, the 20 layers fill 11 stages of 2. With the loss only, they fill 7 stages of 3.
TEST(PasteText, MegatronCountsTheEndsThatMakeItsStagesEven) {
  const auto text = [](const ParallelStrategy& strategy) {
    return texts(PlannedSystem::megatron, {strategy, 77, 1}).front();
  };
  const std::string both = text({.pipeline_parallel = 11});
  EXPECT_THAT(both, AllOf(HasSubstr("--account-for-embedding-in-pipeline-split"),
                          HasSubstr("--account-for-loss-in-pipeline-split")));
  const std::string loss = text({.pipeline_parallel = 7});
  EXPECT_THAT(loss, AllOf(Not(HasSubstr("account-for-embedding")), HasSubstr("--account-for-loss-in-pipeline-split")));
  EXPECT_THAT(text({.pipeline_parallel = 5}), Not(HasSubstr("account-for")));
  EXPECT_THAT(text({.pipeline_parallel = 11, .virtual_stages = 2, .schedule = PipelineSchedule::interleaved_1f1b}),
              HasSubstr("--num-layers-per-virtual-pipeline-stage 1 "));
}

TEST(PasteText, NanotronTakesYamlAndAModel) {
  EXPECT_THAT(
      texts(PlannedSystem::nanotron, {{.data_parallel = 2,
                                       .tensor_parallel = 2,
                                       .pipeline_parallel = 2,
                                       .schedule = PipelineSchedule::gpipe,
                                       .sequence_parallel = true,
                                       .zero_stage = 1,
                                       .recompute = Recompute::full},
                                      64,
                                      4}),
      ElementsAre(
          "general:\n  project: planned\ntokenizer:\n  tokenizer_name_or_path: null\n"
          "data_stages:\n- name: stage\n  start_training_step: 1\n  data:\n    dataset: null\n    seed: 42\n"
          "    num_loading_workers: 1\ncheckpoints:\n  checkpoints_path: checkpoints\n"
          "  checkpoint_interval: 1000\nmodel:\n  dtype: bfloat16\n  make_vocab_size_divisible_by: 1\n  model_config:\n"
          "    is_llama_config: true\n    vocab_size: 32000\n    hidden_size: 2048\n"
          "    intermediate_size: 5632\n    num_hidden_layers: 20\n    num_attention_heads: 16\n"
          "    num_key_value_heads: 16\n    attention_bias: false\n    max_position_embeddings: 2048\n"
          "    rms_norm_eps: 1.0e-06\n    rope_theta: 10000.0\n    rope_scaling: null\n"
          "    tie_word_embeddings: false\n    hidden_act: silu\n  init_method:\n    std: 0.02\n"
          "parallelism:\n  dp: 2\n  tp: 2\n  pp: 2\n  pp_engine: afab\n  tp_mode: REDUCE_SCATTER\n"
          "  tp_linear_async_communication: true\n  recompute_layer: true\n"
          "optimizer:\n  zero_stage: 1\n  accumulate_grad_in_fp32: true\n  weight_decay: 0.1\n"
          "  clip_grad: 1.0\n  optimizer_factory:\n    name: adamW\n    adam_beta1: 0.9\n"
          "    adam_beta2: 0.95\n    adam_eps: 1.0e-08\n    torch_adam_is_fused: true\n"
          "  learning_rate_scheduler:\n    learning_rate: 0.0001\n    lr_warmup_steps: 2\n"
          "    lr_warmup_style: linear\n    lr_decay_style: cosine\n    lr_decay_steps: 98\n"
          "    min_decay_lr: 1.0e-05\n"
          "tokens:\n  train_steps: 100\n  val_check_interval: -1\n  micro_batch_size: 4\n  "
          "batch_accumulation_per_replica: 8\n"
          "  sequence_length: 1024\n",
          "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d "
          "--rdzv-endpoint \"$HEAD_NODE:29500\" run_train.py --config-file RUN.yaml\n"));
  EXPECT_THAT(texts(PlannedSystem::nanotron, {{.tensor_parallel = 4, .pipeline_parallel = 2}, 64, 1}).front(),
              AllOf(HasSubstr("pp_engine: 1f1b\n  tp_mode: ALL_REDUCE\n"),
                    HasSubstr("tp_linear_async_communication: false\n  recompute_layer: false"),
                    HasSubstr("batch_accumulation_per_replica: 64\n")));
}

TEST(PasteText, TorchtitanTakesTomlOrPython) {
  const Configuration no_pipeline = {
      {.data_parallel = 4, .tensor_parallel = 2, .sequence_parallel = true, .zero_stage = 3, .zero_replicas = 2},
      64,
      4};
  EXPECT_THAT(
      texts(PlannedSystem::torchtitan, no_pipeline),
      ElementsAre(AllOf(HasSubstr("[model]\nname = \"llama3\"\nflavor = \"planned\"\n"),
                        HasSubstr("llama3_args[\"planned\"] = TransformerModelArgs(dim=2048, n_layers=20, "),
                        HasSubstr("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 2\n"
                                  "fsdp_reshard_after_forward = \"always\"\ntensor_parallel_degree = 2\n"
                                  "pipeline_parallel_degree = 1\n\n[training]\nlocal_batch_size = 4\n"
                                  "global_batch_size = 64\nseq_len = 1024\n\n[activation_checkpoint]\n"
                                  "mode = \"none\"\n\n[compile]\nenable = true\n")),
                  HasSubstr("-m torchtitan.train --job.config_file RUN.toml\n")));
  EXPECT_THAT(
      texts(PlannedSystem::torchtitan_0_3, no_pipeline),
      ElementsAre(AllOf(StartsWith("def planned() -> Trainer.Config:\n    config = llama3_8b()"),
                        HasSubstr("n_layers=20, dim=2048, n_heads=16, n_kv_heads=16, hidden_dim=5632, rope=rope"),
                        HasSubstr("    config.parallelism.data_parallel_replicate_degree = 2\n"
                                  "    config.parallelism.data_parallel_shard_degree = 2\n"
                                  "    config.parallelism.fsdp_reshard_after_forward = \"always\"\n"
                                  "    config.parallelism.tensor_parallel_degree = 2\n"
                                  "    config.parallelism.pipeline_parallel_degree = 1\n"
                                  "    config.training.local_batch_size = 4\n"
                                  "    config.training.global_batch_size = 64\n    config.training.seq_len = 1024\n"
                                  "    config.activation_checkpoint = None\n    config.compile.enable = True\n"
                                  "    return config\n")),
                  HasSubstr("torchrun --nnodes 2 --nproc-per-node 4 ")));
  const Configuration pipeline = {{.data_parallel = 2,
                                   .pipeline_parallel = 4,
                                   .virtual_stages = 2,
                                   .schedule = PipelineSchedule::interleaved_1f1b,
                                   .zero_stage = 1,
                                   .recompute = Recompute::full},
                                  64,
                                  4};
  EXPECT_THAT(texts(PlannedSystem::torchtitan, pipeline).front(),
              AllOf(HasSubstr("fsdp_reshard_after_forward = \"never\"\n"),
                    HasSubstr("pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
                              "pipeline_parallel_microbatch_size = 4\n"),
                    HasSubstr("local_batch_size = 32\nglobal_batch_size = 64\n"), HasSubstr("mode = \"full\"")));
  EXPECT_THAT(texts(PlannedSystem::torchtitan_0_3, pipeline).front(),
              AllOf(HasSubstr("config.parallelism.pipeline_parallel_microbatch_size = 4\n"),
                    HasSubstr("config.training.local_batch_size = 32\n"), HasSubstr("FullAC.Config()")));
}

TEST(PasteText, TorchtitanHasItsOwnNamesForItsOwnSizes) {
  PlanQuestion question = question_for(PlannedSystem::torchtitan);
  question.model = {.vocab_size = 128256,
                    .hidden_size = 4096,
                    .intermediate_size = 14336,
                    .num_layers = 32,
                    .num_heads = 32,
                    .num_kv_heads = 8,
                    .head_dim = 128,
                    .rms_norm_eps = 1e-5,
                    .rope_theta = 500000,
                    .rope_scaling = RopeScaling{}};
  const Configuration configuration = {{.data_parallel = 8, .zero_stage = 3}, 64, 1};
  EXPECT_THAT(paste_texts(question, configuration).front().text,
              AllOf(HasSubstr("flavor = \"8B\"\n"), Not(HasSubstr("llama3_args"))));
  question.program = PlannedSystem::torchtitan_0_3;
  EXPECT_THAT(paste_texts(question, configuration).front().text, HasSubstr("model_registry(\"8B\")\n"));
}

// Llama 3 has the same sizes as Llama 3.1, but without the scaling that both versions apply by default.
TEST(PasteText, TorchtitanIsToldHowPositionsAreScaled) {
  const Configuration configuration = {{.data_parallel = 8, .zero_stage = 3}, 64, 1};
  const auto text = [&](PlannedSystem program, const std::optional<RopeScaling>& scaling) {
    PlanQuestion question = question_for(program);
    question.model.rope_scaling = scaling;
    return paste_texts(question, configuration).front().text;
  };
  const RopeScaling by_32{.factor = 32};
  EXPECT_THAT(text(PlannedSystem::torchtitan, std::nullopt), HasSubstr("RoPEScalingArgs(scaling_factor=1, "));
  EXPECT_THAT(text(PlannedSystem::torchtitan, by_32), HasSubstr("RoPEScalingArgs(scaling_factor=32, "));
  EXPECT_THAT(text(PlannedSystem::torchtitan_0_3, std::nullopt), Not(HasSubstr("scaling")));
  EXPECT_THAT(text(PlannedSystem::torchtitan_0_3, by_32), HasSubstr("scaling=\"llama\", scaling_factor=32, "));
  EXPECT_THAT(text(PlannedSystem::nanotron, by_32), HasSubstr("# read, but not applied"));
  EXPECT_THAT(text(PlannedSystem::nanotron, std::nullopt), Not(HasSubstr("not applied")));
}

// Ranks of a layout are placed on full nodes; only the last one may have fewer.
TEST(PasteText, ALastNodeThatIsNotFullIsToldHowManyItRuns) {
  PlanQuestion question = question_for(PlannedSystem::megatron);
  const auto text = [&](int64_t data_parallel) {
    return paste_texts(question, {{.data_parallel = data_parallel, .tensor_parallel = 2}, 60, 1}).front();
  };
  EXPECT_THAT(text(3).text, HasSubstr("torchrun --nnodes 2 --nproc-per-node 4 "));
  EXPECT_THAT(text(3).where, HasSubstr("6 GPUs (on the last node, which has 2, with --nproc-per-node 2)"));
  EXPECT_THAT(text(1).text, HasSubstr("torchrun --nproc-per-node 2 "));
  EXPECT_THAT(text(4).where, HasSubstr("on 8 GPUs;"));
}

TEST(PasteText, CopusTakesEveryKey) {
  EXPECT_THAT(
      texts(PlannedSystem::copus, {{.data_parallel = 8, .zero_stage = 3, .reshard_after_forward = false}, 64, 4}),
      ElementsAre("[parallel]\ndata_parallel = 8\ntensor_parallel = 1\npipeline_parallel = 1\n"
                  "virtual_stages = 1\nschedule = \"1f1b\"\nsequence_parallel = false\nzero_stage = 3\n"
                  "reshard_after_forward = false\nzero_replicas = 1\n\n[train]\nsequence_length = 1024\n"
                  "precision = \"bf16\"\nrecompute = \"none\"\nglobal_batch = 64\nmicro_batch = 4\n"));
}

// Every configuration that a plan can propose has a text.
TEST(PasteText, EveryConfigurationOfEverySpaceHasAText) {
  for (const PlannedSystem program : all_values<PlannedSystem>()) {
    const PlanQuestion question = question_for(program);
    const std::vector<Configuration> all = enumerate(question.model, question.sequence_length, question.whole_space());
    EXPECT_FALSE(all.empty()) << full_name(program);
    for (const Configuration& configuration : all) {
      for (const PasteText& paste : paste_texts(question, configuration)) EXPECT_EQ(paste.text.back(), '\n');
    }
  }
}

}  // namespace
}  // namespace copus
