#include "copus/checkpoint/checkpoint_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/safetensors.h"
#include "copus/checkpoint/shards.h"
#include "copus/description/stored_tensors.h"

namespace copus {
namespace {

// Chooses the ranks that write: as many as possible, while each of them gets at least `bytes_per_writer`. They are
// spread evenly over all ranks and therefore over the nodes.
std::vector<int64_t> choose_writers(int64_t bytes, int64_t num_ranks, int64_t bytes_per_writer) {
  const int64_t count = std::clamp<int64_t>(bytes / bytes_per_writer, 1, num_ranks);
  std::vector<int64_t> writers;
  for (int64_t i = 0; i < count; ++i) writers.push_back(i * num_ranks / count);
  return writers;
}

// Assigns every tensor to an index into `writers`.
std::vector<size_t> assign(const std::vector<CheckpointTensor>& tensors, int64_t all_bytes,
                           const std::vector<int64_t>& writers) {
  std::vector<size_t> largest_first(tensors.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::ranges::stable_sort(largest_first, std::greater(), [&](size_t tensor) { return tensors[tensor].bytes(); });
  const auto num_writers = static_cast<int64_t>(writers.size());
  const int64_t share = (all_bytes + num_writers - 1) / num_writers;
  std::vector<int64_t> load(writers.size(), 0);
  std::vector<size_t> assigned(tensors.size());
  for (const size_t tensor : largest_first) {
    const int64_t bytes = tensors[tensor].bytes();
    size_t chosen = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
    bool is_at_hand = false;
    for (const int64_t rank : tensors[tensor].at_hand) {
      const auto found = std::ranges::lower_bound(writers, rank);
      if (found == writers.end() || *found != rank) continue;
      const auto writer = static_cast<size_t>(found - writers.begin());
      if (load[writer] + bytes > share || (is_at_hand && load[writer] >= load[chosen])) continue;
      chosen = writer;
      is_at_hand = true;
    }
    load[chosen] += bytes;
    assigned[tensor] = chosen;
  }
  return assigned;
}

// Groups each writer's weights, or slots, into files, and names them in the order of their first tensors.
std::vector<CheckpointFile> group(const std::vector<CheckpointTensor>& tensors, const std::vector<size_t>& assigned,
                                  const std::vector<int64_t>& writers, bool weights, int64_t file_bytes) {
  const std::string_view stem = weights ? model_stem : optimizer_stem;
  std::vector<CheckpointFile> files;
  for (size_t writer = 0; writer < writers.size(); ++writer) {
    std::vector<int64_t> mine;
    std::vector<uint64_t> sizes;
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      if (assigned[tensor] != writer || tensors[tensor].is_weight != weights) continue;
      mine.push_back(static_cast<int64_t>(tensor));
      sizes.push_back(static_cast<uint64_t>(tensors[tensor].bytes()));
    }
    if (mine.empty()) continue;
    for (const Shard& shard : plan_shards(sizes, file_bytes, stem)) {
      const auto first = mine.begin() + static_cast<int64_t>(shard.first);
      files.push_back(
          {.name = "", .writer = writers[writer], .tensors = {first, first + static_cast<int64_t>(shard.count)}});
    }
  }
  std::ranges::sort(files, {}, [](const CheckpointFile& file) { return file.tensors.front(); });
  for (size_t i = 0; i < files.size(); ++i) files[i].name = shard_name(stem, i, files.size());
  if (weights && files.size() == 1) files.front().name = single_model_file_name;
  return files;
}

}  // namespace

int64_t CheckpointTensor::bytes() const { return count_elements(shape) * size_of(DType::f32); }

std::string optimizer_tensor_name(const OptimizerSlot& slot, const std::string& parameter) {
  return slot.name + "." + parameter;
}

std::vector<CheckpointTensor> list_checkpoint_tensors(const ModelDescription& model,
                                                      const std::vector<OptimizerSlot>& slots) {
  const std::vector<ParameterInfo> parameters = list_parameters(model);
  std::vector<CheckpointTensor> tensors;
  for (const StoredTensor& stored : list_stored_tensors(model)) {
    tensors.push_back({.name = stored.name, .shape = stored.shape});
  }
  for (const OptimizerSlot& slot : slots) {
    for (const ParameterInfo& parameter : parameters) {
      tensors.push_back(
          {.name = optimizer_tensor_name(slot, parameter.name), .shape = parameter.shape, .is_weight = false});
    }
  }
  return tensors;
}

int64_t CheckpointPlan::bytes() const {
  int64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

std::vector<int64_t> CheckpointPlan::writers() const {
  std::set<int64_t> writers;
  for (const CheckpointFile& file : files) writers.insert(file.writer);
  return {writers.begin(), writers.end()};
}

std::vector<int64_t> CheckpointPlan::tensors_of(int64_t writer) const {
  std::vector<int64_t> mine;
  for (const CheckpointFile& file : files) {
    if (file.writer == writer) mine.insert(mine.end(), file.tensors.begin(), file.tensors.end());
  }
  return mine;
}

std::string CheckpointPlan::model_index() const {
  std::map<std::string, std::string> file_of_tensor;
  uint64_t bytes = 0;
  bool has_one_file = true;
  for (const CheckpointFile& file : files) {
    for (const int64_t tensor : file.tensors) {
      if (!tensors[tensor].is_weight) continue;
      has_one_file = has_one_file && file.name == single_model_file_name;
      file_of_tensor[tensors[tensor].name] = file.name;
      bytes += static_cast<uint64_t>(tensors[tensor].bytes());
    }
  }
  return has_one_file ? "" : make_model_index(file_of_tensor, bytes);
}

CheckpointPlan plan_checkpoint(std::vector<CheckpointTensor> tensors, int64_t num_ranks,
                               const CheckpointLimits& limits) {
  COPUS_CHECK(num_ranks >= 1 && limits.file_bytes >= 1 && limits.bytes_per_writer >= 1);
  std::set<std::string_view> names;
  for (const CheckpointTensor& tensor : tensors) {
    COPUS_CHECK(names.insert(tensor.name).second, "two tensors are called ", tensor.name);
  }
  CheckpointPlan plan;
  plan.tensors = std::move(tensors);
  const int64_t bytes = plan.bytes();
  const std::vector<int64_t> writers = choose_writers(bytes, num_ranks, limits.bytes_per_writer);
  const std::vector<size_t> assigned = assign(plan.tensors, bytes, writers);
  for (const bool weights : {true, false}) {
    std::vector<CheckpointFile> files = group(plan.tensors, assigned, writers, weights, limits.file_bytes);
    std::ranges::move(files, std::back_inserter(plan.files));
  }
  return plan;
}

}  // namespace copus
