// Drives the fuzz target without libFuzzer: all files of a corpus, then mutations of them from a fixed seed.
//   ringtune_wire_fuzz CORPUS [SECONDS [SEED]]
// When the target dies of an exception, its input is left in wire_fuzz_input.bin.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 4096;
const Input* current = nullptr;

/// Keeps the input that the target could not bear.
[[noreturn]] void died() {
  std::ofstream("wire_fuzz_input.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(current->data()), static_cast<std::streamsize>(current->size()));
  std::fprintf(stderr, "wire fuzz: the input is in wire_fuzz_input.bin\n");
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "wire fuzz: %s\n", error.what());
  }
  std::abort();
}

void run(const Input& input) {
  current = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

std::vector<Input> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());  // the run must not depend on the file system
  std::vector<Input> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

class Mutator {
 public:
  Mutator(const std::vector<Input>& corpus, std::uint32_t seed) : corpus_(corpus), random_(seed) {}

  Input next() {
    Input input = corpus_[pick(corpus_.size())];
    for (std::size_t i = pick(6) + 1; i > 0; --i) change(input);
    if (input.size() > kLongest) input.resize(kLongest);
    return input;
  }

 private:
  std::size_t pick(std::size_t bound) { return random_() % bound; }

  void change(Input& input) {
    if (input.empty()) return input.push_back(static_cast<std::uint8_t>(random_()));
    const std::size_t at = pick(input.size());
    const auto position = input.begin() + static_cast<std::ptrdiff_t>(at);
    constexpr std::uint8_t kEdges[] = {0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff};
    switch (pick(6)) {
      case 0:
        *position ^= static_cast<std::uint8_t>(1u << pick(8));
        break;
      case 1:
        *position = kEdges[pick(std::size(kEdges))];
        break;
      case 2:
        input.erase(position, position + static_cast<std::ptrdiff_t>(std::min(pick(9), input.size() - at)));
        break;
      case 3:
        input.insert(position, pick(9), static_cast<std::uint8_t>(random_()));
        break;
      case 4: {  // a number of four bytes
        for (std::size_t i = at; i < std::min(at + 4, input.size()); ++i) input[i] = kEdges[pick(std::size(kEdges))];
        break;
      }
      default: {  // a piece of another input
        const Input& other = corpus_[pick(corpus_.size())];
        const std::size_t from = pick(other.size() + 1);
        const std::size_t count = pick(other.size() - from + 1);
        input.insert(position, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
      }
    }
  }

  const std::vector<Input>& corpus_;
  std::mt19937 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: ringtune_wire_fuzz CORPUS [SECONDS [SEED]]\n");
    return 2;
  }
  std::set_terminate(died);
  const std::vector<Input> corpus = read_corpus(argv[1]);
  for (const Input& input : corpus) run(input);
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0;
  Mutator mutator(corpus, argc > 3 ? static_cast<std::uint32_t>(std::atol(argv[3])) : 1);
  std::uint64_t count = 0;
  for (const auto begin = std::chrono::steady_clock::now();
       !corpus.empty() && std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(seconds); ++count) {
    const Input input = mutator.next();
    run(input);
  }
  std::printf("wire fuzz: %zu inputs of the corpus, %llu mutations\n", corpus.size(),
              static_cast<unsigned long long>(count));
  return corpus.empty() ? 1 : 0;
}
