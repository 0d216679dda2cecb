// How layouts are told to each program.
#include "copus/plan/paste_text.h"

#include <gmock/gmock.h>

#include "copus/plan/testing/plan_test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

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

TEST(PasteText, MegatronTakesFlags) {
  EXPECT_THAT(texts(PlannedSystem::megatron, {{.data_parallel = 8}, 64, 4}),
              ElementsAre("--tensor-model-parallel-size 1 \\\n--pipeline-model-parallel-size 1 \\\n"
                          "--overlap-grad-reduce \\\n--micro-batch-size 4 \\\n--global-batch-size 64 \\\n"
                          "--seq-length 1024 \\\n--bf16\n"));
  // 20 layers in 2 x 5 stages.
  EXPECT_THAT(texts(PlannedSystem::megatron, {{.data_parallel = 2,
                                               .tensor_parallel = 2,
                                               .pipeline_parallel = 2,
                                               .virtual_stages = 5,
                                               .schedule = PipelineSchedule::interleaved_1f1b,
                                               .sequence_parallel = true,
                                               .zero_stage = 1,
                                               .recompute = Recompute::full},
                                              64,
                                              1}),
              ElementsAre("--tensor-model-parallel-size 2 \\\n--pipeline-model-parallel-size 2 \\\n"
                          "--num-layers-per-virtual-pipeline-stage 2 \\\n--sequence-parallel \\\n"
                          "--use-distributed-optimizer \\\n--overlap-grad-reduce \\\n"
                          "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\\n"
                          "--micro-batch-size 1 \\\n--global-batch-size 64 \\\n--seq-length 1024 \\\n--bf16\n"));
}

TEST(PasteText, NanotronTakesYaml) {
  EXPECT_THAT(texts(PlannedSystem::nanotron, {{.data_parallel = 2,
                                               .tensor_parallel = 2,
                                               .pipeline_parallel = 2,
                                               .schedule = PipelineSchedule::gpipe,
                                               .sequence_parallel = true,
                                               .zero_stage = 1,
                                               .recompute = Recompute::full},
                                              64,
                                              4}),
              ElementsAre("parallelism:\n  dp: 2\n  tp: 2\n  pp: 2\n  pp_engine: afab\n  tp_mode: REDUCE_SCATTER\n"
                          "  tp_linear_async_communication: true\n  recompute_layer: true\n"
                          "optimizer:\n  zero_stage: 1\n  accumulate_grad_in_fp32: true\n"
                          "tokens:\n  micro_batch_size: 4\n  batch_accumulation_per_replica: 8\n"
                          "  sequence_length: 1024\n"));
  EXPECT_THAT(texts(PlannedSystem::nanotron, {{.tensor_parallel = 4, .pipeline_parallel = 2}, 64, 1}),
              ElementsAre(AllOf(HasSubstr("pp_engine: 1f1b\n  tp_mode: ALL_REDUCE\n"),
                                HasSubstr("tp_linear_async_communication: false\n  recompute_layer: false"),
                                HasSubstr("batch_accumulation_per_replica: 64\n"))));
}

TEST(PasteText, TorchtitanTakesTomlOrPython) {
  const Configuration no_pipeline = {
      {.data_parallel = 4, .tensor_parallel = 2, .sequence_parallel = true, .zero_stage = 3, .zero_replicas = 2},
      64,
      4};
  EXPECT_THAT(
      texts(PlannedSystem::torchtitan, no_pipeline),
      ElementsAre("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 2\n"
                  "fsdp_reshard_after_forward = \"always\"\ntensor_parallel_degree = 2\n"
                  "pipeline_parallel_degree = 1\n\n[training]\nlocal_batch_size = 4\nglobal_batch_size = 64\n"
                  "seq_len = 1024\n\n[activation_checkpoint]\nmode = \"none\"\n\n[compile]\nenable = true\n",
                  "config.parallelism.data_parallel_replicate_degree = 2\n"
                  "config.parallelism.data_parallel_shard_degree = 2\n"
                  "config.parallelism.fsdp_reshard_after_forward = \"always\"\n"
                  "config.parallelism.tensor_parallel_degree = 2\nconfig.parallelism.pipeline_parallel_degree = 1\n"
                  "config.training.local_batch_size = 4\nconfig.training.global_batch_size = 64\n"
                  "config.training.seq_len = 1024\n"
                  "config.activation_checkpoint = None\nconfig.compile.enable = True\n"));
  const Configuration pipeline = {{.data_parallel = 2,
                                   .pipeline_parallel = 4,
                                   .virtual_stages = 2,
                                   .schedule = PipelineSchedule::interleaved_1f1b,
                                   .zero_stage = 1,
                                   .recompute = Recompute::full},
                                  64,
                                  4};
  EXPECT_THAT(
      texts(PlannedSystem::torchtitan, pipeline),
      ElementsAre(AllOf(HasSubstr("fsdp_reshard_after_forward = \"never\"\n"),
                        HasSubstr("pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"\n"
                                  "pipeline_parallel_microbatch_size = 4\n"),
                        HasSubstr("local_batch_size = 32\nglobal_batch_size = 64\n"), HasSubstr("mode = \"full\"")),
                  AllOf(HasSubstr("config.parallelism.pipeline_parallel_microbatch_size = 4\n"),
                        HasSubstr("config.training.local_batch_size = 32\n"), HasSubstr("FullAC.Config()"))));
}

TEST(PasteText, CopusTakesEveryKey) {
  EXPECT_THAT(
      texts(PlannedSystem::copus, {{.data_parallel = 8, .zero_stage = 3, .reshard_after_forward = false}, 64, 4}),
      ElementsAre("[parallel]\ndata_parallel = 8\ntensor_parallel = 1\npipeline_parallel = 1\n"
                  "virtual_stages = 1\nschedule = \"1f1b\"\nsequence_parallel = false\nzero_stage = 3\n"
                  "reshard_after_forward = false\nzero_replicas = 1\n\n[train]\nsequence_length = 1024\n"
                  "precision = \"bf16\"\nrecompute = \"none\"\nglobal_batch = 64\nmicro_batch = 4\n"));
}

// Whatever a plan proposes can be written down.
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
