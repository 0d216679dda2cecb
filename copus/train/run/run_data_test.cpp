#include "copus/train/run/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/testing/small_run.h"

namespace copus {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

class RunData : public ::testing::Test {
 protected:
  RunData() {
    config_.data.train = {{folder_.path() / "corpus.txt"}};
    config_.data.document_separator = "|";
    std::ofstream file(folder_.path() / "corpus.txt");
    for (int document = 0; document < 200; ++document) file << "seven..|";
  }

  // Returns the configuration as resolved by the data.
  RunConfig resolved() const {
    RunConfig result = config_;
    resolve_documents(result, open_run_data(config_));
    return result;
  }
  std::optional<std::string> note() const { return note_on_documents(resolved(), open_run_data(config_)); }

  TemporaryFolder folder_;
  RunConfig config_ = small_run();
};

TEST_F(RunData, SeveralDocumentsStayApartUnlessTheConfigurationSaysOtherwise) {
  EXPECT_THAT(resolved().data.mask_across_documents, Optional(true));
  EXPECT_EQ(note(), std::nullopt);
  config_.data.mask_across_documents = false;
  EXPECT_THAT(resolved().data.mask_across_documents, Optional(false));
  EXPECT_THAT(note(), Optional(HasSubstr("data.mask_across_documents = true")));
}

TEST_F(RunData, OneDocumentNeedsNoMask) {
  config_.data.document_separator = "";
  EXPECT_THAT(resolved().data.mask_across_documents, Optional(false));
  EXPECT_EQ(note(), std::nullopt);
  config_.data.mask_across_documents = true;
  EXPECT_THAT(resolved().data.mask_across_documents, Optional(true));
}

TEST_F(RunData, DocumentsStayApartOnAGpuAndOnTheModelledClockOnlyWhereTheUserWantsIt) {
  for (const bool is_modelled : {false, true}) {
    config_.execution.device = is_modelled ? "cpu" : "cuda";
    config_.cluster.clock = is_modelled ? ClockKind::modelled : ClockKind::real;
    config_.data.mask_across_documents.reset();
    EXPECT_THAT(resolved().data.mask_across_documents, Optional(false)) << is_modelled;
    EXPECT_THAT(note(), Optional(HasSubstr("data.mask_across_documents = true"))) << is_modelled;
    config_.data.mask_across_documents = true;
    EXPECT_THAT(resolved().data.mask_across_documents, Optional(true)) << is_modelled;
  }
}

TEST_F(RunData, TheLengthOfDocumentsIsMeasuredUnlessTheConfigurationHasIt) {
  EXPECT_EQ(resolved().data.document_length, 8) << "with the mark at its end";
  config_.data.document_length = 20;
  EXPECT_EQ(resolved().data.document_length, 20);
  config_.data.document_length = 0;
  config_.data.mask_across_documents = false;
  EXPECT_EQ(resolved().data.document_length, 0) << "attention does not end at documents";
}

}  // namespace
}  // namespace copus
