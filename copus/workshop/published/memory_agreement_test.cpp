#include "copus/workshop/published/memory_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/workshop/published/memory.h"

namespace copus {
namespace {

constexpr double gibibyte = 1 << 30;

// LLaMA-13B as Hagemann et al. 2023 ran it on 64 A100.
PublishedRun run_13b(int64_t micro_batch, const std::string& recompute) {
  PublishedRun run;
  run.row_id = "1";
  run.framework = "Aleph Alpha scaling";
  run.hardware = "A100-80GB";
  run.notes = "kernel=flash_attention2";
  run.recompute = recompute;
  run.model.vocab_size = 128000;
  run.model.hidden_size = 5120;
  run.model.intermediate_size = 13824;
  run.model.num_layers = 40;
  run.model.num_heads = run.model.num_kv_heads = 40;
  run.model.head_dim = 128;
  run.sequence_length = 2048;
  run.num_gpus = 64;
  ParallelStrategy& strategy = run.configuration.strategy;
  strategy.data_parallel = 64;
  strategy.recompute = recompute == "full" ? Recompute::full : Recompute::none;
  run.configuration.micro_batch = micro_batch;
  run.configuration.global_batch = 2048;
  return run;
}

TEST(PublishedMemory, HardwareNamesItsMemory) {
  EXPECT_NEAR(published_memory_bytes("A100-80GB SXM"), 79.15 * gibibyte, 0.05 * gibibyte);
  EXPECT_NEAR(published_memory_bytes("H100-96GB HBM2e, 500W cap"), 95.0 * gibibyte, 0.1 * gibibyte);
  EXPECT_EQ(published_memory_bytes("H100 (variant not stated)"), 0);
  EXPECT_EQ(published_memory_bytes("DGX-GB200"), 0) << "a name, not a size";
}

TEST(PublishedMemory, SystemsDifferInWhatTheyKeep) {
  const auto needs = [](const PublishedRun& run) {
    const PublishedMemoryCase described = describe_published_memory(run);
    EXPECT_EQ(described.left_out, "");
    return MemoryModel(described.model, described.sequence_length, described.system)
        .predict(described.configuration)
        .parts;
  };
  const PublishedRun flash = run_13b(1, "none");
  // Parameters take 2 + 2 bytes, and 12 more that 64 ranks share.
  const auto parameters = static_cast<double>(count_parameters(flash.model));
  EXPECT_EQ(needs(flash).weights, 2 * parameters);
  EXPECT_EQ(needs(flash).gradients, 2 * parameters);
  EXPECT_EQ(needs(flash).optimizer, 12 * parameters / 64);
  PublishedRun fused_norm = flash, scores = flash, nanotron = flash;
  fused_norm.notes += " + RMS kernel";
  EXPECT_EQ(needs(flash).activations - needs(fused_norm).activations, 8.0 * 40 * 2048 * 5120 * 2);
  scores.notes = "kernel=torch";
  EXPECT_EQ(needs(scores).activations - needs(flash).activations, 8.0 * 40 * 40 * 2048 * 2048);
  nanotron.framework = "nanotron v0.5";
  EXPECT_EQ(needs(nanotron).gradients, 6 * parameters);
  EXPECT_EQ(needs(nanotron).optimizer, 12 * parameters);
  PublishedRun torchtitan = flash;
  torchtitan.framework = "torchtitan";
  EXPECT_EQ(describe_published_memory(torchtitan).system.stage_cut, StageCut::equal);
  EXPECT_FALSE(describe_published_memory(torchtitan).system.gathers_after_recompute);
  PublishedRun no_gate = nanotron;
  no_gate.gated = false;
  EXPECT_EQ(needs(no_gate).weights, 2 * (parameters - 40.0 * 5120 * 13824));
}

TEST(PublishedMemory, LeavesOutWhatIsNotSaid) {
  EXPECT_THAT(describe_published_memory(run_13b(1, "")).left_out, testing::HasSubstr("recompute is not said"));
  PublishedRun run = run_13b(1, "none");
  run.hardware = "H100";
  EXPECT_THAT(describe_published_memory(run).left_out, testing::HasSubstr("does not say its memory"));
  run.unusable = "n_layers is not given";
  EXPECT_EQ(describe_published_memory(run).left_out, "n_layers is not given");
}

TEST(MemoryAgreement, TellsKindsOfFailureApart) {
  EXPECT_EQ(failure_kind("OOM Error"), FailureKind::out_of_memory);
  EXPECT_EQ(failure_kind("CUDA out of memory"), FailureKind::out_of_memory);
  EXPECT_EQ(failure_kind("oom_or_crash"), FailureKind::unclear);
  EXPECT_EQ(failure_kind("NCCL timeout"), FailureKind::other);
  EXPECT_EQ(failure_kind(""), FailureKind::other);
}

TEST(MemoryAgreement, CountsEachKindByItself) {
  const auto failed = [](PublishedRun run, const std::string& status, const std::string& row_id) {
    run.status = status;
    run.row_id = row_id;
    return run;
  };
  PublishedRun measured = run_13b(1, "full");
  measured.memory_gigabytes = 80;
  PublishedRun unusable = run_13b(1, "full");
  unusable.unusable = "n_layers is not given";
  const MemoryAgreement agreement =
      judge_memory({measured, run_13b(4, "full"), run_13b(8, "none"), unusable},
                   {failed(run_13b(4, "none"), "OOM Error", "a"), failed(run_13b(1, "full"), "OOM Error", "b"),
                    failed(run_13b(4, "none"), "oom_or_crash", "c"), failed(run_13b(4, "none"), "NCCL timeout", "d")});
  EXPECT_EQ(agreement.ran, 3);
  EXPECT_EQ(agreement.ran_called_feasible, 2);
  EXPECT_EQ(agreement.out_of_memory, 2);
  EXPECT_EQ(agreement.infeasible_recall(), 0.5);
  EXPECT_EQ(agreement.unclear, 1);
  EXPECT_EQ(agreement.unclear_called_infeasible, agreement.unclear);
  EXPECT_EQ(agreement.failed_otherwise, 1);
  EXPECT_EQ(agreement.left_out, 1);
  EXPECT_EQ(agreement.with_memory, 1);
  EXPECT_GT(*agreement.median_absolute_error, 0.1);
  ASSERT_EQ(agreement.misjudged.size(), 2u);
  EXPECT_EQ(agreement.misjudged[0].status, "");
  EXPECT_GT(agreement.misjudged[0].prediction.parts.total(), agreement.misjudged[0].memory_bytes);
  EXPECT_EQ(agreement.misjudged[1].row_id, "b");
  EXPECT_EQ(judge_memory({}, {}).feasible_recall(), std::nullopt);
}

}  // namespace
}  // namespace copus
