// SPDX-License-Identifier: Apache-2.0
#include "usp/runtime/npy.hpp"

#include "usp/base/error.hpp"
#include "usp/base/file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
namespace usp {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr i64 max_elements = i64{1} << 40;
constexpr std::size_t max_axes = 32;
constexpr i64 unknown_step = i64{1} << 24;
constexpr std::size_t max_header_bytes = std::size_t{1} << 16;
constexpr std::array<std::pair<const char*, NpyType>, 4> type_names = {
    {{"<f2", NpyType::f2}, {"<f4", NpyType::f4}, {"<f8", NpyType::f8}, {"<u2", NpyType::u2}}};

/// The header is a Python dictionary of three keys; nothing else is understood.
class Header {
 public:
  Header(std::string text, const std::string& file) : owned_(std::move(text)), text_(owned_), file_(file) {}

  [[nodiscard]] NpyHeader read() {
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
    return {*type_, *shape_};
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
    if (!peek(c)) fail("", fmt::format("has a broken header: '{}' is missing", c));
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
      if (shape_->size() == max_axes) fail("shape", "has too many axes");
      shape_->push_back(number());
      const i64 extent = shape_->back();
      if (extent > 0 && elements > max_elements / extent) fail("shape", "is too large");
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
      if (value > max_elements) fail("shape", "is too large");
    }
    if (at_ == begin) fail("shape", "has an extent that is no number");
    return value;
  }

  std::string owned_;
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

/// Where bytes come from: copies up to `count` of them, fewer only at the end.
using Source = std::function<std::size_t(void* to, std::size_t count)>;

NpyHeader read_header(const std::string& file, const Source& source) {
  const auto take = [&](std::size_t count) {
    std::string bytes(count, '\0');
    bytes.resize(source(bytes.data(), count));
    if (bytes.size() < count) throw InvalidInput({file, 0, ""}, "ends inside its header");
    return bytes;
  };
  std::string start(magic.size(), '\0');
  start.resize(source(start.data(), start.size()));
  if (start != magic) throw InvalidInput({file, 0, ""}, "is no .npy file");
  const std::string version = take(2);
  if ((version[0] != 1 && version[0] != 2) || version[1] != 0)
    throw InvalidInput({file, 0, ""}, fmt::format("is of .npy version {}.{}; 1.0 and 2.0 are read",
                                                  int{version[0]}, int{version[1]}));
  const std::size_t length = little_endian(take(version[0] == 1 ? 2 : 4));
  if (length > max_header_bytes)
    throw InvalidInput({file, 0, ""},
                       fmt::format("states a header of {} bytes; the most is {}", length, max_header_bytes));
  return Header(take(length), file).read();
}

[[noreturn]] void refuse_size(const std::string& file, const std::string& held, i64 wanted) {
  throw InvalidInput({file, 0, ""},
                     fmt::format("holds {} bytes of data, its header says {}; the file is cut off or damaged",
                                 held, wanted));
}

/// The data in pieces of `step` bytes: of a source of unknown size, memory grows with the bytes that arrive.
NpyArray read_body(const std::string& file, const NpyHeader& header, const Source& source, i64 step) {
  const i64 wanted = header.data_bytes();
  NpyArray array{header, {}};
  for (i64 done = 0; done < wanted;) {
    const auto count = static_cast<std::size_t>(std::min(step, wanted - done));
    const auto at = static_cast<std::size_t>(done);
    array.bytes.resize(at + count);
    const std::size_t got = source(array.bytes.data() + at, count);
    done += static_cast<i64>(got);
    if (got < count) refuse_size(file, std::to_string(done), wanted);
  }
  std::byte behind;
  if (source(&behind, 1) > 0) refuse_size(file, fmt::format("more than {}", wanted), wanted);
  return array;
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

i64 NpyHeader::data_bytes() const {
  i64 bytes = bytes_of(type);
  for (const i64 extent : shape) bytes *= extent;
  return bytes;
}

NpyArray parse_npy(const std::string& content, const std::string& file) {
  std::string_view left(content);
  const Source source = [&](void* to, std::size_t count) {
    count = std::min(count, left.size());
    if (count > 0) std::memcpy(to, left.data(), count);
    left.remove_prefix(count);
    return count;
  };
  const NpyHeader header = read_header(file, source);
  if (static_cast<i64>(left.size()) != header.data_bytes())
    refuse_size(file, std::to_string(left.size()), header.data_bytes());
  return read_body(file, header, source, header.data_bytes());
}

NpyFile::NpyFile(const std::string& path) : file_(path) {
  header_ = read_header(path, [&](void* to, std::size_t count) { return file_.read(to, count); });
  const std::optional<i64> held = file_.bytes_left();
  if (held && *held != header_.data_bytes()) refuse_size(path, std::to_string(*held), header_.data_bytes());
}

NpyArray NpyFile::read() {
  const auto source = [&](void* to, std::size_t count) { return file_.read(to, count); };
  return read_body(file_.path(), header_, source, file_.bytes_left() ? header_.data_bytes() : unknown_step);
}

std::string npy_bytes(const NpyArray& array) {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", npy_type_name(array.type));
  for (std::size_t i = 0; i < array.shape.size(); ++i)
    header += fmt::format("{}{}", array.shape[i], i + 1 == array.shape.size() && i > 0 ? "" : ", ");
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
