// SPDX-License-Identifier: Apache-2.0
#include "job_key.hpp"

#include "usp/base/error.hpp"

#include <limits>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string_view>

namespace usp::comm {
namespace {

[[nodiscard]] Proof hmac_sha256(std::string_view key, const std::string& message) {
  expects(key.size() <= std::numeric_limits<int>::max(), "a key of an int's length");
  Proof result{};
  unsigned int length = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                   reinterpret_cast<unsigned char*>(result.data()), &length);
  if (done == nullptr || length != result.size())
    throw EnvironmentError(
        "libcrypto has no HMAC-SHA256; install the libssl that this build was linked with");
  return result;
}

/// Integers as little-endian bytes of fixed width: no two meetings are written alike.
void put(std::string& message, std::uint64_t value) {
  for (int i = 0; i < 8; ++i, value >>= 8U) message += static_cast<char>(value & 0xffU);
}

void put(std::string& message, const Nonce& nonce) {
  message.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
}

[[nodiscard]] std::string begun(std::string_view label) {
  std::string message;
  put(message, label.size());
  return message.append(label);
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce{};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1)
    throw EnvironmentError(
        "the system gives no random bytes, so that ranks cannot authenticate; see whether getrandom "
        "works here");
  return nonce;
}

JobKey::JobKey(const std::string& secret, std::int32_t size, std::uint64_t digest) : secured_(true) {
  std::string message = begun("usp job key 2");
  put(message, static_cast<std::uint64_t>(size));
  put(message, digest);
  key_ = hmac_sha256(secret, message);
}

Proof JobKey::proof(const char* role, const HandshakeContext& context) const {
  if (!secured_) return {};
  std::string message = begun(role);
  for (const std::int32_t number :
       {context.size, context.connector, context.acceptor, context.connector_port})
    put(message, static_cast<std::uint64_t>(number));
  put(message, context.digest);
  put(message, context.connector_nonce);
  put(message, context.acceptor_nonce);
  return hmac_sha256({reinterpret_cast<const char*>(key_.data()), key_.size()}, message);
}

bool same(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace usp::comm
