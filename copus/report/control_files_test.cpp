#include "copus/report/control_files.h"

#include <gmock/gmock.h>

#include <fstream>
#include <thread>
#include <utility>

#include "copus/base/testing/test_support.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::chrono::seconds long_enough(60);

class ControlFilesTest : public TestDirectory {
 protected:
  // Serves requests until one has been answered.
  template <class Answer>
  ControlReply ask(const ControlRequest& request, const Answer& answer) {
    ControlFiles run(directory_);
    std::thread serving([&] {
      std::vector<ControlFiles::Received> received;
      while (received.empty()) received = run.take();
      run.reply(received.front().name, answer(received.front().request));
    });
    const ControlReply reply = ask_run(directory_, request, long_enough, [] { return true; });
    serving.join();
    return reply;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "control")) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
};

TEST_F(ControlFilesTest, CarryRequestAndReplyAndLeaveNothing) {
  const ControlRequest request{"force", "d=2,t=1,p=2,B=32"};
  ControlRequest received;
  const ControlReply reply = ask(request, [&](const ControlRequest& asked) {
    received = asked;
    return ControlReply{true, "step 412: batch 16 -> 32"};
  });
  EXPECT_EQ(received, request);
  EXPECT_EQ(reply, (ControlReply{true, "step 412: batch 16 -> 32"}));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(ControlFilesTest, AnImpatientAskerWithdraws) {
  ControlFiles run(directory_);
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, std::chrono::seconds(0), [] { return true; }); };
  EXPECT_THAT(user_error(ask), HasSubstr("withdrawn"));
  EXPECT_THAT(run.take(), IsEmpty());
}

TEST_F(ControlFilesTest, AnAskerDoesNotWaitForADeadRun) {
  ControlFiles run(directory_);
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, long_enough, [] { return false; }); };
  EXPECT_THAT(user_error(ask), HasSubstr("ended before"));
  EXPECT_THAT(run.take(), IsEmpty());
}

TEST_F(ControlFilesTest, ANewProcessForgetsWhatAnEarlierOneWasAsked) {
  ControlFiles earlier(directory_);
  std::ofstream(directory_ / "control" / "1.json") << R"({"command":"pin","target":""})";
  ControlFiles later(directory_);
  EXPECT_THAT(later.take(), IsEmpty());
}

TEST_F(ControlFilesTest, TheRunGoesOnWithoutTheFolderAndWhoAsksIsTold) {
  ControlFiles run(directory_);
  std::filesystem::remove_all(directory_ / "control");
  EXPECT_THAT(run.take(), IsEmpty());
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, long_enough, [] { return true; }); };
  EXPECT_THAT(user_error(ask), HasSubstr("control is missing"));
}

TEST_F(ControlFilesTest, ACommandThatABeginningRunHasClearedAwayIsNotSaidToBeUnderWay) {
  ControlFiles earlier(directory_);
  bool has_begun = false;
  const auto is_alive = [&] {
    if (!std::exchange(has_begun, true)) ControlFiles later(directory_);
    return true;
  };
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, std::chrono::seconds(0), is_alive); };
  EXPECT_THAT(user_error(ask), HasSubstr("the command is gone"));
}

TEST_F(ControlFilesTest, AreTakenInTheirOrderAndDamagedOnesAnswered) {
  ControlFiles run(directory_);
  std::ofstream(directory_ / "control" / "2.json") << R"({"command":"pin","target":""})";
  std::ofstream(directory_ / "control" / "1.json") << R"({"command":"pause","target":""})";
  std::ofstream(directory_ / "control" / "0.json") << R"({"command":)";
  std::ofstream(directory_ / "control" / "3.json") << R"({"command":)" << deep_json() << "}";
  const auto received = run.take();
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_EQ(received[0].request.command, "pause");
  EXPECT_EQ(received[1].request.command, "pin");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "control" / "0.reply"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "control" / "3.reply"));
}

}  // namespace
}  // namespace copus
