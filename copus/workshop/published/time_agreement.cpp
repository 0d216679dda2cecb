#include "copus/workshop/published/time_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "copus/base/error.h"
#include "copus/performance/step_time.h"
#include "copus/workshop/published/systems.h"

namespace copus {

namespace {

double tokens_per_gpu_and_step(const PublishedRun& run) {
  return static_cast<double>(run.configuration.global_batch * run.sequence_length) / static_cast<double>(run.num_gpus);
}

double throughput(const JudgedRun& run, double seconds) { return tokens_per_gpu_and_step(run.run) / seconds; }

double absolute_error(const JudgedRun& run) { return std::abs(run.measured_seconds / run.predicted_seconds - 1); }

JudgedSet& set_named(std::vector<JudgedSet>& sets, const std::string& name, const std::string& group) {
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const JudgedSet& set) { return set.name == name; });
  if (found != sets.end()) return *found;
  JudgedSet set;
  set.name = name;
  set.group = group;
  return sets.emplace_back(std::move(set));
}

void predict_sets(const std::vector<PublishedRun>& runs,
                  const std::function<ClusterDescription(const std::string&)>& find_cluster,
                  PublishedAgreement& agreement) {
  std::map<std::string, ClusterDescription> clusters;
  for (const PublishedRun& run : runs) {
    if (run.rank_set.empty()) {
      ++agreement.left_out["in no rank set"];
      continue;
    }
    const PublishedCase described = describe_published(run);
    if (!described.left_out.empty()) {
      ++agreement.left_out[described.left_out];
      continue;
    }
    if (!clusters.contains(described.cluster)) clusters[described.cluster] = find_cluster(described.cluster);
    ClusterDescription cluster = clusters[described.cluster];
    if (run.gpus_per_node > 0) cluster.ranks_per_node = run.gpus_per_node;
    StepTimeModel model(described.model, run.sequence_length, cluster, described.system);
    JudgedRun judged;
    judged.run = run;
    judged.parts = model.predict(described.configuration);
    judged.measured_seconds = tokens_per_gpu_and_step(run) / *run.tokens_per_second_per_gpu;
    judged.nodes = nodes_of(cluster, run.num_gpus);
    judged.doubt = doubt_of(cluster, described.system, described.configuration);
    set_named(agreement.sets, run.rank_set, described.group).runs.push_back(std::move(judged));
  }
}

void find_layouts(JudgedSet& set) {
  std::map<std::pair<ParallelStrategy, int64_t>, size_t> fastest;  // by layout and virtual stages
  for (size_t i = 0; i < set.runs.size(); ++i) {
    const ParallelStrategy& strategy = set.runs[i].run.configuration.strategy;
    const auto [found, is_new] = fastest.emplace(std::pair(layout_of(strategy), strategy.virtual_stages), i);
    if (!is_new && set.runs[i].measured_seconds < set.runs[found->second].measured_seconds) found->second = i;
  }
  for (const auto& [layout, index] : fastest) set.layouts.push_back(index);
}

// Within a set, all layouts have the same weight. The weight of the whole set is the square root of its number of
// layouts.
void fit(PublishedAgreement& agreement) {
  std::map<std::string, int64_t> sets_of_group;
  std::map<std::string, std::vector<FitSample>> samples;
  for (JudgedSet& set : agreement.sets) {
    set.is_fitted = sets_of_group[set.group]++ % 2 == 0;
    if (!set.is_fitted) continue;
    const double weight = 1 / std::sqrt(static_cast<double>(set.layouts.size()));
    for (const size_t index : set.layouts) {
      samples[set.group].push_back({set.runs[index].parts, set.runs[index].measured_seconds, weight});
    }
  }
  for (const auto& [group, of_group] : samples) agreement.constants[group] = fit_constants(of_group);
}

