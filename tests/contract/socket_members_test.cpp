// SPDX-License-Identifier: Apache-2.0
// What a rank of the job sends is checked like what a stranger sends.
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/tcp/socket_communicator.hpp"
#include "socket_stranger.hpp"

#include <gtest/gtest.h>

#include <future>

namespace usp {
namespace {

using comm::FailureFrame;
using comm::Frame;

/// The connections of a rank that sends what it likes.
class Member {
 public:
  explicit Member(const comm::SocketJob& job)
      : sockets_(comm::connect_all(job, {.watchdog_s = test::limit_s})) {}
  template <class T>
  void say(int peer, const T& value) {
    (void)comm::send_whole(sockets_[static_cast<std::size_t>(peer)], &value, sizeof value,
                           comm::StartWatch(test::limit_s));
  }
  void failure_frame(int peer, const FailureFrame& failure_frame) {
    say(peer, Frame{.kind = Frame::Kind::failure});
    say(peer, failure_frame);
  }
  void close(int peer) { sockets_[static_cast<std::size_t>(peer)].close(); }

 private:
  std::vector<comm::Socket> sockets_;
};

/// How a barrier of rank 0 ends.
struct Outcome {
  comm::CommunicationFault fault;
  ExitCode exit_code = ExitCode::ok;
};

/// Rank 0 of `ranks` in a barrier, once the others, who send what they like, have done `acts` (of ranks
/// 1, 2...).
Outcome outcome_after(const std::vector<std::function<void(Member&)>>& acts) {
  const int port = test::free_port(), ranks = static_cast<int>(acts.size()) + 1;
  std::vector<std::future<std::unique_ptr<Member>>> members;
  for (int rank = 1; rank < ranks; ++rank)
    members.push_back(std::async(
        std::launch::async, [=] { return std::make_unique<Member>(test::secured_job(rank, ranks, port)); }));
  const comm::CommOptions options{.watchdog_s = test::limit_s};
  const auto mesh = std::make_shared<comm::SocketMesh>(
      comm::connect_all(test::secured_job(0, ranks, port), options), 0, options);
  std::vector<std::unique_ptr<Member>> there;
  for (auto& member : members) there.push_back(member.get());
  for (std::size_t i = 0; i < acts.size(); ++i) acts[i](*there[i]);
  try {
    comm::make_world(mesh)->barrier();
  } catch (const comm::CommunicationError& error) {
    Outcome outcome{error.fault(), mesh->exit_code()};
    there.clear();
    return outcome;
  }
  return {};
}

Outcome outcome_after(const std::function<void(Member&)>& act) {
  return outcome_after(std::vector<std::function<void(Member&)>>{act});
}

FailureFrame failure_frame_of(int exit_code) {
  FailureFrame failure_frame = comm::pack({{"run", -1, 1, {1}, "out of paper"}, ExitCode::internal, 1});
  failure_frame.exit_code = exit_code;
  return failure_frame;
}

TEST(Members, AnExitCodeIsOneOfAFailure) {
  for (const int code : {0, -7, 7, 255, 1 << 30}) {
    const Outcome outcome =
        outcome_after([&](Member& member) { member.failure_frame(0, failure_frame_of(code)); });
    EXPECT_EQ(outcome.exit_code, ExitCode::environment) << code;
    EXPECT_EQ(outcome.fault.message, "out of paper");
  }
  for (const int code : {1, 2, 3, 4, 5, 6})
    EXPECT_EQ(static_cast<int>(comm::unpack(failure_frame_of(code), 2, 1).exit_code), code);
}

TEST(Members, ANoticeNamesRanksOfTheJobAndItsTextsEnd) {
  FailureFrame failure_frame = failure_frame_of(1);
  failure_frame.origin = -5;
  failure_frame.rank = 99;
  failure_frame.tick = -100;
  failure_frame.missing_count = 1 << 30;
  failure_frame.missing.fill(77);
  failure_frame.missing[3] = 1;
  failure_frame.message.fill('x');
  failure_frame.operation.fill('y');
  const comm::JobFailure failure = comm::unpack(failure_frame, 2, 1);
  EXPECT_EQ(failure.origin, 1);
  EXPECT_EQ(failure.fault.rank, -1);
  EXPECT_EQ(failure.fault.tick, -1);
  EXPECT_EQ(failure.fault.missing, std::vector<int>{1});
  EXPECT_EQ(failure.fault.message.size(), failure_frame.message.size());
  EXPECT_EQ(failure.fault.operation.size(), failure_frame.operation.size());
}

TEST(Members, AFloodOfRequestsEndsTheJob) {
  const Outcome outcome = outcome_after([](Member& member) {
    std::array<Frame, 1024> some;
    for (i64 tag = 0; tag <= comm::max_requests_of_peer + 1024; tag += 1024) {
      for (i64 i = 0; i < 1024; ++i)
        some[static_cast<std::size_t>(i)] = {Frame::Kind::request, 0, 5, tag + i, i64{1} << 40};
      member.say(0, some);
    }
  });
  EXPECT_EQ(outcome.exit_code, ExitCode::environment);
  EXPECT_NE(outcome.fault.message.find("rank 1 asks for more messages than rank 0 has room to note"),
            std::string::npos)
      << outcome.fault.message;
}

TEST(Members, FramesWithoutSenseEndTheJob) {
  for (const Frame& frame :
       {Frame{static_cast<Frame::Kind>(0x99), 0, 0, 0, 1}, Frame{Frame::Kind::request, 0, 0, 0, -1},
        Frame{Frame::Kind::request, 0, 0, 0, 0}, Frame{Frame::Kind::data, 0, 0, 0, -1},
        Frame{Frame::Kind::data, 0, 0, 0, i64{1} << 62}, Frame{Frame::Kind::data, 1U << 31U, 0, 0, 1}}) {
    const Outcome outcome = outcome_after([&](Member& member) { member.say(0, frame); });
    EXPECT_NE(outcome.fault.message.find("rank 1 sent bytes that rank 0 did not ask for"), std::string::npos)
        << outcome.fault.message;
  }
}

/// A connection that closes does not hide the failure that another one reports.
TEST(Members, AClosedConnectionHidesNoFailure) {
  const auto leave = [](Member& member) { member.close(0); };
  FailureFrame failure_frame = failure_frame_of(6);
  failure_frame.origin = 2;
  const Outcome outcome =
      outcome_after({leave, [&](Member& member) { member.failure_frame(0, failure_frame); }});
  EXPECT_EQ(outcome.fault.message, "out of paper");
  EXPECT_EQ(outcome.exit_code, ExitCode::verification);
  const Outcome silent = outcome_after({leave, leave});
  EXPECT_NE(silent.fault.message.find("rank 1 has gone"), std::string::npos) << silent.fault.message;
}

/// A rank that has received a failure passes it on before it leaves, also to ranks that the first sender did
/// not reach.
TEST(Members, AFailureIsPassedOn) {
  const int port = test::free_port();
  auto sender = std::async(std::launch::async, [=] { return Member(test::secured_job(2, 3, port)); });
  std::promise<void> told;
  auto relay = std::async(std::launch::async, [&] {
    const auto communicator = comm::make_socket_communicator(test::secured_job(1, 3, port), {});
    told.get_future().wait();
    try {
      communicator->barrier();
    } catch (const comm::CommunicationError&) {
    }
  });
  const auto communicator = comm::make_socket_communicator(test::secured_job(0, 3, port), {});
  Member member = sender.get();
  FailureFrame failure_frame = failure_frame_of(6);
  failure_frame.origin = 2;
  member.failure_frame(1, failure_frame);
  member.close(0);
  told.set_value();
  relay.wait();  // rank 1 has left
  try {
    communicator->barrier();
    FAIL();
  } catch (const comm::CommunicationError& error) {
    EXPECT_STREQ(error.what(), "out of paper");
  }
}

}  // namespace
}  // namespace usp
