#include "copus/workshop/measuring_run.h"

#include <optional>

#include "copus/base/numbers/philox.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

namespace {

constexpr int64_t lead_steps = 3;  // from the announcement of a change to the change, so that ranks can prepare

}  // namespace

std::string random_letters(int64_t count) {
  std::string text;
  for (uint64_t i = 0; std::ssize(text) < count; ++i) {
    for (const uint32_t bits : philox(1, 0, i)) text.push_back(static_cast<char>('a' + bits % 26));
  }
  return text;
}

RunConfig endless_run(const ModelDescription& model, const std::string& corpus, int64_t sequence_length) {
  RunConfig config;
  config.model = model;
  config.data.train = {{.path = corpus}};
  config.data.held_out_fraction = 0;
  config.train.sequence_length = sequence_length;
  config.train.max_steps = 1000000;
  config.execution.precision = Precision::fp32;
  config.execution.threads = 1;
  config.optimizer.schedule = LearningRateSchedule::constant;
  return config;
}

SwitchReport change_configuration(Trainer& trainer, const World& world, const Configuration& target) {
  if (world.rank() == 0) {
    trainer.announce({.configuration = target, .commit_after_step = trainer.state().step + lead_steps});
  }
  std::optional<SwitchReport> report;
  while (!report) {
    trainer.step();
    report = trainer.switch_if_due();
  }
  return *report;
}

}  // namespace copus
