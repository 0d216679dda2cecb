// A folder for one test, shared by the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"

namespace copus {

class TestDirectory : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::filesystem::path& directory_ = folder_.path();
};

}  // namespace copus
