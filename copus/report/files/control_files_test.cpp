#include "copus/report/files/control_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/report/testing/test_directory.h"

namespace copus {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

constexpr std::chrono::seconds long_enough(60);

class ControlFilesTest : public TestDirectory {
 protected:
  // Serves requests until one is answered.
  template <class Answer>
  ControlReply ask(const ControlRequest& request, const Answer& answer) {
    ControlFiles run(directory_, note());
    std::thread serving([&] {
      std::vector<ControlFiles::Received> received;
      while (received.empty()) received = run.take();
      run.reply(received.front().name, answer(received.front().request));
    });
    const ControlReply reply = ask_run(directory_, request, long_enough, [] { return true; });
    serving.join();
    return reply;
  }

  ControlFiles::Note note() {
    return [this](const std::string& line) { notes_.push_back(line); };
  }

  // Puts a file into the folder.
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / "control" / name) << content;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "control")) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const std::string pin_ = R"({"command":"pin","target":""})";
  std::vector<std::string> notes_;
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
  ControlFiles run(directory_, note());
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, std::chrono::seconds(0), [] { return true; }); };
  EXPECT_THAT(user_error(ask), HasSubstr("withdrawn"));
  EXPECT_THAT(run.take(), IsEmpty());
}

TEST_F(ControlFilesTest, AnAskerDoesNotWaitForADeadRun) {
  ControlFiles run(directory_, note());
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, long_enough, [] { return false; }); };
  EXPECT_THAT(user_error(ask), HasSubstr("ended before"));
  EXPECT_THAT(run.take(), IsEmpty());
}

TEST_F(ControlFilesTest, ANewProcessForgetsWhatAnEarlierOneWasAsked) {
  ControlFiles earlier(directory_, note());
  put("1.json", pin_);
  put("1.taken", pin_);
  put("notes.txt", "of the user");
  std::filesystem::create_directories(directory_ / "control" / "2.json" / "more");
  ControlFiles later(directory_, note());
  EXPECT_THAT(later.take(), IsEmpty());
  EXPECT_THAT(files(), UnorderedElementsAre("notes.txt", "2.json")) << "what is not ours stays";
}

TEST_F(ControlFilesTest, TheRunGoesOnWithoutTheFolderAndWhoAsksIsTold) {
  ControlFiles run(directory_, note());
  std::filesystem::remove_all(directory_ / "control");
  EXPECT_THAT(run.take(), IsEmpty());
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, long_enough, [] { return true; }); };
  EXPECT_THAT(user_error(ask), HasSubstr("control is missing"));
}

TEST_F(ControlFilesTest, ACommandThatABeginningRunHasClearedAwayIsNotSaidToBeUnderWay) {
  ControlFiles earlier(directory_, note());
  bool has_begun = false;
  const auto is_alive = [&] {
    if (!std::exchange(has_begun, true)) ControlFiles later(directory_, note());
    return true;
  };
  const auto ask = [&] { ask_run(directory_, {"pin", ""}, std::chrono::seconds(0), is_alive); };
  EXPECT_THAT(user_error(ask), HasSubstr("the command is gone"));
}

TEST_F(ControlFilesTest, AreTakenInTheirOrderAndDamagedOnesAnswered) {
  ControlFiles run(directory_, note());
  put("2.json", pin_);
  put("1.json", R"({"command":"pause","target":""})");
  put("0.json", R"({"command":)");
  put("3.json", concat(R"({"command":)", deep_json(), "}"));
  const auto received = run.take();
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_EQ(received[0].request.command, "pause");
  EXPECT_EQ(received[1].request.command, "pin");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "control" / "0.reply"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "control" / "3.reply"));
}

// An open or a read that waits for the pipe's other end would make the test fail by its time limit.
TEST_F(ControlFilesTest, WhatIsNoRequestIsLeftAloneAndToldOnce) {
  ControlFiles run(directory_, note());
  const std::filesystem::path control = directory_ / "control";
  std::filesystem::create_directories(control / "folder.json" / "more");
  ASSERT_EQ(::mkfifo((control / "pipe.json").c_str(), 0600), 0);
  std::filesystem::create_symlink("nowhere", control / "link.json");
  std::filesystem::create_symlink("/dev/zero", control / "device.json");
  std::filesystem::create_directories(control / "a\x1b[2J\n\xff.json");
  for (const char* name : {"notes.txt", ".json", "1.json~"}) put(name, "of the user");
  const std::vector<std::string> before = files();
  for (int look = 0; look < 3; ++look) EXPECT_THAT(run.take(), IsEmpty());
  EXPECT_THAT(files(), UnorderedElementsAreArray(before));
  ASSERT_THAT(notes_, SizeIs(1));
  EXPECT_THAT(notes_.front(), HasSubstr("is no file, and so no command"));
  put("1.json", pin_);
  EXPECT_THAT(run.take(), SizeIs(1)) << "among them";
}

TEST_F(ControlFilesTest, FilesThatCannotBeReadOrAnsweredDoNotEndTheRun) {
  ControlFiles run(directory_, note());
  put("large.json", pin_);
  std::filesystem::resize_file(directory_ / "control" / "large.json", uint64_t{100} << 30);
  put("\xff.json", "{");
  put(std::string(249, 'x') + ".json", pin_);  // too long a name for the temporary file of the answer
  put(std::string(250, 'y') + ".json", pin_);  // too long a name for the renamed request
  EXPECT_THAT(run.take(), SizeIs(1));
  run.reply(std::string(249, 'x'), {true, "pinned"});
  EXPECT_THAT(files(), UnorderedElementsAre("large.reply", "\xff.reply", std::string(250, 'y') + ".json"));
  EXPECT_THAT(read_text_file(directory_ / "control" / "large.reply"), HasSubstr("more than 65536 bytes"));
  EXPECT_THAT(notes_, SizeIs(1));
}

TEST_F(ControlFilesTest, AFolderThatCannotBeMadeDoesNotEndTheRun) {
  write_file_durably(directory_ / "control", "of the user");
  ControlFiles run(directory_, note());
  EXPECT_THAT(run.take(), IsEmpty());
  run.reply("1", {true, "pinned"});
  EXPECT_EQ(read_text_file(directory_ / "control"), "of the user");
  EXPECT_THAT(notes_, SizeIs(1));
}

}  // namespace
}  // namespace copus