// Returns the number of nodes of the largest fitted run, by group.
std::map<std::string, int64_t> fitted_nodes(const std::vector<JudgedSet>& sets) {
  std::map<std::string, int64_t> nodes;
  for (const JudgedSet& set : sets) {
    if (!set.is_fitted) continue;
    for (const JudgedRun& run : set.runs) nodes[set.group] = std::max(nodes[set.group], run.nodes);
  }
  return nodes;
}

void judge(JudgedSet& set, const FittedConstants& constants, int64_t measured_nodes) {
  double in_range = 0;
  for (JudgedRun& run : set.runs) {
    run.predicted_seconds = corrected_seconds(constants, run.parts);
    run.doubt.stall_seconds *= constants.compute;
    run.doubt.beyond_measured = run.nodes > measured_nodes;
    run.doubt.relative_deviation =
        std::hypot(run.doubt.relative_deviation, extrapolation_deviation(run.nodes, measured_nodes));
    in_range += run.in_range();
  }
  set.share_in_range = in_range / static_cast<double>(set.runs.size());
  std::vector<double> predicted, measured, errors;
  for (const size_t index : set.layouts) {
    const JudgedRun& run = set.runs[index];
    predicted.push_back(throughput(run, run.predicted_seconds));
    measured.push_back(throughput(run, run.measured_seconds));
    errors.push_back(absolute_error(run));
  }
  set.median_absolute_error = median_of(errors);
  const auto uncorrected = [&set](size_t index) { return set.runs[index].parts.total(); };
  const size_t chosen = *std::min_element(set.layouts.begin(), set.layouts.end(), [&](size_t one, size_t other) {
    return uncorrected(one) < uncorrected(other);
  });
  set.uncorrected_slowdown = set.runs[chosen].measured_seconds / uncorrected(chosen);
  const bool has_order = set.layouts.size() > 1;
  set.kendall_tau = has_order ? kendall_tau(predicted, measured) : std::numeric_limits<double>::quiet_NaN();
  set.top1_regret = has_order ? top1_regret(predicted, measured) : std::numeric_limits<double>::quiet_NaN();
}

double mean_of_numbers(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

HalfSummary summarize(const std::vector<JudgedSet>& sets, bool fitted) {
  HalfSummary summary;
  std::vector<double> taus, regrets, layout_errors, errors, in_range;
  for (const JudgedSet& set : sets) {
    if (set.is_fitted != fitted) continue;
    ++summary.sets;
    taus.push_back(set.kendall_tau);
    regrets.push_back(set.top1_regret);
    for (const size_t index : set.layouts) layout_errors.push_back(absolute_error(set.runs[index]));
    for (const JudgedRun& run : set.runs) {
      errors.push_back(absolute_error(run));
      in_range.push_back(run.in_range());
    }
  }
  summary.mean_kendall_tau = mean_of_numbers(taus);
  summary.mean_top1_regret = mean_of_numbers(regrets);
  summary.median_absolute_error = median_of(layout_errors);
  summary.mean_absolute_error = mean_of_numbers(layout_errors);
  summary.median_absolute_error_all_runs = median_of(errors);
  summary.share_in_range = mean_of_numbers(in_range);
  return summary;
}

}  // namespace

PublishedAgreement judge_step_times(const std::vector<PublishedRun>& runs,
                                    const std::function<ClusterDescription(const std::string&)>& find_cluster) {
  PublishedAgreement agreement;
  predict_sets(runs, find_cluster, agreement);
  for (JudgedSet& set : agreement.sets) find_layouts(set);
  fit(agreement);
  const std::map<std::string, int64_t> measured_nodes = fitted_nodes(agreement.sets);
  for (JudgedSet& set : agreement.sets) {
    judge(set, agreement.constants.at(set.group), measured_nodes.at(set.group));
  }
  agreement.held_out = summarize(agreement.sets, false);
  agreement.fitted = summarize(agreement.sets, true);
  std::vector<double> slowdowns;
  for (const JudgedSet& set : agreement.sets) slowdowns.push_back(set.uncorrected_slowdown);
  if (!slowdowns.empty()) agreement.uncorrected_slowdown = quartiles(slowdowns);
  return agreement;
}

}  // namespace copus
