#include "copus/config/run_config.h"

#include <gmock/gmock.h>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* model_section =
    "[model]\nvocab_size = 256\nhidden_size = 64\nintermediate_size = 96\nnum_hidden_layers = 2\n"
    "num_attention_heads = 4\n";
constexpr const char* minimal_rest = "[data]\ntrain = 'a.txt'\n[train]\nmax_steps = 5\n";

// Returns the smallest valid configuration, followed by `more`, which begins in section [train].
std::string minimal(const std::string& more = "") { return concat(model_section, minimal_rest, more); }
constexpr const char* first_line_of_more = "run.toml:11";

RunConfig parse(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return parse_run_config(toml, "run.toml", overrides);
}

std::string message_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return user_error([&] { parse(toml, overrides); });
}

TEST(RunConfig, EverythingButTheEssentialsHasADefault) {
  RunConfig expected;
  expected.model = parse(minimal()).model;
  expected.data.train = {{"a.txt"}};
  expected.train.max_steps = 5;
  EXPECT_EQ(parse(minimal()), expected);
}

// A job that another program trains.
constexpr const char* advised =
    "[train]\nglobal_batch = 64\nmicro_batch = 8\n[adapt]\npolicy = 'copus'\nadvise = true\n";

TEST(AdvisedConfig, IsWhatHasNoModel) {
  const AdvisedConfig config = parse_advised_config(advised, "job.toml");
  EXPECT_EQ(config.train.global_batch, 64);
  EXPECT_EQ(std::get<AdvisedConfig>(parse_any_config(advised, "job.toml")), config);
  EXPECT_EQ(std::get<RunConfig>(parse_any_config(minimal(), "run.toml")), parse(minimal()));
  EXPECT_EQ(parse_advised_config(to_toml(config), "again.toml"), config);
  EXPECT_THAT(message_of(advised), AllOf(HasSubstr("section [model] is missing"), HasSubstr("another program trains")));
  EXPECT_THAT(message_of("[train]\nmax_steps = 5\n"),
              AllOf(HasSubstr("section [model] is missing"), Not(HasSubstr("another program"))));
}

TEST(AdvisedConfig, KnowsNothingThatOnlyTrainingNeeds) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    return user_error([&] { parse_advised_config(advised, "job.toml", overrides); });
  };
  EXPECT_THAT(refusal({"train.device=cuda"}), HasSubstr("unknown key \"device\" in [train]"));
  EXPECT_THAT(refusal({"data.train=a.txt"}), HasSubstr("unknown section [data]"));
  EXPECT_THAT(refusal({"cluster.clock=modelled"}), HasSubstr("unknown section [cluster]"));
  EXPECT_THAT(refusal({"adapt.advise=false"}), HasSubstr("set adapt.advise = true"));
  EXPECT_THAT(refusal({"train.global_batch=65"}), HasSubstr("the nearest are 64 and 72"));
}

TEST(RunConfig, UnderstandsEveryNameOfAPrecision) {
  for (const char* name : {"bf16", "bfloat16", "BF16"}) {
    EXPECT_EQ(parse(minimal(concat("precision = \"", name, "\"\n"))).execution.precision, Precision::bf16) << name;
  }
  for (const char* name : {"fp32", "float32", "F32", "f32"}) {
    EXPECT_EQ(parse(minimal(concat("precision = \"", name, "\"\n"))).execution.precision, Precision::fp32) << name;
  }
}

TEST(RunConfig, ReadsEveryKindOfField) {
  const RunConfig config = parse(minimal(R"(
seed = 7
max_tokens = 1e9
max_seconds = "3m"
precision = "bf16"
recompute = "attention"
clip_norm = 0
[optimizer]
lr = 1e-2
schedule = "wsd"
warmup_tokens = 10_000
[log]
tensorboard = false
)"));
  EXPECT_EQ(config.execution.seed, 7u);
  EXPECT_EQ(config.train.max_tokens, 1000000000);
  EXPECT_EQ(config.train.max_seconds, 180);
  EXPECT_EQ(config.execution.precision, Precision::bf16);
  EXPECT_EQ(config.parallel.recompute, Recompute::attention);
  EXPECT_EQ(config.train.clip_norm, 0);
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.optimizer.schedule, LearningRateSchedule::wsd);
  EXPECT_EQ(config.optimizer.warmup_tokens, 10000);
  EXPECT_FALSE(config.log.tensorboard);
}

