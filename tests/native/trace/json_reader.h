// Reads trace files in the tests: just enough to check whole files and look at events.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "trace/json_checker.h"

namespace ringtune::testing_support {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The elements of an array file, one line each, without the separating comma.
inline std::vector<std::string> events_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    std::string line = text.substr(begin, end - begin);
    if (line.size() > 2 && line.back() == ',') line.pop_back();
    if (line.size() > 2) lines.push_back(line);
    begin = end + 1;
  }
  return lines;
}

/// A fresh file in a temporary folder of its own, which is removed at the end with the files that followed it.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "ringtune-trace-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error(pattern + " cannot be made");
    folder_ = pattern;
    path_ = folder_ / "part";
    std::ofstream{path_};
  }
  ~TemporaryFile() { std::filesystem::remove_all(folder_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::filesystem::path folder_;
  std::string path_;
};

}  // namespace ringtune::testing_support
