#include "copus/train/step_time_knowledge.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/orchestrator/step_time_learner.h"

namespace copus {

namespace {

std::string after(const Knowledge& knowledge, const std::string& path) {
  int64_t steps = 0;
  for (const auto& [configuration, cell] : knowledge.cells()) steps += cell.steps();
  return concat("after ", steps, " steps in ", path);
}

}  // namespace

std::optional<StepTimeKnowledge> knowledge_of_run(const RunConfig& config, const std::filesystem::path& own_profile) {
  if (!is_speed_known(config.cluster)) {
    if (config.cluster.profile.empty()) return std::nullopt;
    throw UserError(concat("cluster.profile ", config.cluster.profile, " corrects predictions, and nothing is ",
                           "predicted where the cluster's description does not say how fast it computes; describe its ",
                           "device (matmul_teraflops), or leave the profile out"));
  }
  StepTimeKnowledge known;
  known.profile.subject =
      profile_subject(config.model, config.train.sequence_length, std::string(to_string(config.train.precision)),
                      config.cluster.description, config.cluster.clock);
  known.grounds = "nothing was measured yet";
  if (!own_profile.empty() && std::filesystem::exists(own_profile)) {
    PerformanceProfile profile = read_profile(own_profile);
    const auto reason = difference(profile.subject, known.profile.subject);
    if (!reason) {
      known.profile.knowledge = std::move(profile.knowledge);
      known.grounds = after(known.profile.knowledge, own_profile.string());
      return known;
    }
    known.grounds = concat("what was measured before does not count: ", *reason);
  }
  if (!config.cluster.profile.empty()) {
    known.profile.knowledge = read_knowledge(config.cluster.profile, known.profile.subject);
    known.grounds = after(known.profile.knowledge, config.cluster.profile);
  }
  return known;
}

}  // namespace copus