TEST(RunConfig, DataMayBeAPathAListOrABlend) {
  const auto train = [](const std::string& value) { return parse(minimal(), {"data.train=" + value}).data.train; };
  EXPECT_THAT(train("b.txt"), ElementsAre(DataSource{"b.txt"}));
  EXPECT_THAT(train("['b', 'c']"), ElementsAre(DataSource{"b"}, DataSource{"c"}));
  EXPECT_THAT(train("[{ path = 'b', weight = 2 }, 'c', { path = 'd' }]"),
              ElementsAre(DataSource{"b", 2.0}, DataSource{"c"}, DataSource{"d"}));
  EXPECT_THAT(train("{ path = 'b', weight = 0.5 }"), ElementsAre(DataSource{"b", 0.5}));
  EXPECT_THAT(parse(minimal(), {"data.held_out=h.txt"}).data.held_out, ElementsAre("h.txt"));
  EXPECT_THAT(parse(minimal(), {"data.held_out=['h', 'i']"}).data.held_out, ElementsAre("h", "i"));
}

TEST(RunConfig, SettingsThatOnlyAnotherOptimizerHasAreRefusedByName) {
  EXPECT_EQ(parse(minimal()).optimizer.kind, OptimizerKind::adamw);
  const RunConfig config = parse(minimal("[optimizer]\nkind = 'signum'\nbeta1 = 0.95\nscale_weight_decay = true"));
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::signum);
  EXPECT_EQ(config.optimizer.beta1, 0.95);
  for (const char* setting : {"beta2 = 0.9", "epsilon = 1e-8", "scale_beta2 = false"}) {
    const std::string key = std::string(setting).substr(0, std::string(setting).find(' '));
    EXPECT_THAT(message_of(minimal(concat("[optimizer]\nkind = 'signum'\n", setting))),
                HasSubstr(concat("optimizer.", key, " is not a setting of optimizer.kind \"signum\"; leave it out")));
  }
  EXPECT_THAT(message_of(minimal("[optimizer]\nnesterov = true")), HasSubstr("optimizer.nesterov is not a setting of"));
  EXPECT_EQ(parse(minimal("[optimizer]\nkind = 'muon'\nmomentum = 0.9")).optimizer.muon.momentum, 0.9);
  EXPECT_THAT(message_of(minimal("[optimizer]\nkind = 'muon'\nnewton_schulz = 'cubic'")),
              AllOf(HasSubstr("newton_schulz"), HasSubstr("\"jordan\""), HasSubstr("\"polar_express\"")));
  EXPECT_THAT(message_of(minimal(), {"optimizer.kind=adam"}), HasSubstr("did you mean \"adamw\"?"));
}

TEST(RunConfig, OverridesReplaceSettings) {
  const RunConfig config = parse(minimal(), {"train.max_steps=9", "optimizer.lr=2e-3", "train.max_seconds=1h30m",
                                             "model.hidden_size=128", "train.device=cuda:1"});
  EXPECT_EQ(config.train.max_steps, 9);
  EXPECT_EQ(config.optimizer.lr, 2e-3);
  EXPECT_EQ(config.train.max_seconds, 5400);
  EXPECT_EQ(config.model.hidden_size, 128);
  EXPECT_EQ(config.execution.device, "cuda:1");
  EXPECT_THAT(message_of(minimal(), {"optimizer.lr=fast"}),
              AllOf(HasSubstr("--set optimizer.lr=fast: optimizer.lr must be a number"), HasSubstr("\"fast\"")));
  EXPECT_THAT(message_of(minimal(), {"train.lr=1e-3"}),
              AllOf(HasSubstr("--set train.lr=1e-3"), HasSubstr("\"lr\" in [optimizer]")));
}

TEST(RunConfig, AnOverrideWithoutItsSectionIsToldTheSection) {
  EXPECT_THAT(message_of(minimal(), {"train.seed=1", "max_steps=9"}),
              HasSubstr("--set max_steps=9: expected section.key=value; did you mean --set train.max_steps=9?"));
  EXPECT_THAT(
      message_of(minimal(), {"interval"}),
      HasSubstr("--set evaluate.interval=VALUE or --set checkpoint.interval=VALUE or --set log.interval=VALUE?"));
  EXPECT_THAT(message_of(minimal(), {"colour=1", "max_steps=9"}),
              HasSubstr("--set colour=1: expected section.key=value, for example --set optimizer.lr=1e-3"));
}

