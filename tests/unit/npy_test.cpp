// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/npy.hpp"

#include "usp/base/error.hpp"
#include "usp/runtime/run_print.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <unistd.h>

namespace usp {
namespace {

std::string file_of(const std::string& header, std::size_t data, char version = 1) {
  std::string text = "\x93NUMPY";
  text += version;
  text += '\0';
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  if (version == 2) text += std::string(2, '\0');
  return text + header + std::string(data, '\x01');
}

std::string problem_of(const std::string& content) {
  try {
    static_cast<void>(parse_npy(content, "x.npy"));
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where().file, "x.npy");
    EXPECT_EQ(error.code(), ExitCode::invalid_input);
    return error.what();
  }
  return "no error";
}

constexpr const char* good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

TEST(Npy, ReadsWhatItWrites) {
  for (const NpyType type : {NpyType::f2, NpyType::f4, NpyType::f8, NpyType::u2})
    for (const std::vector<i64>& shape : {std::vector<i64>{}, {5}, {2, 3}, {1, 2, 3, 4}, {0, 4}}) {
      i64 bytes = bytes_of(type);
      for (const i64 extent : shape) bytes *= extent;
      NpyArray array{type, shape, std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{7})};
      const std::string content = npy_bytes(array);
      EXPECT_EQ((content.size() - static_cast<std::size_t>(bytes)) % 64, 0U);
      const NpyArray back = parse_npy(content, "x.npy");
      EXPECT_EQ(back.type, type);
      EXPECT_EQ(back.shape, shape);
      EXPECT_EQ(back.bytes, array.bytes);
    }
}

/// A file as numpy.save of numpy 2.4.6 writes it: a header padded to 118 bytes, and the data in hexadecimal.
std::string numpy_file(const std::string& dictionary, const std::string& hex) {
  std::string header = dictionary;
  header.append(117 - dictionary.size(), ' ');
  header += '\n';
  std::string data;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    data += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return file_of(header, 0) + data;
}

TEST(Npy, ReadsWhatNumpyWrites) {
  struct Saved {
    const char *dictionary, *hex;
    NpyType type;
    std::vector<i64> shape;
  };
  const Saved files[] = {
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 3), }", "003c004100c2", NpyType::f2, {1, 3}},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "00004040", NpyType::f4, {}},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }",
       "0000000000000000000000000000f03f",
       NpyType::f8,
       {2}},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }", "00000100", NpyType::u2, {2}}};
  for (const Saved& saved : files) {
    const std::string content = numpy_file(saved.dictionary, saved.hex);
    const NpyArray array = parse_npy(content, "x.npy");
    EXPECT_EQ(array.type, saved.type);
    EXPECT_EQ(array.shape, saved.shape);
    EXPECT_EQ(content.substr(128),
              std::string(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()));
  }
  // numpy.asfortranarray(...), and dtype='>f8'
  EXPECT_NE(problem_of(numpy_file("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }",
                                  "00000000000040400000803f00008040000000400000a040"))
                .find("numpy.ascontiguousarray"),
            std::string::npos);
  EXPECT_NE(problem_of(numpy_file("{'descr': '>f8', 'fortran_order': False, 'shape': (2,), }",
                                  "00000000000000003ff0000000000000"))
                .find("save little endian"),
            std::string::npos);
}

TEST(Npy, ReadsVersionTwo) {
  EXPECT_EQ(parse_npy(file_of(good, 24, 2), "x.npy").shape, (std::vector<i64>{2, 3}));
}

TEST(Npy, RefusesWithFileAndReason) {
  const auto header = [](const std::string& text) { return file_of(text, 24); };
  const std::pair<std::string, const char*> cases[] = {
      {"", "no .npy"},
      {"PK\x03\x04", "no .npy"},
      {"\x93NUMPY", "ends inside"},
      {file_of(good, 24, 3), "version 3.0"},
      {file_of(good, 24).substr(0, 20), "ends inside"},
      {file_of(good, 23), "cut off"},
      {file_of(good, 25), "cut off"},
      {header("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }"), "objects"},
      {header("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }"), "big endian"},
      {header("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }"), "not one of"},
      {header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }"), "records"},
      {header("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }"), "Fortran"},
      {header("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3), }"), "neither"},
      {header("{'descr': '<f4', 'shape': (2, 3), }"), "lacks"},
      {header("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"), "repeated"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'extra': 1}"), "unknown"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }"), "no number"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"), "too large"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4), }"), "too large"},
      {header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } x"), "after"},
      {header("{'descr': '<f4"), "not closed"},
      {header("{"), "missing"}};
  for (const auto& [content, reason] : cases) {
    const std::string problem = problem_of(content);
    EXPECT_NE(problem.find(reason), std::string::npos) << problem << " lacks " << reason;
  }
}

