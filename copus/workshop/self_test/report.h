// The output of `copus selftest`: a line for each finding, at once, or one JSON object at the end.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/comm/job/start/launcher.h"
#include "copus/workshop/self_test/self_test.h"

namespace copus {

class SelfTestReport final : public SelfTestListener {
 public:
  // Report of a rank of the job that `environment` describes; rank 0 prints.
  SelfTestReport(const RankEnvironment& environment, bool json) : environment_(environment), json_(json) {}

  bool passed() const override { return passed_; }
  void introduce(const std::string& gpu_connection, const std::vector<RankPlace>& places, uint64_t seed) override;
  void add(const std::vector<GroupCheck>& checks) override;
  void add(const std::vector<GroupSpeed>& speeds) override;
  void add(const std::vector<RelayoutCheck>& checks) override;
  void add(const std::vector<LayoutCheck>& checks) override;
  void add(const CommunicatorCosts& costs) override;
  void finish(bool is_shortened, double seconds) override;

 private:
  void judge(bool ok, const char* what, const std::string& text);
  void tell(const char* what, const char* verdict, const std::string& text) const;

  RankEnvironment environment_;
  bool json_;
  uint64_t seed_ = 0;
  bool passed_ = true;
  nlohmann::json result_;
};

}  // namespace copus