TEST(RunConfig, WhatWasMeantAsANumberIsToldHowToBeOne) {
  const auto hint = [](const char* text) { return message_of(minimal(), {concat("optimizer.warmup_tokens=", text)}); };
  EXPECT_THAT(hint("10%"), HasSubstr("got the string \"10%\"; a share of 10% is written 0.1"));
  EXPECT_THAT(hint("0,5"), HasSubstr("decimals have a point"));
  EXPECT_THAT(hint("1B"), HasSubstr("write the number in full, without \"B\""));
  EXPECT_THAT(hint("'300'"), HasSubstr("leave the quotes out: 300"));
  EXPECT_THAT(hint("few"), testing::Not(HasSubstr(";")));
  EXPECT_THAT(message_of(minimal(), {"train.threads=2cores"}), HasSubstr("without \"cores\""));
}

TEST(RunConfig, AHintAtANumberIsOneThatIsTaken) {
  const auto message = [](const char* key, const std::string& text) {
    return message_of(minimal(), {concat(key, "=", text)});
  };
  const auto share = [&](const std::string& text) { return message("optimizer.warmup_tokens", text); };
  const auto whole = [&](const std::string& text) { return message("train.threads", text); };
  const auto no_hint = testing::Not(HasSubstr(";"));
  EXPECT_THAT(share("'0x10'"), AllOf(HasSubstr("must be a number"), HasSubstr("; leave the quotes out: 0x10")));
  EXPECT_THAT(share("0X10"), HasSubstr("; write 0x10"));
  EXPECT_THAT(share("0x1g"), no_hint);
  EXPECT_THAT(share("'1_000'"), HasSubstr("; leave the quotes out: 1_000"));
  EXPECT_THAT(share("'+5'"), HasSubstr("; leave the quotes out: +5"));
  for (const char* grouped : {"1 000", "1'000", "1,000"}) {
    EXPECT_THAT(share(grouped), HasSubstr("digits are not grouped")) << grouped;
  }
  EXPECT_THAT(share("'1e3'"), HasSubstr("; leave the quotes out: 1e3"));
  EXPECT_THAT(share(".5"), HasSubstr("; write 0.5"));
  EXPECT_THAT(share("10 %"), HasSubstr("; a share of 10 % is written 0.1"));
  EXPECT_THAT(share("3 k"), HasSubstr("without \"k\""));
  EXPECT_THAT(share("1e"), HasSubstr("without \"e\""));
  for (const char* other : {"1.2.3", "3/4", "12:30h", "1e3.5", "10_", "1__000", "1_000k"})
    EXPECT_THAT(share(other), no_hint) << other;
  EXPECT_THAT(share("true"), AllOf(HasSubstr("must be a number, got true"), no_hint));
  EXPECT_THAT(whole("010"), AllOf(HasSubstr("must be a whole number"), HasSubstr("; write 10")));
  EXPECT_THAT(whole("99999999999999999999"), HasSubstr("; that is too large"));
  EXPECT_THAT(whole("5%"), HasSubstr("; write the number in full, without \"%\""));
  EXPECT_THAT(whole("'true'"), AllOf(HasSubstr("must be a whole number, got the string \"true\""), no_hint));
  EXPECT_THAT(whole("'1.5'"), AllOf(HasSubstr("must be a whole number, got the string \"1.5\""), no_hint));
  EXPECT_THAT(whole(".5"), AllOf(HasSubstr("must be a whole number, got the string \".5\""), no_hint));
}

TEST(RunConfig, AMisspeltValueIsToldTheNearest) {
  EXPECT_THAT(message_of(minimal(), {"adapt.policy=copsu"}), HasSubstr("; did you mean \"copus\"?"));
  EXPECT_THAT(message_of(minimal(), {"adapt.policy=fastest"}), testing::Not(HasSubstr("did you mean")));
}

TEST(RunConfig, MalformedTomlNamesLineAndColumn) {
  EXPECT_THAT(message_of(minimal("seed = = 3")), AllOf(HasSubstr(concat(first_line_of_more, ":8")), HasSubstr("TOML")));
}

