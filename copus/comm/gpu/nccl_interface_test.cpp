#include "copus/comm/gpu/nccl_interface.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "copus/base/error.h"

namespace copus {
namespace {

std::string refusal(const std::string& library) {
  try {
    load_nccl(library);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(NcclInterface, SaysWhatIsMissing) {
  EXPECT_THAT(refusal("libthereisnone.so.2"),
              testing::AllOf(testing::HasSubstr("libthereisnone.so.2"), testing::HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(refusal("libm.so.6"), testing::HasSubstr("libm.so.6 has no ncclGetVersion"));
}

// If there is a library, it loads and answers; without a device it can do nothing else.
TEST(NcclInterface, LoadsWhatTheSystemHas) {
  constexpr const char* library = "libnccl.so.2";
  if (dlopen(library, RTLD_NOW) == nullptr) GTEST_SKIP() << dlerror();
  const NcclInterface nccl = load_nccl(library);
  int version = 0;
  EXPECT_EQ(nccl.get_version(&version), NcclResult::success);
  EXPECT_GE(version, 21800);
  EXPECT_STREQ(nccl.get_error_string(NcclResult::success), "no error");
}

}  // namespace
}  // namespace copus
