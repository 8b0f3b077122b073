// A minimal engine for the contest: a log in far memory, a hash table with the place of each key's newest value, and
// one lock. It never reuses space.
//
//   file:  | length:8 | key:16 | value, padded to a whole word | length:8 | ...     a length of 0 ends the log
//
// The record is durable before its length is stored, and the length is durable before Set returns. The macro WRONG
// selects a bug, which the judge must find:
//
//   WRONG=1   every thousandth Get returns one wrong byte
//   WRONG=2   the value is not flushed
//   WRONG=3   the value and the length become durable in one step, so that a power cut may keep the length
//             without the value

#include <libpmem.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "db.hpp"

#ifndef WRONG
#define WRONG 0
#endif

namespace {

const uint64_t FILE_BYTES = 1ull << 30;
const uint64_t KEY_BYTES = 16;

class NvmEngine : public DB {
public:
    explicit NvmEngine(char* file) : file_(file), end_(0), gets_(0) {
        while (uint64_t bytes = length_at(end_)->load(std::memory_order_acquire)) {
            table_[std::string(file_ + end_ + 8, KEY_BYTES)] = end_;
            end_ += space_for(bytes);
        }
    }

    ~NvmEngine() override { pmem_unmap(file_, FILE_BYTES); }

    Status Get(const Slice& key, std::string* value) override {
        std::lock_guard<std::mutex> one(lock_);
        auto found = table_.find(key.to_string());
        if (found == table_.end()) {
            return NotFound;
        }
        uint64_t at = found->second;
        value->assign(file_ + at + 8 + KEY_BYTES, length_at(at)->load(std::memory_order_relaxed));
        if (WRONG == 1 && ++gets_ % 1000 == 0) {
            (*value)[30] ^= 1;
        }
        return Ok;
    }

    Status Set(const Slice& key, const Slice& value) override {
        std::lock_guard<std::mutex> one(lock_);
        uint64_t at = end_;
        if (at + space_for(value.size()) + 8 > FILE_BYTES) {
            return OutOfMemory;
        }
        std::memcpy(file_ + at + 8, key.data(), KEY_BYTES);
        std::memcpy(file_ + at + 8 + KEY_BYTES, value.data(), value.size());
        uint64_t body = KEY_BYTES + (WRONG == 2 ? 0 : value.size());
        if (WRONG == 3) {
            pmem_persist(file_ + at + 8, KEY_BYTES);
            length_at(at)->store(value.size(), std::memory_order_release);
            pmem_persist(file_ + at, 8 + body);
        } else {
            pmem_persist(file_ + at + 8, body);
            length_at(at)->store(value.size(), std::memory_order_release);
            pmem_persist(file_ + at, 8);
        }
        end_ = at + space_for(value.size());
        table_[key.to_string()] = at;
        return Ok;
    }

private:
    std::atomic<uint64_t>* length_at(uint64_t at) const {
        return reinterpret_cast<std::atomic<uint64_t>*>(file_ + at);
    }

    static uint64_t space_for(uint64_t value_bytes) {
        return 8 + KEY_BYTES + (value_bytes + 7) / 8 * 8;
    }

    char* file_;
    uint64_t end_;
    uint64_t gets_;
    std::mutex lock_;
    std::unordered_map<std::string, uint64_t> table_;
};

}  // namespace

DB::~DB() {}

Status DB::CreateOrOpen(const std::string& name, DB** dbptr, FILE*) {
    void* file = pmem_map_file(name.c_str(), FILE_BYTES, PMEM_FILE_CREATE | PMEM_FILE_SPARSE, 0600, nullptr, nullptr);
    if (file == nullptr) {
        return IOError;
    }
    *dbptr = new NvmEngine(static_cast<char*>(file));
    return Ok;
}