TEST(RunConfig, UnknownKeysNameTheNearest) {
  EXPECT_THAT(message_of(minimal("globl_batch = 3")),
              AllOf(HasSubstr(first_line_of_more), HasSubstr("\"globl_batch\" in [train]"),
                    HasSubstr("did you mean \"global_batch\"?")));
  EXPECT_THAT(message_of(minimal("beta1 = 0.9")), HasSubstr("did you mean \"beta1\" in [optimizer]?"));
  EXPECT_THAT(message_of(minimal("betta1 = 0.9")), HasSubstr("did you mean \"beta1\" in [optimizer]?"));
  EXPECT_THAT(message_of(minimal("interval = 3")),
              HasSubstr("\"interval\" in [evaluate] or \"interval\" in [checkpoint] or \"interval\" in [log]"));
  EXPECT_THAT(message_of(minimal("[optimizer]\nlearning_rate = 1")),
              AllOf(HasSubstr("learning_rate"), HasSubstr("did you mean \"lr\" in [optimizer]?")));
  EXPECT_THAT(message_of(minimal("[optimizer]\ncolour = 1")),
              HasSubstr("the keys of [optimizer] are kind, lr, min_lr_ratio, beta1"));
  EXPECT_THAT(message_of(minimal("[optimiser]\nlr = 1")),
              AllOf(HasSubstr("[optimiser]"), HasSubstr("did you mean [optimizer]?")));
  EXPECT_THAT(message_of(minimal("[network]\nlr = 1")), HasSubstr("[model], [data], [train], [optimizer]"));
  EXPECT_THAT(message_of(concat("lr = 1\n", minimal())),
              AllOf(HasSubstr("run.toml:1"), HasSubstr("outside of any section"), HasSubstr("\"lr\" in [optimizer]")));
  EXPECT_THAT(message_of(concat("colour = 1\n", minimal())), HasSubstr("the sections are [model], [data]"));
  EXPECT_THAT(message_of(concat("log = 1\n", minimal())), HasSubstr("log must be a section, [log], got 1"));
  EXPECT_THAT(message_of(minimal(), {"data.train=[{ pth = 'a' }]"}), HasSubstr("did you mean \"path\"?"));
}

struct BadValue {
  const char* key;
  const char* value;
  const char* expected;
};

