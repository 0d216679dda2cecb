#include "copus/workshop/published/runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "copus/base/error.h"

namespace copus {
namespace {

using ::testing::HasSubstr;

using Cells = std::map<std::string, std::string>;

// A run of a small model with all cells filled.
Cells complete_row() {
  return {{"row_id", "7"},
          {"rank_set", "R1"},
          {"group", "g"},
          {"framework", "f"},
          {"hardware", "H100"},
          {"n_gpus", "16"},
          {"gpus_per_node", "8"},
          {"params_b", "0.2"},
          {"n_layers", "4"},
          {"hidden", "64"},
          {"heads", "8"},
          {"kv_heads", "4"},
          {"ffn", "256"},
          {"glu", "1"},
          {"vocab", "1000"},
          {"seq_len", "128"},
          {"precision", "bf16"},
          {"dp", "4"},
          {"tp", "2"},
          {"pp", "2"},
          {"vpp", "1"},
          {"cp", "1"},
          {"sp", "1"},
          {"zero_stage", "1"},
          {"micro_batch", "2"},
          {"grad_accum", "3"},
          {"global_batch", "24"},
          {"recompute", "full"},
          {"notes", "a, \"b\""},
          {"tokens_per_s_per_gpu", "12.5"},
          {"mem_gb", "40.5"}};
}

std::string quoted(const std::string& cell) {
  std::string text;
  for (const char character : cell) text.append(character == '"' ? 2 : 1, character);
  return concat('"', text, '"');
}

std::string to_csv(const Cells& row) {
  std::string header, cells;
  for (const auto& [column, cell] : row) {
    const char* comma = header.empty() ? "" : ",";
    header += concat(comma, column);
    cells += concat(comma, quoted(cell));
  }
  return concat(header, "\r\n", cells, "\r\n");
}

PublishedRun parse_with(const Cells& changes) {
  Cells row = complete_row();
  for (const auto& [column, cell] : changes) row[column] = cell;
  return parse_published_runs(to_csv(row), PublishedTable::throughput, "runs.csv").at(0);
}

std::string error_of(const std::string& text, PublishedTable table = PublishedTable::throughput) {
  try {
    parse_published_runs(text, table, "runs.csv");
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PublishedRuns, ReadsEveryCell) {
  const PublishedRun run = parse_with({});
  EXPECT_EQ(run.unusable, "");
  EXPECT_EQ(run.row_id, "7");
  EXPECT_EQ(run.notes, "a, \"b\"");
  EXPECT_EQ(run.num_gpus, 16);
  EXPECT_EQ(run.gpus_per_node, 8);
  EXPECT_EQ(run.model.num_kv_heads, 4);
  EXPECT_EQ(run.model.head_dim, 8);
  EXPECT_EQ(run.sequence_length, 128);
  EXPECT_EQ(to_string(layout_of(run.configuration.strategy)), "d=4,t=2,p=2");
  EXPECT_TRUE(run.configuration.strategy.sequence_parallel);
  EXPECT_EQ(run.configuration.strategy.zero_stage, 1);
  EXPECT_EQ(run.configuration.strategy.recompute, Recompute::full);
  EXPECT_EQ(run.configuration.micro_batch, 2);
  EXPECT_EQ(run.configuration.global_batch, 24);
  EXPECT_EQ(run.tokens_per_second_per_gpu, 12.5);
  EXPECT_EQ(run.memory_gigabytes, 40.5);
}

TEST(PublishedRuns, EmptyCellsHaveSensibleMeanings) {
  const PublishedRun run = parse_with({{"kv_heads", ""},
                                       {"glu", ""},
                                       {"vpp", ""},
                                       {"cp", ""},
                                       {"sp", ""},
                                       {"zero_stage", ""},
                                       {"dp", ""},
                                       {"grad_accum", ""},
                                       {"recompute", ""},
                                       {"mem_gb", ""},
                                       {"tokens_per_s_per_gpu", ""}});
  EXPECT_EQ(run.unusable, "");
  EXPECT_EQ(run.model.num_kv_heads, 8);
  EXPECT_TRUE(run.gated);
  EXPECT_EQ(run.configuration.strategy,
            (ParallelStrategy{.data_parallel = 4, .tensor_parallel = 2, .pipeline_parallel = 2}));
  EXPECT_EQ(run.configuration.num_microbatches(), 3);
  EXPECT_EQ(run.sequence_parallel_said, std::nullopt);
  EXPECT_EQ(run.zero_stage_said, std::nullopt);
  EXPECT_EQ(run.memory_gigabytes, std::nullopt);
  EXPECT_EQ(run.tokens_per_second_per_gpu, std::nullopt);
}

TEST(PublishedRuns, ZeroStagesMayNameTheirGroup) {
  EXPECT_EQ(parse_with({{"zero_stage", "1 (size 8)"}}).zero_group, 8);
  EXPECT_EQ(parse_with({{"zero_stage", "1 (all DP)"}}).zero_group, 0);
  const PublishedRun run = parse_with({{"zero_stage", "3 (FSDP 256)"}});
  EXPECT_EQ(run.zero_group, 256);
  EXPECT_EQ(run.configuration.strategy.zero_stage, 3);
  EXPECT_EQ(run.unusable, "");
}

TEST(PublishedRuns, ParametersSayWhetherEmbeddingsAreTied) {
  // Two layers of 4 x 1024^2 + 3 x 1024 x 4096 weights: 33.56 million, and 51.2 million for each embedding.
  const Cells shape = {{"n_layers", "2"}, {"hidden", "1024"}, {"ffn", "4096"}, {"kv_heads", "8"}, {"vocab", "50000"}};
  const auto tied = [&](const std::string& billions) {
    Cells changes = shape;
    changes["params_b"] = billions;
    return parse_with(changes).model.tie_word_embeddings;
  };
  EXPECT_TRUE(tied("0.085"));
  EXPECT_FALSE(tied("0.136"));
  EXPECT_FALSE(tied("0.070")) << "explains neither";
  EXPECT_FALSE(tied("0")) << "too coarse to tell";
  EXPECT_FALSE(tied(""));
}

TEST(PublishedRuns, InterleavedWithVirtualStages) {
  const PublishedRun run = parse_with({{"vpp", "2"}, {"grad_accum", "4"}});
  EXPECT_EQ(run.configuration.strategy.schedule, PipelineSchedule::interleaved_1f1b);
  EXPECT_EQ(run.configuration.strategy.virtual_stages, 2);
  EXPECT_EQ(run.configuration.global_batch, 32) << "grad_accum counts where global_batch disagrees";
}

TEST(PublishedRuns, KeepsWhatItCannotRepresentWithTheReason) {
  EXPECT_THAT(parse_with({{"n_layers", ""}}).unusable, HasSubstr("n_layers is not given"));
  EXPECT_THAT(parse_with({{"dp", "3"}}).unusable, HasSubstr("dp 3 x tp x pp x cp 4 are not n_gpus 16"));
  EXPECT_THAT(parse_with({{"zero_stage", "HSDP"}}).unusable, HasSubstr("zero_stage 'HSDP'"));
  EXPECT_THAT(parse_with({{"heads", "7"}, {"kv_heads", "7"}}).unusable, HasSubstr("no multiple of heads"));
  EXPECT_THAT(parse_with({{"pp", "8"}, {"dp", "1"}}).unusable, HasSubstr("exceeds model.num_hidden_layers"));
}

TEST(PublishedRuns, SizesThatWouldOverflowAreUnusable) {
  const std::string large = "1000000000";
  EXPECT_THAT(parse_with({{"tp", large}, {"pp", large}, {"dp", ""}}).unusable, HasSubstr("tp x pp x cp is beyond"));
  EXPECT_THAT(parse_with({{"dp", large}, {"n_gpus", large}}).unusable, HasSubstr("are not n_gpus"));
  EXPECT_THAT(parse_with({{"micro_batch", large}, {"grad_accum", large}}).unusable, HasSubstr("the global batch"));
  EXPECT_THAT(parse_with({{"micro_batch", large}, {"seq_len", large}, {"grad_accum", "1"}}).unusable,
              HasSubstr("the stream of a step"));
  EXPECT_THAT(parse_with({{"n_layers", large}}).unusable, HasSubstr("n_layers 1000000000 is beyond 1000"));
  EXPECT_THAT(parse_with({{"ffn", large}, {"hidden", large}}).unusable, HasSubstr("the number of parameters"));
}

TEST(PublishedRuns, AByteOrderMarkIsNoPartOfTheFirstColumn) {
  EXPECT_EQ(error_of("\xEF\xBB\xBF" + to_csv(complete_row())), "no error");
}

TEST(PublishedRuns, CellsMayHoldLineBreaks) { EXPECT_EQ(parse_with({{"notes", "one\ntwo"}}).notes, "one\ntwo"); }

TEST(PublishedRuns, RefusesWithPlaceAndExpectation) {
  const auto with = [](const std::string& column, const std::string& cell) {
    Cells row = complete_row();
    row[column] = cell;
    return to_csv(row);
  };
  EXPECT_EQ(error_of(with("tp", "two")),
            "runs.csv:2: column tp is 'two'; expected a whole number from 0 to 10^9, or nothing");
  EXPECT_THAT(error_of(with("sp", "yes")), HasSubstr("runs.csv:2: column sp is 'yes'; expected 0, 1 or nothing"));
  EXPECT_THAT(error_of(with("mem_gb", "4x")), HasSubstr("column mem_gb is '4x'; expected a number"));
  EXPECT_THAT(error_of(with("mem_gb", "nan")), HasSubstr("column mem_gb is 'nan'"));
  EXPECT_THAT(error_of(""), HasSubstr("runs.csv: is empty"));
  EXPECT_THAT(error_of("a,b\n1,2\n"), HasSubstr("runs.csv:1: there is no column 'row_id'"));
  EXPECT_THAT(error_of(with("tp", "2") + "1,2\n"), HasSubstr("runs.csv:3: 2 cells, where the first line names 31"));
  EXPECT_THAT(error_of(with("tp", "2") + "\"open"), HasSubstr("runs.csv:3: a cell's quote is never closed"));
  EXPECT_THAT(error_of(with("tp", "1000000001")), HasSubstr("column tp is '1000000001'"));
  Cells failure = complete_row();
  failure.erase("tokens_per_s_per_gpu");
  EXPECT_THAT(error_of(to_csv(failure)), HasSubstr("there is no column 'tokens_per_s_per_gpu'"));
  EXPECT_THAT(error_of(to_csv(failure), PublishedTable::failures), HasSubstr("there is no column 'status'"));
  failure["status"] = "OOM";
  EXPECT_EQ(error_of(to_csv(failure), PublishedTable::failures), "no error");
}

}  // namespace
}  // namespace copus
