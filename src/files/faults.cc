#include "files/faults.h"

namespace sparse_mla::files {
namespace {

std::string filled(std::string_view message, const FaultValues& values) {
  std::string text;
  while (!message.empty()) {
    const std::size_t open = message.find('{');
    text += message.substr(0, open);
    if (open == std::string_view::npos) break;
    message.remove_prefix(open);
    bool matched = false;
    for (const FaultValue& value : values) {
      const std::size_t length = value.name.size() + 2;
      if (message.size() >= length && message[length - 1] == '}' && message.substr(1, length - 2) == value.name) {
        text += value.text;
        message.remove_prefix(length);
        matched = true;
        break;
      }
    }
    if (!matched) {
      text += '{';
      message.remove_prefix(1);
    }
  }
  return text;
}

}  // namespace

FileError::FileError(std::string_view path, Fault fault, const FaultValues& values)
    : std::runtime_error(std::string(path) + ": " + filled(info(fault).message, values)), path_(path), fault_(fault) {}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 0xF];
    } else {
      result += c;
    }
  }
  return result + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace sparse_mla::files