TEST(Npy, AHeaderThatTakesMemoryIsRefused) {
  EXPECT_NE(problem_of(std::string("\x93NUMPY\x02\0\xff\xff\xff\x7f{", 13)).find("the most is"),
            std::string::npos);
}

/// The data of a sparse file of 4 TB, and of a pipe that never ends, are not read.
TEST(Npy, TheHeaderIsCheckedBeforeTheDataIsRead) {
  const std::string path = testing::TempDir() + "/npy_test_sparse_" + std::to_string(::getpid()) + ".npy";
  const auto shape_problem = [](const std::string& name) {
    try {
      static_cast<void>(read_tensor(name, DType::fp32, {1, 2, 1, 3}));
    } catch (const InvalidInput& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  write_file(path, file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1099511627776), }", 0));
  const auto begin = std::filesystem::file_size(path);
  EXPECT_NE(shape_problem(path).find("cut off"), std::string::npos);
  std::filesystem::resize_file(path, begin + (std::uintmax_t{4} << 40));
  EXPECT_NE(shape_problem(path).find("has the shape"), std::string::npos);
  std::filesystem::remove(path);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1, 3), }", 24);
  ASSERT_EQ(write(ends[1], (text + "x").data(), text.size() + 1), static_cast<ssize_t>(text.size() + 1));
  EXPECT_NE(shape_problem("/dev/fd/" + std::to_string(ends[0])).find("more than 24"), std::string::npos);
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  EXPECT_EQ(shape_problem("/dev/fd/" + std::to_string(ends[0])), "no error");
  close(ends[0]);
}

template <class T>
std::string tensor_problem(NpyType type, const std::vector<T>& values, DType dtype) {
  NpyArray array{type, {1, 2, 1, 2}, {}};
  array.bytes.resize(values.size() * sizeof(T));
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  const std::string path = testing::TempDir() + "/npy_test_tensor_" + std::to_string(::getpid()) + ".npy";
  write_npy(path, array);
  try {
    static_cast<void>(read_tensor(path, dtype, array.shape));
  } catch (const InvalidInput& error) {
    EXPECT_EQ(error.where().file, path);
    return error.what();
  }
  return "no error";
}

TEST(Npy, ATensorThatIsNotFiniteNamesItsFirstIndex) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  const auto expect = [](const std::string& problem, const char* part) {
    EXPECT_NE(problem.find(part), std::string::npos) << problem << " lacks " << part;
  };
  expect(tensor_problem<double>(NpyType::f8, {1, 2, 3, 4}, DType::fp16), "no error");
  expect(tensor_problem<double>(NpyType::f8, {1, 2, nan, nan}, DType::fp64), "'[0, 1, 0, 0]': holds nan");
  expect(tensor_problem<double>(NpyType::f8, {1, -infinity, 3, 4}, DType::fp32),
         "'[0, 0, 0, 1]': holds -inf");
  expect(tensor_problem<float>(NpyType::f4, {1, 2, 3, 7e4F}, DType::fp16),
         "'[0, 1, 0, 1]': 70000 is beyond the greatest number of fp16");
  expect(tensor_problem<std::uint16_t>(NpyType::u2, {0, 0x7f80, 0, 0}, DType::bf16),
         "'[0, 0, 0, 1]': holds inf");
  expect(tensor_problem<std::uint16_t>(NpyType::f2, {0, 0, 0, 0x7e00}, DType::fp16),
         "'[0, 1, 0, 1]': holds nan");
}

}  // namespace
}  // namespace usp
