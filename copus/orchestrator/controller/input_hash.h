// A running hash of all inputs of decisions, bit by bit: if a replay differs anywhere, its next decision shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/base/files/hash.h"
#include "copus/orchestrator/observation.h"

namespace copus {

class InputHash {
 public:
  // Adds a number. All numbers that are not finite hash alike, because a log stores them as null.
  void add(double value);
  void add(int64_t value);
  void add(const std::optional<double>& value);
  void add(const Configuration& configuration);
  void add(const Observation& observation);

  // Hash of everything so far.
  uint64_t value();
  // Restarts the hash with `value`, the previous hash, as first input. So a saved state needs only this number. From
  // then on, the hashes differ from those of a controller that does not restart.
  void restart_from(uint64_t value);

 private:
  void flush();

  Hasher hasher_;
  std::vector<uint64_t> words_;  // not yet in hasher_
};

}  // namespace copus
