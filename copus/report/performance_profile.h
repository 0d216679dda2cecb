// profile.json: what steps of a model took on a cluster, with the predictions that they correct. Written by training
// and by `copus profile`; read by both and by `copus plan`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/performance/learning.h"

namespace copus {

// What a profile is of: all that decides how long a given configuration's step takes.
struct ProfileSubject {
  std::string architecture;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  bool tie_word_embeddings = false;
  int64_t sequence_length = 0;
  std::string precision;             // "fp32" or "bf16"
  std::string device;                // its name
  std::string cluster;               // a fingerprint of its description, but for how many ranks it has
  std::optional<std::string> clock;  // that showed the steps' seconds; empty in a subject that is asked for: any
  bool operator==(const ProfileSubject&) const = default;
};

ProfileSubject profile_subject(const ModelDescription& model, int64_t sequence_length, std::string precision,
                               const ClusterDescription& cluster, std::optional<ClockKind> clock);

struct PerformanceProfile {
  ProfileSubject subject;
  Knowledge knowledge;
  bool operator==(const PerformanceProfile&) const = default;
};

// Writes the file whole or not at all. Throws UserError if it cannot be written.
void write_profile(const std::filesystem::path& path, const PerformanceProfile& profile);

// Throws UserError when the file cannot be read, is damaged, or has another version.
PerformanceProfile read_profile(const std::filesystem::path& path);

// In what the two differ, for a person: "hidden_size is 512 there and 768 here". Empty where they do not.
std::optional<std::string> difference(const ProfileSubject& there, const ProfileSubject& here);

// What is known of `subject` by a file that a user has named. Throws UserError as read_profile does, and when the
// profile is of something else.
Knowledge read_knowledge(const std::filesystem::path& path, const ProfileSubject& subject);

// What earlier measurements say of the steps of a run.
struct StepTimeKnowledge {
  PerformanceProfile profile;
  std::string grounds;  // for people: what it goes by
};

// Of a run whose precision is not automatic; empty where nothing says how fast the cluster computes. What is known
// comes from `own_profile`, the run's own where it goes on (a path without a file: it has none), or else from
// cluster.profile. Throws UserError when either is damaged, and when the latter is of something else or there is
// nothing to correct; the former then only counts for nothing, since a run may go on with another cluster.
std::optional<StepTimeKnowledge> knowledge_of_run(const RunConfig& config, const std::filesystem::path& own_profile);

}  // namespace copus
