// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/npy.hpp"

#include "usp/base/error.hpp"
#include "usp/base/text.hpp"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
namespace usp {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr i64 most_elements = i64{1} << 40;
constexpr std::size_t most_axes = 32;
constexpr std::array<std::pair<const char*, NpyType>, 4> type_names = {
    {{"<f2", NpyType::f2}, {"<f4", NpyType::f4}, {"<f8", NpyType::f8}, {"<u2", NpyType::u2}}};

/// The header is a Python dictionary of three keys; nothing else is understood.
class Header {
 public:
  Header(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void read(NpyArray& array) {
    take('{');
    while (!peek('}')) {
      const std::string key = quoted();
      take(':');
      if (key == "descr" && !type_)
        read_type();
      else if (key == "fortran_order" && !order_)
        read_order();
      else if (key == "shape" && !shape_)
        read_shape();
      else
        fail(key, "is an unknown or repeated key of the header");
      if (!peek('}')) take(',');
    }
    take('}');
    blanks();
    if (at_ != text_.size()) fail("", "has text after the header's dictionary");
    if (!type_ || !order_ || !shape_) fail("", "lacks descr, fortran_order or shape in its header");
    array.type = *type_;
    array.shape = *shape_;
  }

 private:
  [[noreturn]] void fail(const std::string& token, const std::string& problem) const {
    throw InvalidInput({file_, 0, token}, problem);
  }
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool peek(char c) {
    blanks();
    return at_ < text_.size() && text_[at_] == c;
  }
  void take(char c) {
    if (!peek(c)) fail("", std::string("has a broken header: '") + c + "' is missing");
    ++at_;
  }
  std::string quoted() {
    if (!peek('\'') && !peek('"')) fail("", "has a broken header: a quoted word is missing");
    const char quote = text_[at_++];
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("", "has a broken header: a quote is not closed");
    std::string word(text_.substr(at_, end - at_));
    at_ = end + 1;
    return word;
  }
  void read_type() {
    if (peek('[')) fail("descr", "is an array of records; save one plain array");
    const std::string name = quoted();
    for (const auto& [known, type] : type_names)
      if (name == known) type_ = type;
    if (type_) return;
    fail(name, name.find('O') != std::string::npos ? "is an array of objects, which is never read"
               : name[0] == '>'                    ? "is big endian; save little endian"
                                : "is not one of <f2, <f4, <f8 and <u2 (the bits of bf16); convert it");
  }
  void read_order() {
    blanks();
    if (text_.substr(at_, 4) == "True")
      fail("fortran_order", "is in Fortran order; save with numpy.ascontiguousarray");
    if (text_.substr(at_, 5) != "False") fail("fortran_order", "is neither True nor False");
    at_ += 5;
    order_ = true;
  }
  void read_shape() {
    take('(');
    shape_.emplace();
    i64 elements = 1;
    while (!peek(')')) {
      if (shape_->size() == most_axes) fail("shape", "has too many axes");
      shape_->push_back(number());
      const i64 extent = shape_->back();
      if (extent > 0 && elements > most_elements / extent) fail("shape", "is too large");
      elements *= extent;
      if (!peek(')')) take(',');
    }
    take(')');
  }
  i64 number() {
    blanks();
    const std::size_t begin = at_;
    i64 value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + (text_[at_] - '0');
      if (value > most_elements) fail("shape", "is too large");
    }
    if (at_ == begin) fail("shape", "has an extent that is no number");
    return value;
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::optional<NpyType> type_;
  std::optional<bool> order_;
  std::optional<std::vector<i64>> shape_;
};

std::size_t little_endian(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

i64 elements_of(const std::vector<i64>& shape) {
  i64 count = 1;
  for (const i64 extent : shape) count *= extent;
  return count;
}

}  // namespace

i64 bytes_of(NpyType type) {
  return type == NpyType::f8 ? 8 : type == NpyType::f4 ? 4 : 2;
}

const char* npy_type_name(NpyType type) {
  for (const auto& [name, known] : type_names)
    if (known == type) return name;
  throw InternalError("an element type without a name");
}

NpyArray parse_npy(const std::string& content, const std::string& file) {
  const std::string_view text(content);
  if (text.substr(0, magic.size()) != magic) throw InvalidInput({file, 0, ""}, "is no .npy file");
  const std::string_view version = text.substr(magic.size(), 2);
  if (version.size() < 2) throw InvalidInput({file, 0, ""}, "ends inside its header");
  if ((version[0] != 1 && version[0] != 2) || version[1] != 0)
    throw InvalidInput({file, 0, ""}, "is of .npy version " + std::to_string(int{version[0]}) + "." +
                                          std::to_string(int{version[1]}) + "; 1.0 and 2.0 are read");
  const std::size_t width = version[0] == 1 ? 2 : 4, begin = magic.size() + 2 + width;
  if (text.size() < begin) throw InvalidInput({file, 0, ""}, "ends inside its header");
  const std::size_t length = little_endian(text.substr(magic.size() + 2, width));
  if (text.size() - begin < length) throw InvalidInput({file, 0, ""}, "ends inside its header");
  NpyArray array;
  Header(text.substr(begin, length), file).read(array);
  const std::string_view body = text.substr(begin + length);
  const i64 wanted = elements_of(array.shape) * bytes_of(array.type);
  if (static_cast<i64>(body.size()) != wanted)
    throw InvalidInput({file, 0, ""}, "holds " + std::to_string(body.size()) +
                                          " bytes of data, its header says " + std::to_string(wanted) +
                                          "; the file is cut off or damaged");
  array.bytes.resize(body.size());
  if (!body.empty()) std::memcpy(array.bytes.data(), body.data(), body.size());
  return array;
}

NpyArray read_npy(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw InvalidInput({path, 0, ""}, "is a folder; name a file");
  if (std::filesystem::is_character_file(path, ignored))
    throw InvalidInput({path, 0, ""}, "is a device, which has no end; name a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InvalidInput({path, 0, ""}, "cannot be opened; check the path");
  const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) throw InvalidInput({path, 0, ""}, "cannot be read");
  return parse_npy(content, path);
}

std::string npy_bytes(const NpyArray& array) {
  std::string header =
      std::string("{'descr': '") + npy_type_name(array.type) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < array.shape.size(); ++i)
    header += std::to_string(array.shape[i]) + (i + 1 == array.shape.size() && i > 0 ? "" : ", ");
  header += "), }";
  // The data begins at a multiple of 64 bytes; the header ends with a line feed.
  const std::size_t before = magic.size() + 4;
  header.append(63 - (before + header.size()) % 64, ' ');
  header += '\n';
  std::string content(magic);
  content += {'\x01', '\x00'};
  content += static_cast<char>(header.size() & 0xff);
  content += static_cast<char>(header.size() >> 8);
  content += header;
  content.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  return content;
}

void write_npy(const std::string& path, const NpyArray& array) {
  write_file(path, npy_bytes(array));
}

}  // namespace usp
