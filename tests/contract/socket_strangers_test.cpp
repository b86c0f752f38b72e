// SPDX-License-Identifier: Apache-2.0
// Whoever is not of the job is turned away, and neither ends the job nor holds it up.
#include "socket_stranger.hpp"

#include <gtest/gtest.h>

#include <future>
#include <list>
#include <poll.h>

namespace usp {
namespace {

using test::rejection_of;
using test::request_of;
using test::secured_job;
using test::StartedRanks;
using test::Stranger;

constexpr int ranks = 3;

comm::JobKey true_key() {
  return {test::job_secret, ranks, 7};
}

/// Says hello to rank 0 and answers the challenge with what `prove` makes of it. Returns why it is refused;
/// empty when it is in.
template <class Prove>
std::string attempt_at(int port, const comm::HandshakeRequest& request, const Prove& prove) {
  Stranger stranger(port);
  stranger.say(request);
  const auto challenge = stranger.hear();
  if (!challenge || challenge->rejection.front() != '\0') return rejection_of(challenge);
  stranger.say(prove(comm::context_of(request, 0, challenge->value)));
  return rejection_of(stranger.hear());
}

/// Rank 0 runs before the strangers come, ranks 1 and 2 start after them: the job must start.
class Strangers : public testing::Test {
 protected:
  Strangers() { job_.start(secured_job(0, ranks, port_)); }
  void expect_start() {
    for (int rank = 1; rank < ranks; ++rank) job_.start(secured_job(rank, ranks, port_));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(job_.error(rank), "") << rank;
  }
  template <class Prove>
  std::string attempt(const comm::HandshakeRequest& request, const Prove& prove) {
    return attempt_at(port_, request, prove);
  }
  int port_ = test::free_port();
  StartedRanks job_;
};

const char* const unproved = "did not prove that it knows the secret of rank 0";

TEST_F(Strangers, ARankWithoutTheSecretIsTurnedAway) {
  const auto zeros = [](const comm::HandshakeContext&) { return comm::Proof{}; };
  EXPECT_NE(attempt(request_of(2, ranks), zeros).find(unproved), std::string::npos);
  const comm::JobKey other("another secret that is as long", ranks, 7);
  const auto guess = [&](const comm::HandshakeContext& context) { return other.connector_proof(context); };
  EXPECT_NE(attempt(request_of(2, ranks), guess).find(unproved), std::string::npos);
  comm::HandshakeRequest bare = request_of(2, ranks);
  bare.secured = 0;
  EXPECT_NE(attempt(bare, zeros).find("rank 2 has no secret, but rank 0 has one"), std::string::npos);
  expect_start();
}

TEST_F(Strangers, AProofIsOfOneConnectionOneRankAndOneSide) {
  const comm::JobKey key = true_key();
  const comm::HandshakeRequest request = request_of(2, ranks);
  comm::Proof recorded{};
  {
    Stranger member(port_);
    member.say(request);
    recorded = key.connector_proof(comm::context_of(request, 0, member.hear()->value));
  }
  EXPECT_NE(attempt(request, [&](const comm::HandshakeContext&) { return recorded; }).find(unproved),
            std::string::npos);
  const auto of_rank_1 = [&](comm::HandshakeContext context) {
    context.connector = 1;
    return key.connector_proof(context);
  };
  EXPECT_NE(attempt(request, of_rank_1).find(unproved), std::string::npos);
  const auto of_the_host = [&](const comm::HandshakeContext& context) { return key.acceptor_proof(context); };
  EXPECT_NE(attempt(request, of_the_host).find(unproved), std::string::npos);
  expect_start();
}

TEST_F(Strangers, NumbersWithoutSenseAndGarbageAreDroppedWithoutAWord) {
  for (const auto& change : std::initializer_list<std::function<void(comm::HandshakeRequest&)>>{
           [](comm::HandshakeRequest& request) { request.rank = ranks; },
           [](comm::HandshakeRequest& request) { request.rank = -1; },
           [](comm::HandshakeRequest& request) { request.size = 0; },
           [](comm::HandshakeRequest& request) { request.size = 1 << 30; },
           [](comm::HandshakeRequest& request) { request.port = 65536; },
           [](comm::HandshakeRequest& request) { request.secured = 2; },
           [](comm::HandshakeRequest& request) { request.magic += 1; }}) {
    comm::HandshakeRequest request = request_of(2, ranks);
    change(request);
    Stranger stranger(port_);
    stranger.say(request);
    EXPECT_TRUE(stranger.closed());
  }
  std::array<char, 4096> garbage;
  garbage.fill('G');
  Stranger stranger(port_);
  stranger.say(garbage);
  EXPECT_TRUE(stranger.closed());
  expect_start();
}

TEST_F(Strangers, AnotherVersionIsToldWhy) {
  comm::HandshakeRequest request = request_of(2, ranks);
  request.version = 1;
  Stranger stranger(port_);
  stranger.say(request, 32);  // what version 1 said
  EXPECT_NE(rejection_of(stranger.hear()).find("another version of usp"), std::string::npos);
  expect_start();
}

/// Some say nothing, some a part of a hello, some do not answer the challenge; the eldest go.
TEST_F(Strangers, ManyConnectionsThatStayHoldUpNobody) {
  std::list<Stranger> kept;
  const comm::HandshakeRequest request = request_of(1, ranks);
  for (int i = 0; i < 300; ++i) {
    Stranger& stranger = kept.emplace_back(port_);
    if (i % 3 > 0) stranger.say(request, i % 3 == 1 ? sizeof request / 2 : sizeof request);
  }
  EXPECT_TRUE(kept.front().closed());
  expect_start();
}

TEST_F(Strangers, ASeatIsTakenOnce) {
  Stranger first(port_);
  const comm::HandshakeRequest request = request_of(1, ranks);
  first.say(request);
  const comm::HandshakeContext context = comm::context_of(request, 0, first.hear()->value);
  first.say(true_key().connector_proof(context));
  const auto answer = first.hear();
  ASSERT_EQ(rejection_of(answer), "");
  EXPECT_EQ(answer->value, true_key().acceptor_proof(context));
  job_.start(secured_job(1, ranks, port_));
  EXPECT_NE(job_.error(1).find("rank 1 was given twice"), std::string::npos) << job_.error(1);
  first = Stranger(comm::Socket());
  EXPECT_NE(job_.error(0).find("rank 1 left while the ranks met"), std::string::npos) << job_.error(0);
}

/// However many are refused for what they say, the error of a rank with a wrong token comes first.
TEST(Refusals, StrangersDisplaceNoRanksRefusal) {
  const comm::Socket listener = comm::listen_at(comm::resolve("127.0.0.1", 0));
  comm::Acceptor acceptor(listener, {.size = ranks, .digest = 7, .key = true_key()});
  auto member =
      std::async(std::launch::async, [&] { return acceptor.next(comm::StartWatch(test::limit_s), {}); });
  const int port = comm::port_of(listener);
  const auto guess = [](const comm::JobKey& key) {
    return [&key](const comm::HandshakeContext& context) { return key.connector_proof(context); };
  };
  const comm::JobKey wrong("another secret that is as long", ranks, 7), right = true_key();
  for (int i = 0; i < 20; ++i) {
    comm::HandshakeRequest size = request_of(2, ranks + 1 + i), digest = request_of(i % ranks, ranks),
                           version = request_of(2, ranks);
    digest.digest += 1;
    version.version += 1;
    for (const comm::HandshakeRequest& request : {size, digest, version})
      EXPECT_NE(attempt_at(port, request, guess(wrong)), "");
  }
  EXPECT_NE(attempt_at(port, request_of(2, ranks), guess(wrong)), "");
  EXPECT_EQ(attempt_at(port, request_of(1, ranks), guess(right)), "");
  EXPECT_TRUE(member.get());
  const std::string told = acceptor.rejections();
  EXPECT_EQ(told.find("; refused: rank 2 did not prove that it knows the secret of rank 0"), 0U) << told;
  for (const char* words : {"WORLD_SIZE 4", "of another job", "another version"})
    EXPECT_NE(told.find(words), std::string::npos) << told;
  EXPECT_EQ(told.find("WORLD_SIZE 20"), std::string::npos) << "a stranger has no more than a few: " << told;
}

/// Somebody listens where rank 0 should, and is asked by a rank.
class FalseHost : public testing::Test {
 protected:
  FalseHost() {
    job_.start(secured_job(1, 2, comm::port_of(listener_)));
    comm::Socket socket;
    while (!socket.is_open()) socket = comm::accept_from(listener_);
    guest_.emplace(std::move(socket));
    EXPECT_TRUE(guest_->hear(&request_, sizeof request_));
  }
  void expect_refused() {
    EXPECT_NE(job_.error(1).find("did not prove that it knows the secret of this job"), std::string::npos)
        << job_.error(1);
    EXPECT_EQ(job_.error(1).find(test::job_secret), std::string::npos);
  }
  comm::Socket listener_ = comm::listen_at(comm::resolve("127.0.0.1", 0));
  StartedRanks job_;
  std::optional<Stranger> guest_;
  comm::HandshakeRequest request_;
};

TEST_F(FalseHost, AProofThatIsSentBackProvesNothing) {
  guest_->say(comm::acceptance_reply(true_key(), request_.nonce));
  comm::Proof proof{};
  ASSERT_TRUE(guest_->hear(&proof, sizeof proof));
  guest_->say(comm::acceptance_reply(true_key(), proof));
  expect_refused();
  const std::string said = std::string(reinterpret_cast<const char*>(&request_), sizeof request_) +
                           std::string(reinterpret_cast<const char*>(proof.data()), proof.size());
  EXPECT_EQ(said.find(test::job_secret), std::string::npos);
}

TEST_F(FalseHost, OneThatClaimsToNeedNoSecretIsNotBelieved) {
  guest_->say(comm::acceptance_reply({}, {}));
  comm::Proof proof{};
  ASSERT_TRUE(guest_->hear(&proof, sizeof proof));
  guest_->say(comm::acceptance_reply({}, {}));
  expect_refused();
}

TEST(Network, RanksListenAtOneInterface) {
  const int port = test::free_port();
  StartedRanks job;
  comm::SocketJob mine = secured_job(0, 2, port);
  mine.host = "127.0.0.2";
  job.start(mine);
  Stranger there(port, "127.0.0.2");  // rank 0 listens
  int error = 0;
  comm::Socket elsewhere = comm::start_connect(comm::resolve("127.0.0.1", port).front(), error);
  if (elsewhere.is_open()) {
    pollfd one{elsewhere.descriptor(), POLLOUT, 0};
    EXPECT_EQ(::poll(&one, 1, -1), 1);
    error = comm::connect_error(elsewhere);
  }
  EXPECT_EQ(error, ECONNREFUSED);
  mine.rank = 1;
  job.start(mine);
  EXPECT_EQ(job.error(0) + job.error(1), "");
}

/// A host has many loopback addresses; connections to any of them come from 127.0.0.1.
TEST(Network, RanksMeetAtAnyLoopbackAddress) {
  for (const char* host : {"127.0.0.1", "127.0.1.1", "127.0.0.2"}) {
    const int port = test::free_port();
    StartedRanks job;
    for (comm::SocketJob mine{0, 4, host, port, 7}; mine.rank < mine.size; ++mine.rank) job.start(mine);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(job.error(rank), "") << host << " rank " << rank;
  }
}

/// Rank 0 would listen at every interface.
TEST(Network, AnAddressOfAllInterfacesIsRefusedByName) {
  for (const char* host : {"0.0.0.0", "0", "::", "::ffff:0.0.0.0"})
    for (int rank = 0; rank < 2; ++rank) {
      comm::SocketJob job = secured_job(rank, 2, test::free_port());
      job.host = host;
      try {
        (void)comm::make_socket_communicator(job, {.trust_network = true});
        FAIL() << host;
      } catch (const EnvironmentError& error) {
        EXPECT_EQ(std::string(error.what()).find(std::string("MASTER_ADDR ") + host + " means all"), 0U)
            << error.what();
      }
    }
}

/// Addresses for documentation (RFC 5737), which are no host's.
TEST(Network, AJobWithoutASecretIsRefusedBeyondLoopback) {
  comm::SocketJob job{0, 2, "198.51.100.7", test::free_port(), 7};
  try {
    (void)comm::make_socket_communicator(job, {});
    FAIL();
  } catch (const comm::OpenNetworkError& error) {
    EXPECT_EQ(error.code(), ExitCode::environment);
    for (const char* words : {"export USP_JOB_TOKEN=$(openssl rand -hex 32)", "--trust-network"})
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
  const auto went_on = [](const comm::SocketJob& tried, bool trust) {
    try {
      (void)comm::make_socket_communicator(tried, {.trust_network = trust});
    } catch (const EnvironmentError& error) {
      return std::string(error.what()).find("is no address of this host") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(went_on(job, true));
  job.secret = test::job_secret;
  EXPECT_TRUE(went_on(job, false));
}

/// Whatever their host is called, ranks that share it meet on its loopback, and need no secret.
TEST(Network, RanksOfOneHostMeetOnItsLoopback) {
  const int port = test::free_port();
  StartedRanks job;
  comm::SocketJob mine{0, 2, "no.such.host.invalid", port, 7};
  mine.one_host = true;
  for (; mine.rank < 2; ++mine.rank) job.start(mine);
  EXPECT_EQ(job.error(0) + job.error(1), "");
}

}  // namespace
}  // namespace usp
