// A running hash of everything that decisions are made from: bit by bit, so that a replay that differs anywhere shows
// it at the next decision.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/base/hash.h"
#include "copus/orchestrator/observation.h"

namespace copus {

class InputHash {
 public:
  // Adds a number. Numbers that are not finite count alike: a log keeps all of them as null.
  void add(double value);
  void add(int64_t value);
  void add(const std::optional<double>& value);
  void add(const Configuration& configuration);
  void add(const Observation& observation);

  // Hash of everything so far.
  uint64_t value();
  // Goes on from the hash of everything so far, so that no more than this number needs to be kept. The hashes that
  // follow are others than without.
  void restart_from(uint64_t value);

 private:
  void flush();

  Hasher hasher_;
  std::vector<uint64_t> words_;  // not yet in hasher_
};

}  // namespace copus
