#include "copus/train/trainer/evaluation.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "copus/base/error.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/trainer/gradient_source.h"

namespace copus {

namespace {

// Returns the number of held-out sequences. It includes sequences without loss that pad the last samples, if these are
// too few for sequence-parallel ranks to share their tokens evenly.
int64_t fill_up(Batch& batch, int64_t sequences, const Configuration& configuration, int64_t sequence_length) {
  const ParallelStrategy& strategy = configuration.strategy;
  if (!strategy.sequence_parallel || sequences * sequence_length % strategy.tensor_parallel == 0) return sequences;
  batch.tokens.resize(configuration.micro_batch * sequence_length, 0);
  batch.targets.resize(batch.tokens.size(), ignored_target);
  if (!batch.document_starts.empty()) batch.document_starts.resize(batch.tokens.size(), 0);
  return configuration.micro_batch;
}

// A micro-batch of an evaluation.
struct EvaluationBatch {
  size_t part;
  int64_t first, count;  // samples of the part's source
};

std::vector<EvaluationBatch> batches_of(const std::vector<HeldOutPart>& parts, int64_t micro_batch) {
  std::vector<EvaluationBatch> batches;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (int64_t first = 0; first < parts[part].samples; first += micro_batch) {
      batches.push_back({part, first, std::min(micro_batch, parts[part].samples - first)});
    }
  }
  return batches;
}

// Weights the sources' losses. A source without tokens that carry loss does not count.
std::optional<HeldOutLoss> mean_of(const std::vector<HeldOutPart>& parts,
                                   const std::vector<std::optional<double>>& losses, const Dataset& dataset) {
  HeldOutLoss result;
  double sum = 0, weights = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!losses[i]) continue;
    sum += parts[i].weight * *losses[i];
    weights += parts[i].weight;
    result.sources.push_back({dataset.held_out_sources()[static_cast<size_t>(parts[i].source)].name, *losses[i]});
  }
  if (weights == 0) return std::nullopt;
  result.mean = sum / weights;
  const size_t sources = dataset.held_out_sources().size();
  if (sources < 2 || sources > most_logged_sources) result.sources.clear();
  return result;
}

}  // namespace

int64_t samples_of_evaluation(const RunConfig& config, const Dataset& dataset) {
  const int64_t all = dataset.held_out_samples();
  if (config.evaluate.max_batches == 0) return all;
  // Using the configuration file's micro-batch keeps the samples the same when the current micro-batch changes.
  return std::min(all, config.evaluate.max_batches * config.train.micro_batch);
}

// Evaluates the held-out data. A micro-batch has samples of one source only. In each round, every data-parallel rank
// gets one micro-batch.
std::optional<HeldOutLoss> evaluate_held_out(RankTraining& training, const StopQuestion& stop) {
  const RunConfig& config = training.config;
  const Dataset& dataset = training.dataset;
  training.recorder.be_at(concat("evaluation after step ", training.state.step));
  const Configuration executed = training.executed();
  const ParallelStrategy& strategy = executed.strategy;
  RankGroups& groups = training.model->groups;
  const std::vector<HeldOutPart> parts = dataset.held_out_parts(samples_of_evaluation(config, dataset));
  const std::vector<EvaluationBatch> batches = batches_of(parts, executed.micro_batch);
  std::vector<LossSum> sums(parts.size());
  for (int64_t round = 0; round < std::ssize(batches); round += strategy.data_parallel) {
    training.stop_reason = agree_on_stop(stop(), groups.everyone());
    if (training.stop_reason != StopReason::none) return std::nullopt;
    const int64_t own = round + groups.here().data;
    // With ZeRO-3 the ranks gather weights together, so a rank without samples repeats the round's first micro-batch to
    // take part in the gathers.
    const bool has_samples = own < std::ssize(batches);
    if (!has_samples && !strategy.cuts_weights()) continue;
    const auto& [part, first, count] = batches[static_cast<size_t>(has_samples ? own : round)];
    Batch batch = dataset.held_out_batch(parts[part].source, first, count);
    const int64_t sequences = fill_up(batch, count, executed, config.train.sequence_length);
    const ExactSum of_batch = training.model->executor.evaluate(to_micro_batch(batch, sequences, 1, training.device));
    if (!has_samples) continue;
    sums[part].tokens += batch.loss_tokens;
    sums[part].loss.add(of_batch);
  }
  // Among the ranks that have processed a micro-batch, one counts it.
  const bool counts = groups.here().tensor == 0 && groups.here().pipeline + 1 == strategy.pipeline_parallel;
  if (!counts) sums.assign(parts.size(), {});
  return mean_of(parts, agree_on_mean_losses(sums, groups.everyone()), dataset);
}

}  // namespace copus
