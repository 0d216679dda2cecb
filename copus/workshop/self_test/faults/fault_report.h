// Writes the output of `copus selftest --faults`, as text or as one JSON object. The text has a line for each run and
// each failure. At the end it says how soon the job recovered from each kind of fault.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "copus/workshop/self_test/faults/fault_test.h"

namespace copus {

class FaultReport : public FaultListener {
 public:
  FaultReport(const FaultTestOptions& options, bool json);

  void add(const FaultOutcome& outcome) override;
  void add(const FaultedRun& run) override;
  void finish(double seconds);

  bool passed() const { return passed_; }

 private:
  const bool json_;
  const FaultTestOptions options_;
  bool passed_ = true;
  std::vector<FaultOutcome> outcomes_;
  nlohmann::json runs_ = nlohmann::json::array();

  void tell(const char* what, bool ok, const std::string& text) const;
};

}  // namespace copus
