#include "copus/base/process/standard_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "copus/base/error.h"

namespace copus {
namespace {

// The device that a descriptor is open on; 0 if it is closed.
dev_t device_of(int descriptor) {
  struct stat status{};
  return ::fstat(descriptor, &status) == 0 ? status.st_rdev : 0;
}

// Closes the descriptors whose bits are set; the destructor restores them.
class ClosedDescriptors {
 public:
  explicit ClosedDescriptors(int bits) {
    for (int number = 0; number < 3; ++number) kept_[number] = ::fcntl(number, F_DUPFD_CLOEXEC, 10);
    for (int number = 0; number < 3; ++number) {
      if ((bits >> number & 1) != 0) ::close(number);
    }
  }
  ClosedDescriptors(const ClosedDescriptors&) = delete;
  ClosedDescriptors& operator=(const ClosedDescriptors&) = delete;
  ~ClosedDescriptors() {
    for (int number = 0; number < 3; ++number) {
      ::dup2(kept_[number], number);
      ::close(kept_[number]);
    }
  }

 private:
  std::array<int, 3> kept_{};
};

TEST(StandardDescriptorsTest, ThoseThatAreClosedAreTheNullDeviceAndTheOthersStay) {
  struct stat null_device{};
  ASSERT_EQ(::stat("/dev/null", &null_device), 0);
  for (int bits = 0; bits < 8; ++bits) {
    std::array<dev_t, 3> expected{};
    for (int number = 0; number < 3; ++number) {
      expected[number] = (bits >> number & 1) != 0 ? null_device.st_rdev : device_of(number);
    }
    std::array<dev_t, 3> found{};
    int next = -1;
    {
      const ClosedDescriptors closed(bits);
      open_standard_descriptors();
      for (int number = 0; number < 3; ++number) found[number] = device_of(number);
      next = ::open("/", O_RDONLY | O_CLOEXEC);
      ::close(next);
    }
    EXPECT_EQ(found, expected) << bits;
    EXPECT_GT(next, 2) << bits;
  }
}

TEST(StandardDescriptorsTest, AFileOfOursHasNoneOfTheirNumbers) {
  for (int number = 0; number < 3; ++number) EXPECT_THROW(checked_descriptor(number), InternalError);
  EXPECT_EQ(checked_descriptor(3), 3);
  EXPECT_EQ(checked_descriptor(-1), -1);
}

}  // namespace
}  // namespace copus
