// Reads and writes profile.json: measured step times of a model on a cluster, with the predictions that they correct.
// Training and `copus profile` read and write profiles; `copus plan` only reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/performance/measured/learning.h"

namespace copus {

// Everything that determines how long a step takes in a given configuration. A profile is valid for one such subject.
struct ProfileSubject {
  std::string architecture;
  ModelDescription sizes = {};  // those of visit_sizes; the rest is not compared
  bool tie_word_embeddings = false;
  int64_t sequence_length = 0;
  std::string precision;             // "fp32" or "bf16"
  std::string device;                // name of the device
  std::string cluster;               // a fingerprint of its description without the number of ranks
  std::optional<std::string> clock;  // the clock that measured the steps; empty in a query: any
  bool operator==(const ProfileSubject&) const = default;
};

ProfileSubject profile_subject(const ModelDescription& model, int64_t sequence_length, std::string precision,
                               const ClusterDescription& cluster, std::optional<ClockKind> clock);

struct PerformanceProfile {
  ProfileSubject subject;
  Knowledge knowledge;
  bool operator==(const PerformanceProfile&) const = default;
};

// Writes the file whole or not at all. Throws UserError if that fails.
void write_profile(const std::filesystem::path& path, const PerformanceProfile& profile);

// Reads a profile. Throws UserError if the file cannot be read, is damaged, or is of a different version.
PerformanceProfile read_profile(const std::filesystem::path& path);

// Describes, for the user, how the subjects of two profiles differ: "hidden_size is 512 there and 768 here". Empty if
// they are equal.
std::optional<std::string> difference(const ProfileSubject& there, const ProfileSubject& here);

// Reads a profile that a user named and returns its step times for `subject`. Throws UserError as read_profile does, or
// if the profile has a different subject.
Knowledge read_knowledge(const std::filesystem::path& path, const ProfileSubject& subject);

// Known step times of a run from earlier measurements.
struct StepTimeKnowledge {
  PerformanceProfile profile;
  std::string grounds;  // its sources in words, for the user
};

// Returns the known step times for a run whose precision is not automatic; nothing if the cluster's speed is unknown.
// They come from the file `own_profile`, which a resumed run has, or otherwise from cluster.profile. An own profile
// with a different subject is ignored, because a run may be resumed on a different cluster.
//
// Throws UserError if either profile is damaged. Also throws UserError if cluster.profile has a different subject, or
// if it is set although step times cannot be predicted from the cluster's description.
std::optional<StepTimeKnowledge> knowledge_of_run(const RunConfig& config, const std::filesystem::path& own_profile);

}  // namespace copus
