// A minimal program that loads a plug-in, as PiBench does, and checks its answers.
//
//   g++ -std=c++17 -O2 -Iinclude -o host example/host.cpp -ldl -pthread
//   FARBANK_TABLE=clht ./host ./libfarbank_tables.so 100000 2
//
// With a pool, the program opens it again at the end and looks up all keys.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tree_api.hpp"

namespace {

std::atomic<uint64_t> wrong{0};

const char* bytes(const uint64_t& word) { return reinterpret_cast<const char*>(&word); }

bool holds(tree_api* tree, uint64_t key, uint64_t value) {
    uint64_t found = ~value;
    return tree->find(bytes(key), 8, reinterpret_cast<char*>(&found)) && found == value;
}

void expect(bool right) {
    if (!right) ++wrong;
}

// Each key is used by one thread only.
void use(tree_api* tree, uint64_t from, uint64_t to) {
    for (uint64_t n = from; n < to; ++n) {
        uint64_t key = n * 11400714819323198393u, value = n, other = ~n, nothing = 0;
        char* out = reinterpret_cast<char*>(&nothing);
        expect(!tree->find(bytes(key), 8, out));
        expect(!tree->update(bytes(key), 8, bytes(value), 8));
        expect(!tree->remove(bytes(key), 8));
        expect(tree->insert(bytes(key), 8, bytes(value), 8));
        expect(!tree->insert(bytes(key), 8, bytes(other), 8));
        expect(holds(tree, key, value));
        if (n % 2 == 0) {
            expect(tree->update(bytes(key), 8, bytes(other), 8));
            expect(holds(tree, key, other));
        }
        if (n % 3 == 0) {
            expect(tree->remove(bytes(key), 8));
            expect(!tree->find(bytes(key), 8, out));
        }
    }
}

// Checks the keys that `use` left, after the pool was opened again.
void find_again(tree_api* tree, uint64_t keys) {
    for (uint64_t n = 0; n < keys; ++n) {
        uint64_t key = n * 11400714819323198393u, nothing = 0;
        if (n % 3 == 0)
            expect(!tree->find(bytes(key), 8, reinterpret_cast<char*>(&nothing)));
        else
            expect(holds(tree, key, n % 2 == 0 ? ~n : n));
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) {
        std::fprintf(stderr, "usage: host LIBRARY KEYS THREADS [POOL [BYTES]]\n");
        return 2;
    }
    void* library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    auto create = reinterpret_cast<tree_api* (*)(const tree_options_t&)>(dlsym(library, "create_tree"));
    uint64_t keys = std::strtoull(argv[2], nullptr, 10), threads = std::strtoull(argv[3], nullptr, 10);
    if (!create || threads == 0) {
        std::fprintf(stderr, "the library has no function create_tree, or THREADS is 0\n");
        return 1;
    }
    tree_options_t options;
    options.num_threads = threads;
    if (argc > 4) options.pool_path = argv[4];
    if (argc > 5) options.pool_size = std::strtoull(argv[5], nullptr, 10);
    tree_api* tree = create(options);
    if (!tree) return 1;
    std::vector<std::thread> running;
    for (uint64_t t = 0; t < threads; ++t)
        running.emplace_back(use, tree, keys * t / threads, keys * (t + 1) / threads);
    for (auto& thread : running) thread.join();
    delete tree;
    if (argc > 4) {
        tree = create(options);
        if (!tree) return 1;
        find_again(tree, keys);
        delete tree;
    }
    std::printf("%llu keys, %llu threads: %llu answers wrong\n", (unsigned long long)keys,
                (unsigned long long)threads, (unsigned long long)wrong);
    return wrong == 0 ? 0 : 1;
}