TEST(RunConfig, WrongTypesAndRangesSayWhatWasExpected) {
  for (const BadValue& bad : {
           BadValue{"train.micro_batch", "0", "at least 1 and at most 16777216, got 0"},
           BadValue{"train.micro_batch", "16777217", "at least 1 and at most 16777216"},
           BadValue{"train.global_batch", "1e15", "at most 16777216"},
           BadValue{"train.micro_batch", "8.5", "a whole number, got 8.5"},
           BadValue{"train.micro_batch", "'8'", "a whole number, got the string \"8\""},
           BadValue{"train.micro_batch", "[8]", "a whole number, got a list"},
           BadValue{"train.micro_batch", "2020-01-01", "a whole number, got a date"},
           BadValue{"train.sequence_length", "-1", "at least 1 and at most 2147483647, got -1"},
           BadValue{"train.max_steps", "-1", "at least 0"},
           BadValue{"train.max_tokens", "1e30", "a whole number"},
           BadValue{"train.seed", "-1", "at least 0"},
           BadValue{"train.max_seconds", "-1", "at least 0"},
           BadValue{"train.max_seconds", "soon", "\"3m\""},
           BadValue{"train.max_seconds", "true", "a number"},
           BadValue{"train.max_seconds", "inf", "finite"},
           BadValue{"train.precision", "fp16", "one of \"auto\", \"fp32\", \"bf16\", got the string \"fp16\""},
           BadValue{"train.recompute", "true", "one of \"none\", \"attention\", \"full\", got true"},
           BadValue{"train.clip_norm", "-0.5", "at least 0"},
           BadValue{"train.device", "3", "a string, got 3"},
           BadValue{"optimizer.lr", "0", "at least 1e-30 and at most 1e+30, got 0"},
           BadValue{"optimizer.lr", "nan", "finite"},
           BadValue{"optimizer.min_lr_ratio", "1.5", "at least 0 and at most 1"},
           BadValue{"optimizer.beta1", "1", "at least 0 and less than 1, got 1"},
           BadValue{"optimizer.beta2", "-0.1", "at least 0 and less than 1"},
           BadValue{"optimizer.epsilon", "0", "at least 1e-30"},
           BadValue{"optimizer.weight_decay", "-1", "at least 0"},
           BadValue{"optimizer.schedule", "linear", "one of \"constant\", \"cosine\", \"wsd\""},
           BadValue{"optimizer.warmup_tokens", "-1", "at least 0"},
           BadValue{"data.train", "3", "paths (strings), got 3"},
           BadValue{"data.train", "''", "empty path"},
           BadValue{"data.train", "[{ weight = 3 }]", "without a path"},
           BadValue{"data.train", "[{ path = 'a', weight = 0 }]", "at least 1e-300 and at most 1e+300, got 0"},
           BadValue{"data.held_out", "[3]", "paths (strings), got 3"},
           BadValue{"data.held_out_fraction", "1", "at least 0 and less than 1"},
           BadValue{"data.document_separator", "3", "a string, got 3"},
           BadValue{"data.mask_document_ends", "1", "true or false, got 1"},
           BadValue{"parallel.data_parallel", "0", "at least 1 and at most 131072, got 0"},
           BadValue{"parallel.tensor_parallel", "2.5", "a whole number, got 2.5"},
           BadValue{"parallel.schedule", "2f2b", "one of \"gpipe\", \"1f1b\", \"interleaved\", \"zb-h1\""},
           BadValue{"parallel.sequence_parallel", "2", "true or false, got 2"},
           BadValue{"parallel.zero_stage", "4", "at least 0 and at most 3, got 4"},
           BadValue{"parallel.wait_limit", "0s", "at least 1 and at most 1e+09, got the string \"0s\""},
           BadValue{"adapt.policy", "copuss", "one of \"none\", \"static\", \"static-best\", \"copus\""},
           BadValue{"adapt.global_batches", "[8, 0]", "at least 1 and at most 16777216, got 0"},
           BadValue{"adapt.micro_batches", "['4']", "a whole number, got the string \"4\""},
           BadValue{"adapt.schedules", "['1f1b', 'zb']", "\"zb-h1\", got the string \"zb\""},
           BadValue{"adapt.sequence_parallel", "[true, 1]", "true or false, got 1"},
           BadValue{"adapt.zero_stages", "[0, 4]", "at least 0 and at most 3, got 4"},
           BadValue{"adapt.alpha", "1.5", "at least 0 and at most 1, got 1.5"},
           BadValue{"adapt.interval_samples", "0", "at least 1, got 0"},
           // Huge numbers that would become infinite or overflow integers.
           BadValue{"train.threads", "2147483648", "at least 0 and at most 4096, got 2147483648"},
           BadValue{"train.sequence_length", "9223372036854775807", "at most 2147483647"},
           BadValue{"train.max_seconds", "1e300", "at most 1e+09"},
           BadValue{"train.max_seconds", "99999999999999999999d", "at most 1e+09"},
           BadValue{"train.clip_norm", "1e300", "at most 1e+30"},
           BadValue{"optimizer.lr", "1e-320", "at least 1e-30"},
           BadValue{"optimizer.epsilon", "1e-60", "at least 1e-30"},
           BadValue{"optimizer.weight_decay", "1e39", "at most 1e+30"},
           BadValue{"optimizer.warmup_tokens", "1e308", "at most 1e+18"},
           BadValue{"optimizer.reference_batch", "9223372036854775807", "at most 16777216"},
           BadValue{"data.train", "[{ path = 'a', weight = 1e308 }]", "at most 1e+300"},
           BadValue{"noise_scale.window_samples", "1e300", "at most 1e+18"},
           BadValue{"noise_scale.calibration", "1e308", "at most 1e+09"},
           BadValue{"noise_scale.calibration", "1e-320", "at least 1e-09"},
           BadValue{"noise_scale.calibration", "[]", "at least one measured critical batch"},
           BadValue{"noise_scale.calibration", "[[1e8, 4e4, 9e4]]", "such as [1e8, 4e4, 9e4, 0.2]"},
           BadValue{"noise_scale.calibration", "[[1e8, 4e4, 0, 0.2]]", "at least 1e-09"},
           BadValue{"adapt.norm_test_eta", "1e-320", "at least 1e-09"},
           BadValue{"adapt.late_switch_batch", "9223372036854775807", "at most 16777216"},
           BadValue{"parallel.wait_limit", "1e300", "at most 1e+09"},
           BadValue{"cluster.truth_layout_error", "1e300", "at most 10"},
           BadValue{"cluster.stands_for_sequence_length", "9223372036854775807", "at most 2147483647"},
           BadValue{"evaluate.max_batches", "9223372036854775807", "at most 4294967296"},
           BadValue{"cluster.clock", "fake", "one of \"real\", \"wall\", \"virtual\""},
           BadValue{"evaluate.interval", "-1", "at least 0"},
           BadValue{"checkpoint.keep_last", "0", "at least 1"},
           BadValue{"log.interval", "0", "at least 1"},
       }) {
    EXPECT_THAT(message_of(minimal(), {concat(bad.key, "=", bad.value)}),
                AllOf(HasSubstr("--set "), HasSubstr(bad.key), HasSubstr(bad.expected)));
  }
}

