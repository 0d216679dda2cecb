#include "copus/train/run/resume_effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "copus/train/optimizer/update_rule.h"
#include "copus/train/run/run_plan.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* run_text = R"(
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
[data]
train = "corpus.txt"
[train]
sequence_length = 16
global_batch = 8
micro_batch = 4
max_steps = 20
[optimizer]
warmup_tokens = 0.1
decay_tokens = 0.2
)";

RunConfig run_with(const std::vector<std::string>& overrides) {
  return parse_run_config(run_text, "run.toml", overrides);
}

// Returns the effects for a run that is half done.
std::vector<std::string> effects_at_half_of(const RunConfig& then, const RunConfig& now) {
  TrainingState state;
  state.configuration = configuration_of(then);
  state.consumed_tokens = 10 * 8 * 16;
  state.elapsed_seconds = 50;
  state.optimizer = make_update_rule(then)->begin(static_cast<double>(then.train.global_batch));
  return describe_resume_effects(then, now, state, configuration_of(now));
}

struct Setting {
  std::string text;
  bool changes_rate;
};

// Each training setting that may change on resume, and whether the learning rate changes with it.
const std::vector<Setting> settings = {
    {"train.max_steps=40", true},
    {"train.max_tokens=2000", true},
    {"train.max_seconds=1000", false},  // while tokens limit the run, the schedule follows them
    {"train.step_batch=16", true},
    {"train.global_batch=16", true},  // by batch_scaling
    {"train.micro_batch=2", false},
    {"train.recompute=\"full\"", false},
    {"train.precision=\"fp32\"", false},
    {"train.clip_norm=0.5", false},
    {"train.threads=1", false},
    {"train.device=\"cuda\"", false},
    {"optimizer.lr=2e-3", true},
    {"optimizer.min_lr_ratio=0.5", true},
    {"optimizer.beta1=0.8", false},
    {"optimizer.beta2=0.9", false},
    {"optimizer.epsilon=1e-6", false},
    {"optimizer.weight_decay=0.2", false},
    {"optimizer.schedule=\"constant\"", true},
    {"optimizer.warmup_tokens=0.2", true},
    {"optimizer.decay_tokens=0.7", false},  // only for wsd
};

// Muon's settings, none of which changes the learning rate.
const std::vector<std::string> settings_of_muon = {
    "optimizer.momentum=0.9",
    "optimizer.nesterov=false",
    "optimizer.newton_schulz=\"polar_express\"",
    "optimizer.newton_schulz_steps=6",
    "optimizer.newton_schulz_precision=\"fp32\"",
    "optimizer.update_scale=\"original\"",
    "optimizer.adamw_lr_ratio=0.5",
};

TEST(ResumeEffects, NoSettingChangesTheRateUnannounced) {
  for (const auto& [text, changes_rate] : settings) {
    SCOPED_TRACE(text);
    RunConfig now = run_with({text});
    if (text == "train.global_batch=16") now.train.step_batch = now.optimizer.reference_batch = 8;  // as plan_run does
    const std::vector<std::string> lines = effects_at_half_of(run_with({}), now);
    if (changes_rate) {
      EXPECT_THAT(lines, Contains(HasSubstr("the learning rate at this point is")));
    } else {
      EXPECT_THAT(lines, Not(Contains(HasSubstr("learning rate"))));
    }
  }
}

TEST(ResumeEffects, NoSettingOfMuonChangesTheRateUnannounced) {
  const std::string muon = "optimizer.kind=muon";
  for (const std::string& text : settings_of_muon) {
    EXPECT_THAT(effects_at_half_of(run_with({muon}), run_with({muon, text})), IsEmpty()) << text;
  }
}

TEST(ResumeEffects, TheListHasEverySettingOfTrainingThatMayChange) {
  std::set<std::string> listed;
  const auto list = [&](const std::string& text) { listed.insert(text.substr(0, text.find('='))); };
  for (const Setting& setting : settings) list(setting.text);
  for (const std::string& text : settings_of_muon) list(text);
  for (const std::string& key : run_config_keys()) {
    const bool is_of_training = key.starts_with("train.") || key.starts_with("optimizer.");
    if (!is_of_training || change_on_resume(key) == ChangeOnResume::never) continue;
    EXPECT_TRUE(listed.contains(key)) << key;
  }
}

TEST(ResumeEffects, WhatChangesIsSaid) {
  EXPECT_THAT(effects_at_half_of(run_with({}), run_with({})), IsEmpty());
  EXPECT_THAT(effects_at_half_of(run_with({"optimizer.schedule=\"constant\""}),
                                 run_with({"optimizer.schedule=\"constant\"", "train.max_steps=40"})),
              ElementsAre("the run now ends after 5120 tokens (was after 2560 tokens)",
                          "25 % of the run is now done (was 50 %)"));
  EXPECT_THAT(effects_at_half_of(run_with({"train.max_steps=0", "train.max_seconds=100"}),
                                 run_with({"train.max_steps=0", "train.max_seconds=200"})),
              ElementsAre(HasSubstr("after 3 min 20 s of training"), HasSubstr("25 %"), HasSubstr("learning rate")));
  EXPECT_THAT(effects_at_half_of(run_with({}), run_with({"train.global_batch=4"})),
              Contains(HasSubstr("lower for some steps, since the batch shrinks")));
  const std::string signum = "optimizer.kind=signum";  // whose updates do not grow in a smaller batch
  EXPECT_THAT(effects_at_half_of(run_with({signum}), run_with({signum, "train.global_batch=4"})),
              AllOf(Contains(HasSubstr("learning rate")), Not(Contains(HasSubstr("lower for some steps")))));
}

}  // namespace
}  // namespace copus
