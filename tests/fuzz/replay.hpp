// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mutation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

/// Properties over seeds and over damaged versions of them, with fixed random numbers: what fuzzing finds in
/// minutes on a machine with clang is kept from coming back, in seconds and with any compiler.
namespace usp::fuzz {

using Property = std::function<bool(const std::string&)>;

struct Seed {
  std::string name, content;
};

/// The files of a folder, in the order of their names.
inline std::vector<Seed> seeds_of(const std::string& folder) {
  std::vector<Seed> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != ".gitkeep")
      seeds.push_back({name, {std::istreambuf_iterator<char>(in), {}}});
  }
  std::sort(seeds.begin(), seeds.end(), [](const Seed& a, const Seed& b) { return a.name < b.name; });
  return seeds;
}

/// What the fuzz target of that name starts from. Seeds whose names begin with "refused" are no good input.
inline std::vector<Seed> corpus(const std::string& target) {
  return seeds_of(std::string(USP_FUZZ_CORPUS) + "/" + target);
}

inline void expect_survives(const std::string& text, const Property& property) {
  try {
    static_cast<void>(property(text));
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what() << "\ninput:\n" << text;
  }
}

/// Every seed, what is left of each when it is cut, and `rounds` damaged versions of each.
inline void mutate_all(const Property& property, const std::vector<Seed>& seeds, int rounds) {
  Random random(20240607);
  std::vector<std::string> texts;
  for (const Seed& seed : seeds) texts.push_back(seed.content);
  for (const std::string& text : texts) {
    const std::size_t step = std::max<std::size_t>(1, text.size() / 400);
    for (std::size_t length = 0; length < text.size(); length += step)
      expect_survives(text.substr(0, length), property);
    for (int round = 0; round < rounds; ++round) expect_survives(mutated(text, texts, random), property);
  }
}

/// Of a target with a corpus of its own: its seeds are taken or refused as their names say.
inline void replay(const std::string& target, const Property& property, int rounds) {
  const std::vector<Seed> seeds = corpus(target);
  ASSERT_FALSE(seeds.empty()) << target;
  for (const Seed& seed : seeds) {
    bool taken = false;
    expect_survives(seed.content, [&](const std::string& text) { return taken = property(text); });
    EXPECT_EQ(taken, seed.name.rfind("refused", 0) != 0) << target << "/" << seed.name;
  }
  mutate_all(property, seeds, rounds);
}

}  // namespace usp::fuzz
