// A run for tests on the virtual clock of a described cluster, without files.
#pragma once

#include "copus/config/run_config.h"

namespace copus {

// A configuration for two ranks on two nodes.
inline RunConfig small_run() {
  RunConfig config;
  config.model.vocab_size = 256;
  config.model.hidden_size = 64;
  config.model.intermediate_size = 128;
  config.model.num_layers = 2;
  config.model.num_heads = config.model.num_kv_heads = 4;
  config.model.head_dim = 16;
  config.train.sequence_length = 64;
  config.train.global_batch = 8;
  config.train.micro_batch = 2;
  config.execution.precision = Precision::fp32;
  config.parallel.data_parallel = 2;
  config.cluster.clock = ClockKind::virtual_time;
  config.cluster.description.ranks_per_node = 1;
  config.cluster.description.within_node = {1e-6, 1e9};
  config.cluster.description.between_nodes = {1e-6, 1e9};
  config.cluster.description.flops_per_second = 1e9;
  return config;
}

}  // namespace copus
