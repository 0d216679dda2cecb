#include "copus/report/files/performance_profile.h"

#include <algorithm>
#include <span>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/hash.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/report/json_fields.h"
#include "copus/report/knowledge_json.h"

namespace copus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* format_name = "copus-profile";
constexpr int64_t format_version = 1;

// Returns the fingerprint of a cluster. It depends on all bits of the curves' points. Every member may affect step
// times, so this function does not compile until a new member is listed here.
std::string fingerprint(const ClusterDescription& cluster) {
  const auto curve = [](const Curve& points) {
    OrderedJson list = OrderedJson::array();
    for (const auto& [at, value] : points.points()) list.push_back({at, value});
    return list;
  };
  const auto link = [&](const Link& described) {
    const auto& [latency, bandwidth, efficiency, tree] = described;
    return OrderedJson{latency, bandwidth, curve(efficiency), tree};
  };
  const auto& [num_ranks, ranks_per_node, devices_per_node, within_node, between_nodes, rails, network_by_nodes,
               measured_nodes, flops_per_second, device, communicators] = cluster;
  static_cast<void>(num_ranks);      // more nodes of the same kind change no step time
  static_cast<void>(communicators);  // communicators are opened between steps
  static_cast<void>(measured_nodes);
  const auto& [name, memory, memory_speed, peak, matmul, by_rows, by_columns, by_depth, attention_forward,
               attention_backward, launch] = device;
  static_cast<void>(memory);  // the amount of memory changes no step time
  static_cast<void>(peak);    // nor does the peak of the data sheet
  const std::string text = OrderedJson{ranks_per_node,
                                       devices_per_node,
                                       link(within_node),
                                       link(between_nodes),
                                       rails,
                                       curve(network_by_nodes),
                                       flops_per_second,
                                       name,
                                       memory_speed,
                                       matmul,
                                       curve(by_rows),
                                       curve(by_columns),
                                       curve(by_depth),
                                       curve(attention_forward),
                                       curve(attention_backward),
                                       launch}
                               .dump();
  return hash_hex(std::as_bytes(std::span(text)));
}

template <class Subject, class Visitor>
void subject_fields(Subject& subject, Visitor&& visit) {
  visit("architecture", subject.architecture);
  visit_sizes(visit, subject.sizes);
  visit("tie_word_embeddings", subject.tie_word_embeddings);
  visit("sequence_length", subject.sequence_length);
  visit("precision", subject.precision);
  visit("device", subject.device);
  visit("cluster", subject.cluster);
}

OrderedJson to_json(const ProfileSubject& subject) {
  JsonFieldWriter writer;
  subject_fields(subject, writer);
  OrderedJson object = writer.object();
  object["clock"] = subject.clock ? OrderedJson(*subject.clock) : OrderedJson(nullptr);
  return object;
}

PerformanceProfile profile_from_json(const Json& json) {
  PerformanceProfile profile;
  const JsonFieldReader subject(json_member(json, "subject"));
  subject_fields(profile.subject, subject);
  subject("clock", profile.subject.clock.emplace());
  profile.knowledge = knowledge_from_json(json_member(json, "cells"));
  return profile;
}

std::string after(const Knowledge& knowledge, const std::string& path) {
  int64_t steps = 0;
  for (const auto& [configuration, cell] : knowledge.cells()) steps += cell.steps();
  return concat("after ", counted(steps, "step"), " in ", path);
}

}  // namespace

ProfileSubject profile_subject(const ModelDescription& model, int64_t sequence_length, std::string precision,
                               const ClusterDescription& cluster, std::optional<ClockKind> clock) {
  ProfileSubject subject;
  subject.architecture = to_string(model.architecture);
  visit_sizes([](const char*, int64_t& size, int64_t of_model) { size = of_model; }, subject.sizes, model);
  subject.tie_word_embeddings = model.tie_word_embeddings;
  subject.sequence_length = sequence_length;
  subject.precision = std::move(precision);
  subject.device = cluster.device.name;
  subject.cluster = fingerprint(cluster);
  if (clock) subject.clock = to_string(*clock);
  return subject;
}

void write_profile(const std::filesystem::path& path, const PerformanceProfile& profile) {
  COPUS_CHECK(profile.subject.clock, "seconds are of some clock");
  OrderedJson json;
  json["format"] = format_name;
  json["version"] = format_version;
  json["subject"] = to_json(profile.subject);
  json["cells"] = to_json(profile.knowledge);
  write_file_durably(path, json_text(json, 1) + '\n');
}

PerformanceProfile read_profile(const std::filesystem::path& path) {
  const Json json = parse_json(read_text_file(path));
  try {
    if (const Json& format = json_member(json, "format"); format != format_name) {
      throw UserError(concat("\"format\" is ", format.dump()));
    }
    check_version(json, format_version);
    return profile_from_json(json);
  } catch (const UserError& error) {
    throw UserError(concat(path.string(), ": is no profile, or a damaged one: ", error.what(),
                           ". Expected a profile.json of `copus train` or `copus profile`: measure again with `copus ",
                           "profile`, or remove the file to go on without it."));
  }
}

std::optional<std::string> difference(const ProfileSubject& there, const ProfileSubject& here) {
  const OrderedJson theirs = to_json(there), ours = to_json(here);
  for (const auto& [name, our] : ours.items()) {
    const OrderedJson& their = theirs.at(name);
    if (their == our || (name == "clock" && our.is_null())) continue;
    if (name == "cluster") return "the description of the cluster is another one";
    return concat(name, " is ", their.dump(), " there and ", our.dump(), " here");
  }
  return std::nullopt;
}

Knowledge read_knowledge(const std::filesystem::path& path, const ProfileSubject& subject) {
  PerformanceProfile profile = read_profile(path);
  if (const auto reason = difference(profile.subject, subject)) {
    throw UserError(concat(path.string(), ": this profile was measured for something else: ", *reason,
                           ". Name one of the same model, sequence length, precision and cluster, measure it with ",
                           "`copus profile`, or leave the profile out."));
  }
  return std::move(profile.knowledge);
}

std::optional<StepTimeKnowledge> knowledge_of_run(const RunConfig& config, const std::filesystem::path& own_profile) {
  if (!is_speed_known(config.cluster.as_timed())) {
    if (config.cluster.profile.empty()) return std::nullopt;
    throw UserError(concat("cluster.profile ", config.cluster.profile, " corrects predictions, and nothing is ",
                           "predicted where the cluster's description does not say how fast it computes; describe its ",
                           "device (matmul_teraflops), or leave the profile out"));
  }
  StepTimeKnowledge known;
  const PredictedJob job = predicted_job(config);
  known.profile.subject = profile_subject(job.model, job.sequence_length, std::string(to_string(job.precision)),
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