TEST(RunConfig, ContradictionsAreRefused) {
  EXPECT_THAT(message_of(concat(model_section, "[train]\nmax_steps = 1")), HasSubstr("data.train is missing"));
  EXPECT_THAT(message_of(minimal(), {"data.train=[]"}), HasSubstr("data.train is missing"));
  EXPECT_THAT(message_of(minimal(), {"data.held_out=a.txt"}),
              AllOf(HasSubstr("a.txt"), HasSubstr("both data.train and data.held_out")));
  EXPECT_THAT(message_of(minimal(), {"train.max_steps=0"}),
              AllOf(HasSubstr("max_steps"), HasSubstr("max_tokens"), HasSubstr("max_seconds")));
  EXPECT_THAT(message_of(minimal(), {"train.sequence_length=4096"}),
              AllOf(HasSubstr("(4096)"), HasSubstr("max_position_embeddings (2048)")));
  const std::vector<std::string> within = {"model.architecture=mistral", "model.sliding_window=100",
                                           "train.device=cuda"};
  EXPECT_THAT(message_of(minimal(), within),
              AllOf(HasSubstr("windows of 100 tokens (sliding_window)"), HasSubstr("at most 100"), HasSubstr("cpu")));
  EXPECT_THAT(
      message_of(minimal(), {"model.architecture=gemma2", "model.attn_logit_softcapping=50", "train.device=cuda"}),
      AllOf(HasSubstr("attn_logit_softcapping"), HasSubstr("no GPU kernel"), HasSubstr("\"cpu\"")));
  EXPECT_THAT(message_of(minimal(), {"data.shuffle_shards=true"}),
              AllOf(HasSubstr("data.shuffle_shards"), HasSubstr("data.held_out"), HasSubstr("held_out_fraction = 0")));
  EXPECT_THAT(message_of(minimal("[optimizer]\nschedule = 'wsd'\nwarmup_tokens = 0.5\ndecay_tokens = 0.6")),
              AllOf(HasSubstr("(0.5)"), HasSubstr("(0.6)"), HasSubstr("shares")));
  EXPECT_THAT(message_of(minimal(), {"train.device="}), HasSubstr("train.device is empty"));
}

TEST(RunConfig, ThePaperSRuleNeedsThePaperSRate) {
  const std::vector<std::string> as_published = {"adapt.policy=copus-paper", "cluster.clock=virtual",
                                                 "cluster.config=two-small-nodes"};
  EXPECT_EQ(message_of(minimal(), as_published), "no UserError");
  std::vector<std::string> linear = as_published;
  linear.emplace_back("optimizer.batch_scaling=linear");
  EXPECT_THAT(message_of(minimal(), linear), AllOf(HasSubstr("copus-paper"), HasSubstr("\"linear\"")));
}

TEST(RunConfig, BatchesThatDoNotDivideNameTheNearestThatDo) {
  const auto refusal = [](int global_batch, int micro_batch) {
    return message_of(minimal(),
                      {concat("train.global_batch=", global_batch), concat("train.micro_batch=", micro_batch)});
  };
  EXPECT_EQ(refusal(32, 12),
            "run.toml: train.global_batch 32 is no multiple of train.micro_batch 12; the nearest are 24 and 36, or "
            "train.micro_batch 8 or 16");
  EXPECT_THAT(refusal(4, 8), HasSubstr("; the nearest are 8, or train.micro_batch 4"));
  EXPECT_THAT(refusal(7, 2), HasSubstr("; the nearest are 6 and 8, or train.micro_batch 1 or 7"));
  EXPECT_EQ(refusal(36, 12), "no UserError");
}

TEST(RunConfig, ImpossibleLayoutsAreRefusedWithTheReason) {
  EXPECT_EQ(message_of(minimal(), {"train.global_batch=16", "train.micro_batch=4", "parallel.data_parallel=3"}),
            "run.toml: train.global_batch 16 is no multiple of train.micro_batch 4 x parallel.data_parallel 3; the "
            "nearest are 12 and 24");
  EXPECT_THAT(message_of(minimal(), {"parallel.tensor_parallel=3"}),
              HasSubstr("parallel.tensor_parallel 3 does not divide model.num_attention_heads 4"));
  EXPECT_THAT(message_of(minimal(), {"parallel.pipeline_parallel=3"}),
              HasSubstr("parallel.pipeline_parallel 3 exceeds model.num_hidden_layers 2"));
  EXPECT_THAT(message_of(minimal(), {"parallel.sequence_parallel=true"}), HasSubstr("parallel.tensor_parallel"));
}

