// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

/// How two ranks show each other that both know the secret of their job: HMAC-SHA256 (RFC 2104, FIPS 180-4)
/// over what either end cannot choose alone. The secret itself never travels.
namespace usp::comm {

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

/// Random bytes. Throws EnvironmentError when the system has none.
[[nodiscard]] Nonce random_nonce();

/// One connection between two ranks of a job, as both ends see it.
struct HandshakeContext {
  std::int32_t size = 0;
  std::int32_t connector = 0;       ///< the rank that connected
  std::int32_t acceptor = 0;        ///< the rank that listens
  std::int32_t connector_port = 0;  ///< where the guest listens
  std::uint64_t digest = 0;         ///< of the job, or of its session
  Nonce connector_nonce{};
  Nonce acceptor_nonce{};
};

/// What the ranks of a job prove to know.
class JobKey {
 public:
  /// Of a job without a secret: proofs are zero and prove nothing.
  JobKey() = default;
  /// `digest` distinguishes jobs with one secret.
  JobKey(const std::string& secret, std::int32_t size, std::uint64_t digest);

  [[nodiscard]] bool secured() const { return secured_; }
  /// The two ends prove different things, so that a proof that is sent back proves nothing.
  [[nodiscard]] Proof connector_proof(const HandshakeContext& context) const {
    return proof("usp guest 2", context);
  }
  [[nodiscard]] Proof acceptor_proof(const HandshakeContext& context) const {
    return proof("usp host 2", context);
  }

 private:
  [[nodiscard]] Proof proof(const char* role, const HandshakeContext& context) const;

  bool secured_ = false;
  Proof key_{};
};

/// In a time that does not depend on the bytes.
[[nodiscard]] bool same(const Proof& a, const Proof& b);

}  // namespace usp::comm
