// Which rank writes which tensors of a checkpoint, and in which files. A pure function: every rank computes the same
// plan alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

// A whole fp32 tensor of a checkpoint.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool is_weight = true;  // otherwise a slot of the optimizer
  // Ranks that have more of the tensor at hand than others, or as much; may be empty.
  std::vector<int64_t> at_hand = {};

  int64_t bytes() const;
};

// The name of a parameter's slot in a checkpoint: <slot>.<parameter>, such as exp_avg.model.norm.weight.
std::string optimizer_tensor_name(const OptimizerSlot& slot, const std::string& parameter);

// Lists what a checkpoint of a model holds: the weights as list_stored_tensors() has them, then for every parameter in
// canonical order the optimizer's first slot, then the second, and so on.
std::vector<CheckpointTensor> list_checkpoint_tensors(const ModelDescription& model,
                                                      const std::vector<OptimizerSlot>& slots);

// A safetensors file of a checkpoint.
struct CheckpointFile {
  std::string name;
  int64_t writer = 0;            // world rank
  std::vector<int64_t> tensors;  // indices into CheckpointPlan::tensors, in the order of their bytes in the file
};

struct CheckpointPlan {
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointFile> files;  // those of weights first

  // Bytes of all tensors.
  int64_t bytes() const;
  // Ranks that write something, ascending.
  std::vector<int64_t> writers() const;
  // Tensors that a rank writes, in the order in which it does.
  std::vector<int64_t> tensors_of(int64_t writer) const;
  // The index of the files of weights; empty where there is only one, which has none.
  std::string model_index() const;
};

struct CheckpointLimits {
  // A file holds at most so many bytes of tensors, or one tensor that alone is larger.
  int64_t file_bytes = int64_t{1} << 30;
  // So few bytes are not worth another writer: it costs two more files, and each of them a sync.
  int64_t bytes_per_writer = int64_t{16} << 20;
};

// Spreads the tensors over the ranks: the largest first, each to a writer that has it at hand, as long as that does not
// give it more than its share of all bytes, and otherwise to the one with least. So no rank writes more than its share
// and one tensor.
CheckpointPlan plan_checkpoint(std::vector<CheckpointTensor> tensors, int64_t num_ranks,
                               const CheckpointLimits& limits = {});

}  // namespace copus