TEST(RunConfig, TheLayoutIsWhatTheSectionsSay) {
  const RunConfig config = parse(minimal(R"(
global_batch = 24
micro_batch = 2
recompute = "full"
[parallel]
data_parallel = 3
tensor_parallel = 2
pipeline_parallel = 2
schedule = "zb-h1"
sequence_parallel = true
zero_stage = 1
wait_limit = "2m"
)"));
  EXPECT_EQ(config.wait_limit, 120);
  const ParallelStrategy expected{.data_parallel = 3,
                                  .tensor_parallel = 2,
                                  .pipeline_parallel = 2,
                                  .virtual_stages = 1,
                                  .schedule = PipelineSchedule::zb_h1,
                                  .sequence_parallel = true,
                                  .zero_stage = 1,
                                  .recompute = Recompute::full};
  EXPECT_EQ(config.parallel, expected);
  EXPECT_EQ(configuration_of(config), (Configuration{expected, 24, 2}));
  const RunConfig interleaved = parse(concat(model_section, "num_key_value_heads = 4\n", minimal_rest),
                                      {"model.num_hidden_layers=4", "parallel.pipeline_parallel=2",
                                       "parallel.virtual_stages=2", "parallel.schedule=interleaved"});
  EXPECT_EQ(interleaved.parallel.virtual_stages, 2);
}

// Lines of [cluster] that give the compute rate on the virtual clock.
const std::vector<std::string> timed_cluster = {
    "cluster.ranks_per_node=2", "cluster.within_node={ latency_microseconds = 1, gigabytes_per_second = 8 }",
    "cluster.between_nodes={ latency_microseconds = 2, gigabytes_per_second = 4 }", "cluster.teraflops_per_rank=0.05",
    "cluster.clock=virtual"};

TEST(RunConfig, WhatToChooseAmongIsListed) {
  std::vector<std::string> settings = {"adapt.policy=static",   "adapt.global_batches=[8, 16]",
                                       "adapt.micro_batches=2", "adapt.schedules=['1f1b', 'zb-h1']",
                                       "adapt.recomputes=full", "adapt.sequence_parallel=[true, false]",
                                       "adapt.zero_stages=[1]"};
  settings.insert(settings.begin(), timed_cluster.begin(), timed_cluster.end());
  const AdaptConfig adapt = parse(minimal(), settings).adapt;
  EXPECT_EQ(adapt.policy, PolicyKind::fixed);
  EXPECT_THAT(adapt.global_batches, ElementsAre(8, 16));
  EXPECT_THAT(adapt.micro_batches, ElementsAre(2));
  EXPECT_THAT(adapt.schedules, ElementsAre(PipelineSchedule::one_f_one_b, PipelineSchedule::zb_h1));
  EXPECT_THAT(adapt.recomputes, ElementsAre(Recompute::full));
  EXPECT_THAT(adapt.sequence_parallel, ElementsAre(true, false));
  EXPECT_THAT(adapt.zero_stages, ElementsAre(1));
}

TEST(RunConfig, PoliciesSayWhatTheyNeed) {
  const auto refusal = [](std::vector<std::string> overrides, bool timed = true) {
    if (timed) overrides.insert(overrides.begin(), timed_cluster.begin(), timed_cluster.end());
    return message_of(minimal(), overrides);
  };
  EXPECT_EQ(refusal({"adapt.policy=copus"}), "no UserError");
  EXPECT_THAT(
      refusal({"adapt.policy=copus"}, false),
      AllOf(HasSubstr("adapt.policy \"copus\""), HasSubstr("'copus profile --machine"), HasSubstr("cluster.config")));
  EXPECT_THAT(refusal({"adapt.policy=cona", "cluster.clock=wall"}), HasSubstr("matmul_teraflops"))
      << "teraflops_per_rank is of the virtual clock alone";
  EXPECT_THAT(refusal({"adapt.policy=copus", "noise_scale.enabled=false"}), HasSubstr("noise_scale.enabled is false"));
  EXPECT_THAT(refusal({"adapt.policy=olmo", "noise_scale.enabled=false"}), HasSubstr("noise_scale.enabled is false"));
  EXPECT_EQ(refusal({"adapt.policy=static", "noise_scale.enabled=false"}), "no UserError");
  EXPECT_THAT(refusal({"adapt.policy=static"}, false), HasSubstr("'copus profile --machine"))
      << "it logs the best candidates too";
  EXPECT_THAT(refusal({"adapt.policy=steps"}), AllOf(HasSubstr("adapt.schedule"), HasSubstr("0:32")));
  EXPECT_EQ(refusal({"adapt.policy=steps", "adapt.schedule='0:8 24:12'", "train.global_batch=8", "train.micro_batch=4"},
                    false),
            "no UserError")
      << "a schedule needs no description of the cluster's speed";
  EXPECT_THAT(refusal({"adapt.policy=steps", "adapt.schedule='0:16'", "train.global_batch=8"}),
              HasSubstr("set train.global_batch to 16"));
  EXPECT_THAT(
      refusal({"adapt.policy=steps", "adapt.schedule='0:8 24:12'", "train.global_batch=8", "train.micro_batch=8"}),
      AllOf(HasSubstr("adapt.schedule has batch 12"), HasSubstr("train.micro_batch 4 fits all")));
  EXPECT_THAT(refusal({"adapt.policy=steps", "adapt.schedule='0:8 8:16'", "train.global_batch=8"}),
              HasSubstr("two steps at least"));
  EXPECT_EQ(refusal({"adapt.policy=seesaw"}), "no UserError");
  EXPECT_THAT(refusal({"adapt.policy=seesaw", "optimizer.schedule=constant"}),
              AllOf(HasSubstr("\"seesaw\""), HasSubstr("optimizer.schedule \"constant\" never lowers it")));
  EXPECT_THAT(refusal({"adapt.policy=seesaw", "optimizer.schedule=wsd", "optimizer.decay_tokens=0"}),
              HasSubstr("\"wsd\" with optimizer.decay_tokens 0 never lowers it"));
  EXPECT_THAT(refusal({"adapt.policy=seesaw", "optimizer.min_lr_ratio=0.6"}),
              HasSubstr("optimizer.min_lr_ratio (0.6) keeps it above one half"));
  EXPECT_EQ(refusal({"adapt.policy=late-switch", "adapt.late_switch_batch=64"}), "no UserError");
  EXPECT_THAT(refusal({"adapt.policy=late-switch"}),
              AllOf(HasSubstr("adapt.late_switch_batch"), HasSubstr("it is not given")));
  EXPECT_THAT(refusal({"adapt.policy=late-switch", "adapt.late_switch_batch=32", "train.global_batch=32"}),
              HasSubstr("larger than train.global_batch (32); it is 32"));
  for (const char* policy : {"adapt.policy=ddp-norm", "adapt.policy=fsdp-norm"}) {
    EXPECT_THAT(refusal({policy, "parallel.zero_stage=3"}),
                AllOf(HasSubstr("parallel.data_parallel is 1"), HasSubstr("\"norm-test\"")));
  }
  EXPECT_EQ(refusal({"adapt.policy=ddp-norm", "parallel.data_parallel=2", "parallel.zero_stage=1"}), "no UserError");
  EXPECT_EQ(refusal({"adapt.policy=fsdp-norm", "parallel.data_parallel=2", "parallel.zero_stage=2"}), "no UserError");
  EXPECT_THAT(refusal({"adapt.policy=ddp-norm", "parallel.data_parallel=2", "parallel.zero_stage=2"}),
              AllOf(HasSubstr("whole gradients"), HasSubstr("\"fsdp-norm\"")));
  EXPECT_THAT(refusal({"adapt.policy=fsdp-norm", "parallel.data_parallel=2", "parallel.zero_stage=1"}),
              AllOf(HasSubstr("has whole ones"), HasSubstr("\"ddp-norm\"")));
  EXPECT_THAT(refusal({"adapt.policy=script"}), AllOf(HasSubstr("adapt.file"), HasSubstr("decisions.jsonl")));
  EXPECT_THAT(refusal({"adapt.policy=oracle"}), AllOf(HasSubstr("adapt.file"), HasSubstr("noise scale")));
  EXPECT_EQ(refusal({"adapt.policy=script", "adapt.file=d.jsonl"}), "no UserError");
  EXPECT_THAT(refusal({"adapt.advise=true"}), AllOf(HasSubstr("adapt.advise"), HasSubstr("adapt.policy")));
  EXPECT_THAT(refusal({"adapt.max_tensor_parallel=1", "parallel.tensor_parallel=2"}),
              AllOf(HasSubstr("adapt.max_tensor_parallel (1)"), HasSubstr("parallel.tensor_parallel 2")));
}

TEST(RunConfig, KeysAreListedInOrder) {
  const std::vector<std::string> keys = run_config_keys();
  EXPECT_EQ(keys.front(), "model.config");
  EXPECT_EQ(keys.back(), "log.tensorboard");
  EXPECT_THAT(keys, testing::IsSupersetOf({"model.num_key_value_heads", "data.train", "optimizer.lr"}));
}

TEST(RunConfig, TheExampleConfigurationsAreValid) {
  const std::string text = read_text_file(COPUS_SOURCE "/configs/runs/quickstart.toml");
  const RunConfig config = parse_run_config(text, "quickstart.toml");
  EXPECT_EQ(config.data.document_separator, "\n\n\n");
  EXPECT_EQ(config.model.vocab_size, 256);
  EXPECT_EQ(parse(to_toml(config)), config);
}

}  // namespace
}  // namespace copus
